/* Which instruction sets the processor has, and which one is used. */
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#elif COMPILED && defined(__linux__)
#include <sys/auxv.h>
#elif COMPILED && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

Path path = NO_PATH;

/* The checksum of the sources that were compiled; see setup.py. */
EXPORT int sources(void) { return (int)SOURCES; }

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
#else
    (void)wanted;
    return 0;
#endif
}

/* Use an instruction set that the processor has, from now on. */
EXPORT void use_path(int wanted) { path = (Path)wanted; }
