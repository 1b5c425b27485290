/* Which instruction sets the processor has, and which one is used. */
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#elif COMPILED && defined(__linux__)
#include <sys/auxv.h>
#elif COMPILED && defined(__APPLE__)
#include <sys/sysctl.h>
#elif COMPILED && defined(_WIN32)
#include <windows.h>
#endif
#if AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

Path path = NO_PATH;

/* The checksum of the sources that were compiled; see setup.py. */
EXPORT int sources(void) { return (int)SOURCES; }

/* What setuptools exports on Windows; cpu.py loads the library by ctypes, not as a module. */
EXPORT void *PyInit__kernels(void) { return NULL; }

int amx_permitted(unsigned kind) {
#if AMX
    enum { TILES = 1 << 24, ASK = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILES && d & kind && !syscall(SYS_arch_prctl, ASK, TILE_DATA);
#else
    (void)kind;
    return 0;
#endif
}

/* Whether the library was compiled for an instruction set, and the processor has it. */
EXPORT int has_path(int wanted) {
#if defined(__x86_64__) && defined(__GNUC__)
    enum { FMA_AND_F16C = 1 << 12 | 1 << 29, VNNI = 1 << 4, INT8 = 1 << 25 };
    unsigned a = 0, b, c = 0, d;
    if (wanted < AVX2 || wanted > AMX_INT8) return 0;
    if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &a, &b, &c, &d) || (c & FMA_AND_F16C) != FMA_AND_F16C) return 0;
    if (wanted == AVX2) return 1;
    if (wanted == AVX_VNNI) {
#if AVX_VNNI_COMPILED
        return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & VNNI;
#else
        return 0;
#endif
    }
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return 0;
    if (wanted == AVX512) return 1;
    return __builtin_cpu_supports("avx512vnni") && (wanted == AVX512_VNNI || amx_permitted(INT8));
#elif COMPILED
    if (wanted != DOTPROD && wanted != I8MM) return wanted == NEON; /* which every 64-bit ARM has */
#if !DOTPROD_COMPILED
    return 0;
#elif defined(__linux__)
    enum { ASIMDDP = 1 << 20, SECOND_I8MM = 1 << 13 };
    return (getauxval(AT_HWCAP) & ASIMDDP) && (wanted == DOTPROD || getauxval(AT_HWCAP2) & SECOND_I8MM);
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    const char *name = wanted == DOTPROD ? "hw.optional.arm.FEAT_DotProd" : "hw.optional.arm.FEAT_I8MM";
    return !sysctlbyname(name, &found, &size, NULL, 0) && found;
#elif defined(_WIN32)
    enum { DOT_PRODUCTS = 43 }; /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE; older systems do not report i8mm */
    return wanted == DOTPROD && IsProcessorFeaturePresent(DOT_PRODUCTS);
#else
    return 0;
#endif
#else
    (void)wanted;
    return 0;
#endif
}

/* Use an instruction set that the processor has, from now on. */
EXPORT void use_path(int wanted) { path = (Path)wanted; }
