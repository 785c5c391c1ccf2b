// The functions of CUDA's runtime and of NCCL that launches need, by their addresses in this process: those of the libraries that
// torch and nccl4py have loaded, or of what is preloaded in their place. Nothing is linked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace multiworld {

// Result, name, parameters. Streams, events and communicators are handles.
#define MULTIWORLD_FUNCTIONS(X)                                                     \
  X(int, cudaEventCreateWithFlags, void**, unsigned)                                \
  X(int, cudaEventDestroy, void*)                                                   \
  X(int, cudaEventRecord, void*, void*)                                             \
  X(int, cudaEventSynchronize, void*)                                               \
  X(int, cudaStreamWaitEvent, void*, void*, unsigned)                               \
  X(int, cudaMemcpyAsync, void*, const void*, size_t, int, void*)                   \
  X(const char*, cudaGetErrorString, int)                                           \
  X(int, ncclGroupStart)                                                            \
  X(int, ncclGroupEnd)                                                              \
  X(int, ncclSend, const void*, size_t, int, int, void*, void*)                     \
  X(int, ncclRecv, void*, size_t, int, int, void*, void*)                           \
  X(int, ncclBroadcast, const void*, void*, size_t, int, int, void*, void*)         \
  X(int, ncclAllReduce, const void*, void*, size_t, int, int, void*, void*)         \
  X(int, ncclReduce, const void*, void*, size_t, int, int, int, void*, void*)       \
  X(int, ncclAllGather, const void*, void*, size_t, int, void*, void*)              \
  X(int, ncclReduceScatter, const void*, void*, size_t, int, int, void*, void*)     \
  X(int, ncclCommGetAsyncError, void*, int*)                                        \
  X(int, ncclCommFinalize, void*)                                                   \
  X(int, ncclCommDestroy, void*)                                                    \
  X(int, ncclCommAbort, void*)                                                      \
  X(int, ncclCommRevoke, void*, int)                                                \
  X(const char*, ncclGetErrorString, int)                                           \
  X(const char*, ncclGetLastError, void*)

struct Functions {
#define X(result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
  MULTIWORLD_FUNCTIONS(X)
#undef X

  void set(std::string_view wanted, void* address) {
#define X(result, name, ...) \
  if (wanted == #name) name = reinterpret_cast<decltype(name)>(address);
    MULTIWORLD_FUNCTIONS(X)
#undef X
  }

  // A failed call of CUDA in words; nothing if it did not fail.
  std::string said(const char* call, int code) const {
    if (!code) return {};
    return std::string(call) + ": CUDA error " + std::to_string(code) + ", " + cudaGetErrorString(code);
  }
};

inline constexpr const char* function_names[] = {
#define X(result, name, ...) #name,
    MULTIWORLD_FUNCTIONS(X)
#undef X
};

}  // namespace multiworld
