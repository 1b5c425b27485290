/* What the kernels share. They are the few loops on a CPU that PyTorch has no kernel for. Of decoding: products of 8-bit
 * integers whose activations have a step for each row (kernels_products.c), what a search goes on with
 * (kernels_search.c), and attention of a single query a row and whole encoders and decoders, of which a step is otherwise
 * nothing but calls (kernels_layers.c). Of training: what a step does between its products (kernels_training.c). And how
 * cores share them (kernels_threads.c).
 *
 * functional/kernels.py and functional/training_kernels.py call them; what they compute is said by the formulas in
 * functional/, by the layers in blocks/transformer.py and by decoding/search.py, which stand in where these files are not
 * compiled or the processor has no AVX512-VNNI.
 *
 * Let R be rows, D the width that is read, F the width that is written, V the vocabulary, LANES the numbers of a vector.
 */
#ifndef TRANSDUCT_KERNELS_H
#define TRANSDUCT_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("protected"))) /* others may have functions of these names */

#if defined(__x86_64__) && defined(__GNUC__)
#define COMPILED 1
#include <immintrin.h>

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define UNROLLED _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline)) FAST
enum { LANES = 16 };

/* The first of so many lanes. */
INLINE __mmask16 lanes(int64_t count) { return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

/* exp(x), to two units in the last place: 2^n times a polynomial; that of -87 for what is less. (Of two numbers one of
 * which is NaN, the second is the larger: x comes second, so that NaN stays.) */
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

/* A linear layer: (D, F) packed, its bias or NULL, and if it is of 8-bit integers a step for each output. `next` is the
 * packed matrix that is read after this one, or NULL if that is not known: its start is fetched into the cache early. */
typedef struct {
    const void *packed;
    const float *steps, *bias;
    int64_t d, f;
    const void *next;
} Linear;

/* work(job, part) for each of `count` parts, once, by this thread and as many others as are free, up to `threads` in all. */
EXPORT void in_parts(void (*work)(const void *job, int64_t part), const void *job, int64_t count, int64_t threads);

/* The same between operations of PyTorch's, by the threads of theirs where that is known how. */
EXPORT void beside_torch(void (*work)(const void *job, int64_t part), const void *job, int64_t count, int64_t threads);

/* A search, and what it goes on with.
 *
 * The rows hold `tokens` (R, t), in a beam written by `slots` (R, t), and are worth `scores` (B, beam); the model gives
 * those of some sources `logits` (rows, V), of which `normaliser` (rows,) is the logarithm of the sum of exponentials. Of
 * the likeliest continuations of each source the first are told by their scores `best`, rows of the source `origin` and
 * tokens `chosen`, (B, beam) each, with `ends` of all sources that end an output; the first of all that do not by their
 * scores `live`, which of all `rows` they go on from and their tokens `newest`. Where rows hold as many tokens as their
 * source has `limits` (B), if there are any, nothing but the end is possible. `never` are the tokens that do not come,
 * `forbidden` is how many. Where the search knows few tokens only, `names` (V,) are their numbers in the decoder's table,
 * `named` (R,) is room for those of the newest, and `others` (B, V) are those that a source does not know: no
 * probability is theirs. `span` and `together` are said where they are used. */
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

/* As kernels_search.c has them. */
EXPORT FAST void log_normaliser(const float *logits, int64_t r, int64_t v, float *out);
EXPORT FAST void choose(Search *search, int64_t first, int64_t last, int64_t v, int64_t beam, int64_t length);

/* x (R, D) W^T + b. For integers `room` holds R * (D rounded up to fours + 4) bytes. */
EXPORT FAST void linear(const Linear *layer, const float *x, int64_t r, float *out, uint8_t *room,
                        int64_t threads);

#else
#define COMPILED 0
#endif
#endif
