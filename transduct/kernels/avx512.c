/* The kernels with AVX512: 16 lanes are one register. int8 products also with AVX512-VNNI and AMX. */
#include "kernels.h"

#if defined(__x86_64__) && COMPILED
#define KERNEL(name) name##_avx512
#define WITH_AVX512 1
#include "wide.h"

#include "products.c"
#include "search.c"
#include "layers.c"
#include "running.c"
#include "training.c"
#endif
