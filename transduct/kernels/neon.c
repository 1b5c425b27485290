/* The kernels with NEON: 16 lanes are four registers. int8 products also with dotprod and i8mm. */
#include "kernels.h"

#if defined(__aarch64__) && COMPILED
#define KERNEL(name) name##_neon
#define WITH_NEON 1
#include "wide.h"

#include "products.c"
#include "search.c"
#include "layers.c"
#include "running.c"
#include "training.c"
#endif
