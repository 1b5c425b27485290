/* Declarations shared by the CPU kernels, the few loops for which PyTorch has no kernel.
 *
 *     processor.c   which instruction sets the processor has, and which one is used
 *     threads.c     threads that share the work
 *     floats.c      float32 products of many rows, with AMX
 *
 * These are written on 16 lanes (wide.h) and compiled once for each instruction set, by avx2.c, avx512.c and neon.c:
 *
 *     products.c    products of a few rows with a constant packed matrix, int8 or float32; tile.h is their inner loop
 *     layers.c      attention of one query per row; whole encoders and decoder steps, which save Python's calls
 *     running.c     steps of a batch that sources join and leave, each at a position of its own
 *     search.c      log-normalisers and the choice of continuations
 *     training.c    the operations of a training step besides its matrix products
 *
 * All instruction sets give the same bits. Integer sums are exact. Sums of floats have one order: 16 lanes, then a halving
 * tree. The build allows no contraction, and no function of the C library takes part.
 *
 * They are called from kernels/cpu.py and kernels/cpu_training.py. The formulas in functional/, the layers
 * in blocks/transformer.py and decoding/search.py define what is computed and serve as the fallback where these files are
 * not compiled or the processor has none of the instruction sets.
 *
 * Let R be rows, D the input width, F the output width, V the vocabulary, LANES the numbers in a vector.
 */
#ifndef TRANSDUCT_KERNELS_H
#define TRANSDUCT_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__ELF__)
#define EXPORT __attribute__((visibility("protected"))) /* binds here even if another library exports the name */
#elif defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#if defined(_WIN32)
#define INTERNAL
#else
#define INTERNAL __attribute__((visibility("hidden"))) /* for the other files of this library only */
#endif

enum { LANES = 16 };

/* The instruction sets, in the order of PATHS in kernels/cpu.py. Those of one processor family go from slow to fast. */
typedef enum { NO_PATH = -1, AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AMX_INT8, NEON, DOTPROD, I8MM } Path;

/* The instruction set in use. It decides the layout of int8 matrices. */
extern INTERNAL Path path;

/* Whether the processor has AMX for a kind of numbers (a bit of CPUID) and the system permits its use. */
INTERNAL int amx_permitted(unsigned kind);

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__aarch64__))
#define COMPILED 1
#define UNROLLED _Pragma("GCC unroll 8")
#else
#define COMPILED 0
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define AVX512_TARGET "avx512f,avx512bw,avx512vl,avx512dq,fma"
#if __GNUC__ >= 11 || __clang_major__ >= 12
#define AVX_VNNI_COMPILED 1
#if defined(__linux__)
#define AMX 1 /* compile for AMX too, which not every processor has */
#define TILED __attribute__((target(AVX512_TARGET ",avx512vnni,amx-tile,amx-int8")))

/* Configure the tile registers, of 64 bytes per row: five of `rows` rows for sums and x, three of LANES for weights. */
static inline TILED void configure_tiles(uint8_t rows) {
    const struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {rows, rows, rows, rows, rows, LANES, LANES, LANES}};
    __asm__ volatile("" ::"m"(shape) : "memory"); /* GCC's intrinsic does not declare that it reads `shape` */
    _tile_loadconfig(&shape);
}
#endif
#endif

/* For a thread that waits, and the floating-point mode: whether denormals are zero. */
static inline void relax(void) { _mm_pause(); }
static inline uint64_t floats_mode(void) { return _mm_getcsr(); }
static inline void set_floats_mode(uint64_t mode) { _mm_setcsr((unsigned)mode); }
#elif COMPILED
#include <arm_neon.h>
#if __GNUC__ >= 10 || __clang_major__ >= 16
#define DOTPROD_COMPILED 1 /* and i8mm */
#endif

static inline void relax(void) { __asm__ volatile("yield"); }
static inline uint64_t floats_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void set_floats_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode)); }
#endif

/* A linear layer: a packed matrix (D, F), int8 with `steps` (F,) or float32 with NULL, and a bias (F,) or NULL. `next` is
 * the packed matrix that is read after this one, whose start is prefetched; NULL if unknown. */
typedef struct {
    const void *packed;
    const float *steps, *bias;
    int64_t d, f;
    const void *next;
} Linear;

/* Run work(job, part) once for each of `count` parts, on this thread and on idle ones, up to `threads` in all. */
INTERNAL void in_parts(void (*work)(const void *job, int64_t part), const void *job, int64_t count, int64_t threads);

/* The same between PyTorch's operations: on PyTorch's own threads if its OpenMP runtime is known. */
INTERNAL void beside_torch(void (*work)(const void *job, int64_t part), const void *job, int64_t count, int64_t threads);

/* A search: its rows, their constraints, and the best continuations of each source.
 *
 * Rows have `tokens` (R, t), the `slots` (R, t) of their keys and values in the caches of a beam, and `scores` (B, beam).
 * For some sources at a time there are `logits` (rows, V) and their log-sum-exp, `normaliser` (rows,).
 *
 * A row that has reached the limit of its source in `limits` (B,), or NULL, may only continue with `end`. `never` lists the
 * `forbidden` tokens that may not occur. With a shortlist, `names` (V,) are the ids of its tokens in the decoder's table,
 * `named` (R,) is scratch space for those of the newest tokens, and `others` (B, V) marks the tokens that a source
 * excludes, which get no probability.
 *
 * Results are (B, beam): `best`, `origin` and `chosen` are the scores, rows within the source and tokens of the best
 * continuations, and `ends` counts the ends among them, over all sources; `live`, `rows` and `newest` are the scores, rows
 * among all R and tokens of the best that do not end.
 *
 * For `span` and `together` see `ahead`. */
typedef struct {
    int64_t end, ends, forbidden, span, together;
    const int64_t *never, *limits, *names;
    const uint8_t *others;
    int64_t *named;
    int32_t *tokens, *slots;
    double *scores;
    float *logits, *normaliser;
    double *best, *live;
    int64_t *origin, *chosen, *rows, *newest;
} Search;

/* The natural logarithm in double precision, rounded once: with x = 2^n m and s = (m - 1) / (m + 1), it is n log 2 +
 * 2 (s + s^3 / 3 + s^5 / 5 + ...). The C library's `logf` differs between systems. */
static inline float logarithm(float x) {
    enum { TERMS = 11 };
    int32_t bits, power;
    if (!(x > 0.0f)) return x == 0.0f ? -INFINITY : NAN;
    if (x > 3.40282347e38f) return x;
    double number = x; /* where even the smallest float is normal */
    uint64_t wide;
    memcpy(&wide, &number, sizeof wide);
    bits = (int32_t)(wide >> 52) - 1023;
    wide = (wide & 0xfffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&number, &wide, sizeof number);
    power = number > 1.4142135623730951; /* so that m is near 1 */
    if (power) number *= 0.5;
    double s = (number - 1.0) / (number + 1.0), square = s * s, sum = 0.0;
    for (int term = TERMS; term >= 0; term--) sum = sum * square + 1.0 / (2 * term + 1);
    return (float)((double)(bits + power) * 0.6931471805599453 + 2.0 * s * sum);
}

#endif
