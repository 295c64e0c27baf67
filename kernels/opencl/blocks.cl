// Elements of a block format, of the formulas of kernels/math/blocks. T: as dtypes are named; Block: the struct
#define OF(T, WHAT) JOIN(JOIN(WHAT, _), T)
#define code_of(T, p, i) JOIN(code_, T)(p, i)
#define scale_of(T, p, i) JOIN(scale_, T)(p, i)
#define min_of(T, p, i) JOIN(min_, T)(p, i)
#define no_min(block, group) 0.0f

#define QENG_FORMAT(T, Block, ELEMENTS, GROUP, MIN)                                                           \
  static inline int code_##T(__global const void* p, long i) {                                                \
    return code((__global const Block*)p + i / ELEMENTS, (int)(i % ELEMENTS));                                \
  }                                                                                                           \
  static inline float scale_##T(__global const void* p, long i) {                                             \
    return scale((__global const Block*)p + i / ELEMENTS, (int)(i % ELEMENTS) / GROUP);                       \
  }                                                                                                           \
  static inline float min_##T(__global const void* p, long i) {                                               \
    return MIN((__global const Block*)p + i / ELEMENTS, (int)(i % ELEMENTS) / GROUP);                         \
  }                                                                                                           \
  static inline float load_##T(__global const void* p, long i) {                                              \
    return times_minus(scale_##T(p, i), (float)code_##T(p, i), min_##T(p, i));                                \
  }                                                                                                           \
  static inline void take_##T(__global const void* p, long i, long count, __local float* to, int pitch) {     \
    const float d = count > 0 ? scale_##T(p, i) : 0, least = count > 0 ? min_##T(p, i) : 0;                   \
    for (int u = 0; u < RUN; ++u)                                                                             \
      to[u * pitch] = u < count ? times_minus(d, (float)code_##T(p, i + u), least) : 0.0f;                    \
  }
