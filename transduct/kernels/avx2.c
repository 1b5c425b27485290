/* The kernels with AVX2, FMA and F16C: 16 lanes are two registers. int8 products also with AVX-VNNI. */
#include "kernels.h"

#if defined(__x86_64__) && COMPILED
#define KERNEL(name) name##_avx2
#define WITH_AVX2 1
#include "wide.h"

#include "products.c"
#include "search.c"
#include "layers.c"
#include "running.c"
#include "training.c"
#endif
