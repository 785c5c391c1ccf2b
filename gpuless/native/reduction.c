/* Reductions on the host, for every data type of NCCL. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, E4M3, E5M2, TYPES };
enum { SUM, PROD, MAX, MIN, AVG };

size_t type_size(int type) {
  static const size_t size[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < TYPES ? size[type] : 0;
}

/* ---- small floats ----------------------------------------------------- */

/* e4m3 as NCCL has it (__nv_fp8_e4m3): no infinity; all ones is not a number; the largest finite is 448. */
struct format { int exponent, mantissa, bias, has_infinity; };
static const struct format formats[TYPES] = {
    [HALF] = {5, 10, 15, 1}, [BFLOAT16] = {8, 7, 127, 1}, [E4M3] = {4, 3, 7, 0}, [E5M2] = {5, 2, 15, 1}};

static float decode(unsigned bits, struct format f) {
  unsigned top = (1u << f.exponent) - 1, e = bits >> f.mantissa & top, m = bits & ((1u << f.mantissa) - 1);
  float sign = bits >> (f.exponent + f.mantissa) & 1 ? -1 : 1;
  if (e == top && f.has_infinity) return m ? NAN : sign * INFINITY;
  if (e == top && m == (1u << f.mantissa) - 1) return NAN;
  if (e == 0) return sign * ldexpf(m, 1 - f.bias - f.mantissa);
  return sign * ldexpf(m + (1u << f.mantissa), (int)e - f.bias - f.mantissa);
}

static float largest(struct format f) {
  unsigned top = (1u << f.exponent) - 1, ones = (1u << f.mantissa) - 1;
  return f.has_infinity ? decode((top - 1) << f.mantissa | ones, f) : decode(top << f.mantissa | (ones - 1), f);
}

/* To nearest, ties to even, in the current rounding mode's default. */
static unsigned encode(float value, struct format f) {
  unsigned top = (1u << f.exponent) - 1, ones = (1u << f.mantissa) - 1;
  unsigned sign = (signbit(value) ? 1u : 0u) << (f.exponent + f.mantissa);
  if (isnan(value)) return sign | top << f.mantissa | ones;
  int e;
  float size = fabsf(value);
  if (size == 0) return sign;
  frexpf(size, &e); /* size = m * 2^e, m in [0.5, 1) */
  int step = (e - 1 < 1 - f.bias ? 1 - f.bias : e - 1) - f.mantissa; /* weight of the last bit */
  float rounded = isinf(size) ? size : ldexpf(nearbyintf(ldexpf(size, -step)), step);
  if (rounded > largest(f))
    return sign | top << f.mantissa | (f.has_infinity ? 0 : ones - 1); /* infinity, or e4m3's largest */
  unsigned units = (unsigned)ldexpf(rounded, -step);
  if (step == 1 - f.bias - f.mantissa) return sign | units; /* the exponent field grows out of the sum */
  return sign | (unsigned)(((step + f.mantissa + f.bias) << f.mantissa) + (units - (1u << f.mantissa)));
}

/* Decoded values of the 16-bit types, made when first needed. */
static float *table_of(int type) {
  static float *tables[TYPES];
  float *table = __atomic_load_n(&tables[type], __ATOMIC_ACQUIRE);
  if (table) return table;
  unsigned count = 1u << (8 * type_size(type));
  table = malloc(count * sizeof *table);
  if (!table) abort();
  for (unsigned i = 0; i < count; i++) table[i] = decode(i, formats[type]);
  __atomic_store_n(&tables[type], table, __ATOMIC_RELEASE); /* made twice at worst */
  return table;
}

/* ---- one element ------------------------------------------------------ */

#define COMBINE(T)                                                             \
  static T combine_##T(T a, T b, int how) {                                    \
    return how == PROD ? a * b : how == MAX ? (a > b ? a : b)                  \
         : how == MIN ? (a < b ? a : b) : a + b;                               \
  }
COMBINE(int8_t) COMBINE(uint8_t) COMBINE(int32_t) COMBINE(uint32_t)
COMBINE(int64_t) COMBINE(uint64_t) COMBINE(float) COMBINE(double)

#define APPLY(T)                                                               \
  {                                                                            \
    T *a = into;                                                               \
    const T *b = from;                                                         \
    for (size_t i = 0; i < count; i++) a[i] = combine_##T(a[i], b[i], reduction); \
    return;                                                                    \
  }

static void apply_small(void *into, const void *from, size_t count, int type, int reduction) {
  const float *table = table_of(type);
  struct format f = formats[type];
  uint16_t *wide = into;
  uint8_t *narrow = into;
  const uint16_t *from_wide = from;
  const uint8_t *from_narrow = from;
  for (size_t i = 0; i < count; i++)
    if (type_size(type) == 2) wide[i] = encode(combine_float(table[wide[i]], table[from_wide[i]], reduction), f);
    else narrow[i] = encode(combine_float(table[narrow[i]], table[from_narrow[i]], reduction), f);
}

void reduction_apply(void *into, const void *from, size_t count, int type, int reduction) {
  switch (type) {
  case INT8: APPLY(int8_t)
  case UINT8: APPLY(uint8_t)
  case INT32: APPLY(int32_t)
  case UINT32: APPLY(uint32_t)
  case INT64: APPLY(int64_t)
  case UINT64: APPLY(uint64_t)
  case FLOAT: APPLY(float)
  case DOUBLE: APPLY(double)
  default: apply_small(into, from, count, type, reduction);
  }
}

/* ---- scaling ---------------------------------------------------------- */

#define SCALE(T)                                                               \
  {                                                                            \
    T *a = data;                                                               \
    for (size_t i = 0; i < count; i++) a[i] = (T)(a[i] * (T)factor);           \
    return;                                                                    \
  }
#define DIVIDE(T)                                                              \
  {                                                                            \
    T *a = data;                                                               \
    for (size_t i = 0; i < count; i++) a[i] = (T)(a[i] / (T)ranks);            \
    return;                                                                    \
  }

static void scale_small(void *data, size_t count, int type, float factor) {
  const float *table = table_of(type);
  uint16_t *wide = data;
  uint8_t *narrow = data;
  for (size_t i = 0; i < count; i++)
    if (type_size(type) == 2) wide[i] = encode(table[wide[i]] * factor, formats[type]);
    else narrow[i] = encode(table[narrow[i]] * factor, formats[type]);
}

void reduction_scale(void *data, size_t count, int type, double factor) {
  switch (type) {
  case INT8: SCALE(int8_t)
  case UINT8: SCALE(uint8_t)
  case INT32: SCALE(int32_t)
  case UINT32: SCALE(uint32_t)
  case INT64: SCALE(int64_t)
  case UINT64: SCALE(uint64_t)
  case FLOAT: SCALE(float)
  case DOUBLE: SCALE(double)
  default: scale_small(data, count, type, factor);
  }
}

void reduction_average(void *data, size_t count, int type, int ranks) {
  switch (type) {
  case INT8: DIVIDE(int8_t)
  case UINT8: DIVIDE(uint8_t)
  case INT32: DIVIDE(int32_t)
  case UINT32: DIVIDE(uint32_t)
  case INT64: DIVIDE(int64_t)
  case UINT64: DIVIDE(uint64_t)
  default: reduction_scale(data, count, type, 1.0 / ranks);
  }
}

double reduction_scalar(const void *scalar, int type) {
  switch (type) {
  case INT8: return *(const int8_t *)scalar;
  case UINT8: return *(const uint8_t *)scalar;
  case INT32: return *(const int32_t *)scalar;
  case UINT32: return *(const uint32_t *)scalar;
  case INT64: return *(const int64_t *)scalar;
  case UINT64: return *(const uint64_t *)scalar;
  case FLOAT: return *(const float *)scalar;
  case DOUBLE: return *(const double *)scalar;
  case HALF: case BFLOAT16: return table_of(type)[*(const uint16_t *)scalar];
  default: return table_of(type)[*(const uint8_t *)scalar];
  }
}
