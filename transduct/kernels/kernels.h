/* Declarations shared by the CPU kernels, the few loops for which PyTorch has no kernel.
 *
 *     products.c  products of a few rows with a constant packed matrix, int8 or float32
 *     floats.c    float32 products of many rows
 *     layers.c    attention of one query per row; whole encoders and decoder steps, which save Python's calls
 *     search.c    log-normalisers and the choice of continuations
 *     training.c  the operations of a training step besides its matrix products
 *     threads.c   threads that share the work
 *
 * They are called from kernels/cpu.py and kernels/cpu_training.py. The formulas in functional/, the layers
 * in blocks/transformer.py and decoding/search.py define what is computed and serve as the fallback where these files are
 * not compiled or the processor lacks AVX512-VNNI.
 *
 * Let R be rows, D the input width, F the output width, V the vocabulary, LANES the numbers in a vector.
 */
#ifndef TRANSDUCT_KERNELS_H
#define TRANSDUCT_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("protected"))) /* binds here even if another library exports the name */

#if defined(__x86_64__) && defined(__GNUC__)
#define COMPILED 1
#include <immintrin.h>

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define UNROLLED _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline)) FAST
enum { LANES = 16 };

#if defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define AMX 1 /* compile for AMX too, which not every processor has */

/* Whether the processor has AMX for a kind of numbers (a bit of CPUID) and Linux permits its use. */
EXPORT int amx_permitted(unsigned kind);

/* Configure the tile registers, of 64 bytes per row: five of `rows` rows for sums and x, three of LANES for weights. */
EXPORT void configure_tiles(uint8_t rows);
#endif

/* The mask of the first `count` lanes, at most all. */
INLINE __mmask16 lanes(int64_t count) { return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

/* exp(x) to two units in the last place, as 2^n times a polynomial; exp(-87) below -87. NaN stays NaN: if an operand is
 * NaN, _mm512_max_ps returns the second one, which is x. */
INLINE __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 rest = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

/* A linear layer: a packed matrix (D, F), int8 with `steps` (F,) or float32 with NULL, and a bias (F,) or NULL. `next` is
 * the packed matrix that is read after this one, whose start is prefetched; NULL if unknown. */
typedef struct {
    const void *packed;
    const float *steps, *bias;
    int64_t d, f;
    const void *next;
} Linear;

/* Run work(job, part) once for each of `count` parts, on this thread and on idle ones, up to `threads` in all. */
EXPORT void in_parts(void (*work)(const void *job, int64_t part), const void *job, int64_t count, int64_t threads);

/* The same between PyTorch's operations: on PyTorch's own threads if its OpenMP runtime is known. */
EXPORT void beside_torch(void (*work)(const void *job, int64_t part), const void *job, int64_t count, int64_t threads);

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

/* Defined in search.c. */
EXPORT FAST void log_normaliser(const float *logits, int64_t r, int64_t v, float *out);
EXPORT FAST void choose(Search *search, int64_t first, int64_t last, int64_t v, int64_t beam, int64_t length);

/* x (R, D) W^T + b -> (R, F). For int8, `room` holds R * (D rounded up to a multiple of 4, + 4) bytes. */
EXPORT FAST void linear(const Linear *layer, const float *x, int64_t r, float *out, uint8_t *room,
                        int64_t threads);

#else
#define COMPILED 0
#endif
#endif
