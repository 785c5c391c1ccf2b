/* Stands in for the header of that name, which only the nvcc package has: the
 * annotations that the CUDA runtime's own headers use, for a plain C compiler. */
#ifndef GPULESS_CRT_HOST_DEFINES_H
#define GPULESS_CRT_HOST_DEFINES_H

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __location__(a)
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#define __CUDACC_VER_MAJOR__ 0
#define __CUDACC_VER_MINOR__ 0

#endif
