/* The few loops of decoding on a CPU that PyTorch has no kernel for: products of 8-bit integers whose activations have a
 * step for each row, attention of a single query a row, the normaliser of the logits, what a search goes on with, and
 * whole decoders, of which a step is otherwise nothing but calls.
 * functional/kernels.py calls them; what they compute is said by the formulas in functional/quantisation.py and
 * functional/attention.py and by the layers in blocks/transformer.py, which stand in where this file is not compiled or
 * the processor has no AVX512-VNNI.
 *
 * Let R be rows, D the width that is read, F the width that is written, LANES the numbers of a vector.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define UNROLLED _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline)) FAST
enum {
    LANES = 16,
    VECTORS = 4,
    COLUMNS = LANES * VECTORS, /* of a tile; with ROWS rows its sums and weights fill the registers */
    ROWS = 6,
    OFFSET = 128, /* between signed integers and the unsigned ones that the processor multiplies with signed ones */
    STEPS = 127,
    LINE = 64,        /* bytes of the cache */
    AHEAD = 2048,     /* bytes that are fetched beforehand */
    MOST = 32,        /* rows of a source */
    SHARED = 1 << 21, /* multiplications, and a few for starting, that are worth several threads */
};

/* The first of so many lanes. */
INLINE __mmask16 lanes(int64_t count) { return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

EXPORT int supported(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

/* Bytes of 8-bit weights (F, D) as `product` reads them. */
EXPORT int64_t packed_size(int64_t f, int64_t d) {
    int64_t blocks = (f + COLUMNS - 1) / COLUMNS, fours = (d + 3) / 4;
    return blocks * COLUMNS * (fours * 4 + (int64_t)sizeof(int32_t));
}

/* COLUMNS columns side by side, a number of each at a time: (F, D) -> (F in whole blocks, D). */
EXPORT void pack_floats(const float *weight, int64_t f, int64_t d, float *packed) {
    for (int64_t first = 0; first < f; first += COLUMNS, packed += COLUMNS * d)
        for (int64_t start = 0; start < d; start += LANES)
            for (int64_t column = 0; column < COLUMNS; column++)
                for (int64_t k = start; k < d && k < start + LANES; k++)
                    packed[k * COLUMNS + column] = first + column < f ? weight[(first + column) * d + k] : 0.0f;
}

/* COLUMNS columns side by side, four numbers of each at a time, and what OFFSET adds to the sum of each. */
EXPORT void pack(const int8_t *weight, int64_t f, int64_t d, int8_t *packed) {
    int64_t blocks = (f + COLUMNS - 1) / COLUMNS, fours = (d + 3) / 4;
    int32_t *sums = (int32_t *)(packed + blocks * COLUMNS * fours * 4);
    memset(packed, 0, (size_t)packed_size(f, d));
    for (int64_t first = 0; first < f; first += COLUMNS)
        for (int64_t start = 0; start < d; start += LINE) /* a line of every column at a time: the cache holds these */
            for (int64_t column = first; column < f && column < first + COLUMNS; column++) {
                int8_t *block = packed + ((column / COLUMNS * fours + start / 4) * COLUMNS + column % COLUMNS) * 4;
                const int8_t *row = weight + column * d + start;
                int64_t count = d - start < LINE ? d - start : LINE;
                int32_t sum = 0;
                for (int64_t k = 0; k < count; k++) sum += row[k];
                sums[column] -= OFFSET * sum;
                for (int64_t k = 0; k < count; k += 4, block += COLUMNS * 4)
                    memcpy(block, row + k, (size_t)(count - k < 4 ? count - k : 4));
            }
}

/* A row in 127 steps up and down, OFFSET more; gives back what a step is worth. */
INLINE float quantise(const float *x, int64_t d, uint8_t *out) {
    __m512 largest = _mm512_set1_ps(1e-12f);
    int64_t k = 0;
    for (; k + LANES <= d; k += LANES) largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(x + k)));
    __mmask16 rest = lanes(d - k);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(rest, x + k)));
    float most = _mm512_reduce_max_ps(largest);
    __m512 scale = _mm512_set1_ps(1.0f / most * (float)STEPS); /* rounded as PyTorch rounds 127 / most */
    __m512i offset = _mm512_set1_epi32(OFFSET);
    for (k = 0; k < d; k += LANES) {
        __mmask16 held = lanes(d - k);
        __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(held, x + k), scale));
        _mm_mask_storeu_epi8(out + k, held, _mm512_cvtepi32_epi8(_mm512_add_epi32(steps, offset)));
    }
    return most / (float)STEPS;
}

/* `rows` rows times COLUMNS columns; weights that lie `ahead` bytes further on are fetched meanwhile, if any. */
INLINE void tile(const int rows, const int64_t ahead, const uint8_t *x, int64_t stride, const int8_t *block,
                 const int32_t *sums, int64_t fours, const float *scales, const float *steps, const float *bias,
                 float *out, int64_t f, int64_t columns) {
    __m512i sum[ROWS][VECTORS];
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_loadu_si512(sums + v * LANES);
    for (int64_t k = 0; k < fours; k++, block += COLUMNS * 4) {
        __m512i weights[VECTORS];
        UNROLLED
        for (int v = 0; v < VECTORS; v++) {
            weights[v] = _mm512_loadu_si512(block + v * LANES * 4);
            if (ahead) _mm_prefetch((const char *)block + ahead + v * LANES * 4, _MM_HINT_T0);
        }
        UNROLLED
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + r * stride + k * 4, sizeof four);
            __m512i numbers = _mm512_set1_epi32(four);
            UNROLLED
            for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], numbers, weights[v]);
        }
    }
    UNROLLED
    for (int v = 0; v < VECTORS; v++) {
        if (v * LANES >= columns) break;
        int64_t left = columns - v * LANES;
        __mmask16 held = lanes(left);
        __m512 step = _mm512_maskz_loadu_ps(held, steps + v * LANES);
        __m512 shift = bias ? _mm512_maskz_loadu_ps(held, bias + v * LANES) : _mm512_setzero_ps();
        UNROLLED
        for (int r = 0; r < rows; r++) {
            __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][v]), step);
            product = _mm512_fmadd_ps(product, _mm512_set1_ps(scales[r]), shift);
            _mm512_mask_storeu_ps(out + r * f + v * LANES, held, product);
        }
    }
}

/* The same of float32. */
INLINE void float_tile(const int rows, const int64_t ahead, const float *x, int64_t d, const float *block,
                       const float *bias, float *out, int64_t f, int64_t columns) {
    __m512 sum[ROWS][VECTORS];
    UNROLLED
    for (int v = 0; v < VECTORS; v++) {
        __mmask16 held = columns > v * LANES ? lanes(columns - v * LANES) : 0;
        __m512 shift = bias ? _mm512_maskz_loadu_ps(held, bias + v * LANES) : _mm512_setzero_ps();
        UNROLLED
        for (int r = 0; r < rows; r++) sum[r][v] = shift;
    }
    for (int64_t k = 0; k < d; k++, block += COLUMNS) {
        __m512 weights[VECTORS];
        UNROLLED
        for (int v = 0; v < VECTORS; v++) {
            weights[v] = _mm512_loadu_ps(block + v * LANES);
            if (ahead) _mm_prefetch((const char *)(block + v * LANES) + ahead, _MM_HINT_T0);
        }
        UNROLLED
        for (int r = 0; r < rows; r++) {
            __m512 number = _mm512_set1_ps(x[r * d + k]);
            UNROLLED
            for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_fmadd_ps(number, weights[v], sum[r][v]);
        }
    }
    UNROLLED
    for (int v = 0; v < VECTORS; v++) {
        if (v * LANES >= columns) break;
        UNROLLED
        for (int r = 0; r < rows; r++)
            _mm512_mask_storeu_ps(out + r * f + v * LANES, lanes(columns - v * LANES), sum[r][v]);
    }
}

/* A linear layer: (D, F) packed, its bias or NULL, and if it is of 8-bit integers a step for each output. */
typedef struct {
    const void *packed;
    const float *steps, *bias;
    int64_t d, f;
} Linear;

/* The threads of PyTorch's own OpenMP: `share_threads` is told of them. A second team would fight with them for cores. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void), (*thread_count)(void);

EXPORT void share_threads(void *region, void *number, void *count) {
    parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))region;
    thread_number = (int (*)(void))number;
    thread_count = (int (*)(void))count;
}

/* A product, whose rows (R, D) are integers already if those of the layer are. */
typedef struct {
    const Linear *layer;
    const void *rows;
    int64_t r;
    float *out;
} Product;

/* Columns [first, last) of a product, counted in blocks. */
static FAST void columns_of(const Product *product, int64_t first, int64_t last) {
    const Linear *layer = product->layer;
    int integers = layer->steps != NULL;
    int64_t r = product->r, f = layer->f, fours = (layer->d + 3) / 4;
    int64_t stride = integers ? fours * 4 : layer->d * (int64_t)sizeof(float); /* bytes of a row and of a column */
    const uint8_t *rows = product->rows;
    const int8_t *packed = layer->packed;
    const int32_t *sums = (const int32_t *)(packed + (f + COLUMNS - 1) / COLUMNS * COLUMNS * stride);
    const float *scales = (const float *)(rows + r * stride);
    for (int64_t b = first; b < last; b++) {
        int64_t columns = f - b * COLUMNS < COLUMNS ? f - b * COLUMNS : COLUMNS;
        const float *shift = layer->bias ? layer->bias + b * COLUMNS : NULL;
        for (int64_t row = 0; row < r;) {
            int64_t left = r - row;
            const uint8_t *x = rows + row * stride;
            const int8_t *block = packed + b * COLUMNS * stride;
            float *out = product->out + row * f + b * COLUMNS;
#define TILE(n, ahead)                                                                                                 \
    if (integers)                                                                                                      \
        tile(n, ahead, x, stride, block, sums + b * COLUMNS, fours, scales + row, layer->steps + b * COLUMNS, shift,   \
             out, f, columns);                                                                                         \
    else float_tile(n, ahead, (const float *)x, layer->d, (const float *)block, shift, out, f, columns);               \
    row += n
            if (left >= ROWS && row) { TILE(ROWS, 0); }
            else if (left >= ROWS) { TILE(ROWS, COLUMNS * stride); } /* the next columns, for their first rows */
            else if (left >= 4) { TILE(4, AHEAD); }
            else if (left >= 2) { TILE(2, AHEAD); }
            else { TILE(1, AHEAD); }
        }
    }
}

static void share_of_product(void *data) {
    const Product *product = data;
    int64_t blocks = (product->layer->f + COLUMNS - 1) / COLUMNS, all = thread_count(), own = thread_number();
    columns_of(product, blocks * own / all, blocks * (own + 1) / all);
}

/* x (R, D) W^T + b. For integers `room` holds R * (D rounded up to fours + 4) bytes. Even for a single row several cores
 * are faster: they read more of the weights at a time. */
EXPORT FAST void linear(const Linear *layer, const float *x, int64_t r, float *out, uint8_t *room, int64_t threads) {
    int64_t d = layer->d, stride = (d + 3) / 4 * 4;
    float *scales = (float *)(room + r * stride);
    for (int64_t row = 0; row < r && layer->steps; row++) {
        memset(room + row * stride + d, 0, (size_t)(stride - d));
        scales[row] = quantise(x + row * d, d, room + row * stride);
    }
    Product product = {layer, layer->steps ? (const void *)room : x, r, out};
    int shared = threads > 1 && parallel && (r + 3) * layer->f * d >= SHARED;
    if (shared) parallel(share_of_product, &product, (unsigned)threads, 0);
    else columns_of(&product, 0, (layer->f + COLUMNS - 1) / COLUMNS);
}

/* exp(x) for x <= 0, to two units in the last place: 2^n times a polynomial. */
INLINE __m512 exponential(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
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

/* log sum exp of each row of (R, V). */
EXPORT FAST void log_normaliser(const float *logits, int64_t r, int64_t v, float *out) {
    for (int64_t row = 0; row < r; row++, logits += v) {
        __m512 largest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
        int64_t k = 0;
        for (; k + LANES <= v; k += LANES) largest = _mm512_max_ps(largest, _mm512_loadu_ps(logits + k));
        __mmask16 rest = lanes(v - k);
        largest = _mm512_mask_max_ps(largest, rest, largest, _mm512_maskz_loadu_ps(rest, logits + k));
        float most = _mm512_reduce_max_ps(largest);
        if (isinf(most)) {
            out[row] = most;
            continue;
        }
        __m512 shift = _mm512_set1_ps(most);
        for (k = 0; k + LANES <= v; k += LANES)
            total = _mm512_add_ps(total, exponential(_mm512_sub_ps(_mm512_loadu_ps(logits + k), shift)));
        __m512 last = exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(rest, logits + k), shift));
        total = _mm512_mask_add_ps(total, rest, total, last);
        out[row] = most + logf(_mm512_reduce_add_ps(total));
    }
}

/* Attention of one query (K) over so many keys and values, which stand `key_step` and `value_step` numbers apart, each with
 * a choice of slots, the first if NULL. */
INLINE void attend(const float *q, const float *keys, const float *values, int64_t key_step, int64_t value_step,
                   const int32_t *slot, int64_t seen, int64_t dk, int64_t dv, float *weights, float *out) {
    float scale = 1.0f / sqrtf((float)dk), largest = -INFINITY;
    for (int64_t t = 0; t < seen; t++) {
        const float *key = keys + t * key_step + (slot ? slot[t] * dk : 0);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t k = 0; k < dk; k += LANES) {
            __mmask16 held = lanes(dk - k);
            sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(held, q + k), _mm512_maskz_loadu_ps(held, key + k), sum);
        }
        weights[t] = _mm512_reduce_add_ps(sum) * scale;
        largest = weights[t] > largest ? weights[t] : largest;
    }
    __m512 total = _mm512_setzero_ps(), shift = _mm512_set1_ps(largest);
    for (int64_t t = 0; t < seen; t += LANES) {
        __mmask16 held = lanes(seen - t);
        __m512 each = exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(held, weights + t), shift));
        total = _mm512_mask_add_ps(total, held, total, each);
        _mm512_mask_storeu_ps(weights + t, held, each);
    }
    float share = seen ? 1.0f / _mm512_reduce_add_ps(total) : 0.0f;
    for (int64_t k = 0; k < dv; k += LANES) {
        __mmask16 held = lanes(dv - k);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t t = 0; t < seen; t++) {
            const float *value = values + t * value_step + (slot ? slot[t] * dv : 0);
            sum = _mm512_fmadd_ps(_mm512_set1_ps(weights[t]), _mm512_maskz_loadu_ps(held, value + k), sum);
        }
        _mm512_mask_storeu_ps(out + k, held, _mm512_mul_ps(sum, _mm512_set1_ps(share)));
    }
}

/* The same of many rows. Row r of source r / beam has heads (H, K) at `query + r * query_stride`; each of G heads of its
 * keys and values serves H / G of them. Time t of source s and group g stands at ((s * G + g) * room + t) * width + slot,
 * counted in vectors of K or V numbers: `slots` (R, times) says which of `width` slots. `times` are seen, or as many as
 * `lengths` says of each source. */
static FAST void attend_rows(const float *query, int64_t query_stride, const float *keys, const float *values, int64_t r,
                             int64_t beam, int64_t heads, int64_t groups, int64_t dk, int64_t dv, int64_t room,
                             int64_t width, int64_t times, const int64_t *lengths, const int32_t *slots,
                             float *weights, float *out) {
    for (int64_t row = 0; row < r; row++) {
        int64_t source = row / beam, seen = lengths ? lengths[source] : times;
        const int32_t *slot = slots ? slots + row * times : NULL;
        for (int64_t head = 0; head < heads; head++) {
            int64_t first = (source * groups + head / (heads / groups)) * room * width;
            attend(query + row * query_stride + head * dk, keys + first * dk, values + first * dv, width * dk, width * dv,
                   slot, seen, dk, dv, weights, out + (row * heads + head) * dv);
        }
    }
}

EXPORT FAST void rows_attention(const float *query, int64_t query_stride, const float *keys, const float *values,
                                int64_t r, int64_t beam, int64_t heads, int64_t groups, int64_t dk, int64_t dv,
                                int64_t room, int64_t width, int64_t times, const int64_t *lengths,
                                const int32_t *slots, float *weights, float *out) {
    attend_rows(query, query_stride, keys, values, r, beam, heads, groups, dk, dv, room, width, times, lengths, slots,
                weights, out);
}

/* Layer normalisation, or that by the root mean square where there is no shift. */
typedef struct {
    const float *scale, *shift;
    double epsilon;
} Norm;

INLINE void normalise(const Norm *norm, const float *x, int64_t r, int64_t d, float *out) {
    for (int64_t row = 0; row < r; row++, x += d, out += d) {
        __m512 total = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        float mean = 0.0f;
        if (norm->shift) {
            for (int64_t k = 0; k < d; k += LANES) total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(lanes(d - k), x + k));
            mean = _mm512_reduce_add_ps(total) / (float)d;
        }
        for (int64_t k = 0; k < d; k += LANES) {
            __mmask16 held = lanes(d - k);
            __m512 apart = _mm512_maskz_sub_ps(held, _mm512_maskz_loadu_ps(held, x + k), _mm512_set1_ps(mean));
            squares = _mm512_fmadd_ps(apart, apart, squares);
        }
        float spread = _mm512_reduce_add_ps(squares) / (float)d + (float)norm->epsilon;
        __m512 each = _mm512_set1_ps(1.0f / sqrtf(spread));
        for (int64_t k = 0; k < d; k += LANES) {
            __mmask16 held = lanes(d - k);
            __m512 y = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(held, x + k), _mm512_set1_ps(mean)), each);
            __m512 shift = norm->shift ? _mm512_maskz_loadu_ps(held, norm->shift + k) : _mm512_setzero_ps();
            _mm512_mask_storeu_ps(out + k, held, _mm512_fmadd_ps(y, _mm512_maskz_loadu_ps(held, norm->scale + k), shift));
        }
    }
}

/* A layer in use, as blocks/transformer.py has it; without `query` and `recall`, and its second norm, one of an encoder. */
typedef struct {
    int64_t d, heads, groups, dk, dv, pre;
    Norm norms[3];
    Linear joint, output, query, recall, inner, outer;
} Layer;

/* What a sublayer is given. */
INLINE const float *given(const Layer *layer, int number, const float *x, int64_t r, float *normed) {
    if (!layer->pre) return x;
    normalise(&layer->norms[number], x, r, layer->d, normed);
    return normed;
}

/* The residual connection around a sublayer that gave `y`. */
INLINE void around(const Layer *layer, int number, float *x, const float *y, int64_t r) {
    for (int64_t k = 0; k < r * layer->d; k++) x[k] += y[k];
    if (!layer->pre) normalise(&layer->norms[number], x, r, layer->d, x);
}

INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Where a layer works on (R, D): rows that are normalised, wide ones, what attention saw, the weights of one query, and
 * rows of integers. */
typedef struct {
    float *normed, *wide, *seen, *weights;
    uint8_t *bytes;
    int64_t threads;
} Room;

/* How many numbers of 4 bytes a layer wants for its work over so many keys. */
EXPORT FAST int64_t layer_room(const Layer *layer, int64_t r, int64_t keys) {
    int64_t seen = layer->heads * layer->dv, width = larger(layer->d, larger(layer->joint.f, layer->inner.f));
    return r * (layer->d + width + seen + larger(width, seen) / 4 + 2) + keys;
}

static FAST Room divided(const Layer *layer, int64_t r, int64_t keys, float *room, int64_t threads) {
    int64_t width = larger(layer->d, larger(layer->joint.f, layer->inner.f));
    float *wide = room + r * layer->d, *seen = wide + r * width, *weights = seen + r * layer->heads * layer->dv;
    return (Room){room, wide, seen, weights, (uint8_t *)(weights + keys), threads};
}

static FAST void feed_forward(const Layer *layer, float *x, int64_t r, const Room *room) {
    float *wide = room->wide;
    linear(&layer->inner, given(layer, 2, x, r, room->normed), r, wide, room->bytes, room->threads);
    for (int64_t k = 0; k < r * layer->inner.f; k++) wide[k] = wide[k] > 0.0f ? wide[k] : 0.0f;
    linear(&layer->outer, wide, r, room->normed, room->bytes, room->threads);
    around(layer, 2, x, room->normed, r);
}

/* Flat sequences, x (R, D), through so many layers of an encoder, in place; `offsets` (B + 1) say where each begins. */
EXPORT FAST void encoder(const Layer *layers, int64_t count, const int64_t *offsets, int64_t sources, int64_t longest,
                         float *x, int64_t r, float *work, int64_t threads) {
    const Room room = divided(layers, r, longest, work, threads);
    for (const Layer *layer = layers; layer < layers + count; layer++) {
        int64_t dk = layer->dk, dv = layer->dv, heads = layer->heads, stride = layer->joint.f;
        linear(&layer->joint, given(layer, 0, x, r, room.normed), r, room.wide, room.bytes, threads);
        for (int64_t source = 0; source < sources; source++)
            for (int64_t row = offsets[source]; row < offsets[source + 1]; row++)
                for (int64_t head = 0; head < heads; head++) {
                    int64_t group = head / (heads / layer->groups);
                    const float *keys = room.wide + offsets[source] * stride + heads * dk;
                    attend(room.wide + row * stride + head * dk, keys + group * dk,
                           keys + layer->groups * dk + group * dv, stride, stride, NULL,
                           offsets[source + 1] - offsets[source], dk, dv, room.weights,
                           room.seen + (row * heads + head) * dv);
                }
        linear(&layer->output, room.seen, r, room.wide, room.bytes, threads);
        around(layer, 0, x, room.wide, r);
        feed_forward(layer, x, r, &room);
    }
}

/* One of the two matrices of a cross-attention times flat sequences, G heads of each token, to (B, G, longest, width). */
static FAST void heads_of(const Linear *layer, const int64_t *offsets, int64_t sources, int64_t longest, int64_t groups,
                          const float *x, float *work, int64_t threads, float *out) {
    int64_t r = offsets[sources], f = layer->f, width = f / groups;
    linear(layer, x, r, work, (uint8_t *)(work + r * f), threads);
    for (int64_t source = 0; source < sources; source++)
        for (int64_t g = 0; g < groups; g++, out += longest * width) {
            int64_t times = offsets[source + 1] - offsets[source];
            for (int64_t t = 0; t < times; t++)
                memcpy(out + t * width, work + (offsets[source] + t) * f + g * width, (size_t)width * sizeof(float));
            memset(out + times * width, 0, (size_t)((longest - times) * width) * sizeof(float));
        }
}

/* What a cross-attention remembers of flat sequences (R, D), keys and values; zero where a sequence is over. The work wants
 * R * (the larger width + D / 4 + 2) numbers. */
EXPORT FAST void remember(const Linear *key, const Linear *value, const int64_t *offsets, int64_t sources,
                          int64_t longest, int64_t groups, const float *x, float *work, int64_t threads, float *keys,
                          float *values) {
    heads_of(key, offsets, sources, longest, groups, x, work, threads, keys);
    heads_of(value, offsets, sources, longest, groups, x, work, threads, values);
}

/* What a decoder layer remembers: of what the rows of each source have written, and of the sources. */
typedef struct {
    float *keys, *values;
    const float *memory_keys, *memory_values;
} Past;

/* Where all layers of a decoder stand; as for `attend_rows`. */
typedef struct {
    int64_t room, beam, length, longest;
    const int32_t *slots;
    const int64_t *lengths;
} Place;

/* The newest token of each row, x (R, D), through a layer, in place. */
static FAST void decoder_layer(const Layer *layer, const Past *past, const Place *place, float *x, int64_t r,
                               const Room *room) {
    int64_t heads = layer->heads, groups = layer->groups, dk = layer->dk, dv = layer->dv, beam = place->beam;
    int64_t stride = layer->joint.f;

    linear(&layer->joint, given(layer, 0, x, r, room->normed), r, room->wide, room->bytes, room->threads);
    for (int64_t row = 0; row < r; row++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t cell = ((row / beam * groups + g) * place->room + place->length) * beam + row % beam;
            const float *key = room->wide + row * stride + heads * dk;
            memcpy(past->keys + cell * dk, key + g * dk, (size_t)dk * sizeof(float));
            memcpy(past->values + cell * dv, key + groups * dk + g * dv, (size_t)dv * sizeof(float));
        }
    attend_rows(room->wide, stride, past->keys, past->values, r, beam, heads, groups, dk, dv, place->room, beam,
                place->length + 1, NULL, place->slots, room->weights, room->seen);
    linear(&layer->output, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 0, x, room->wide, r);

    linear(&layer->query, given(layer, 1, x, r, room->normed), r, room->wide, room->bytes, room->threads);
    attend_rows(room->wide, layer->query.f, past->memory_keys, past->memory_values, r, beam, heads, groups, dk, dv,
                place->longest, 1, place->longest, place->lengths, NULL, room->weights, room->seen);
    linear(&layer->recall, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 1, x, room->wide, r);

    feed_forward(layer, x, r, room);
}

/* A decoder with its embedding: a table (V, D), of 8-bit integers if there are steps, times `factor`, and a vector for each
 * position or NULL; and its last norm, if there is one. */
typedef struct {
    const Layer *layers;
    int64_t count;
    const void *table;
    const float *steps, *positions;
    double factor;
    Norm last;
} Decoder;

static FAST void embed(const Decoder *decoder, const int64_t *tokens, int64_t r, int64_t position, float *x) {
    int64_t d = decoder->layers->d;
    for (int64_t row = 0; row < r; row++, x += d) {
        const float *place = decoder->positions ? decoder->positions + position * d : NULL;
        const float *numbers = (const float *)decoder->table + tokens[row] * d;
        const int8_t *integers = (const int8_t *)decoder->table + tokens[row] * d;
        for (int64_t k = 0; k < d; k++) {
            float number = decoder->steps ? (float)integers[k] * decoder->steps[tokens[row]] : numbers[k];
            x[k] = number * (float)decoder->factor + (place ? place[k] : 0.0f);
        }
    }
}

/* The newest token of each row (R,) to the logits (R, V) of the next. The work wants R * D numbers more than a layer. */
EXPORT FAST void decode(const Decoder *decoder, const Linear *output, const Past *pasts, const Place *place,
                        const int64_t *tokens, int64_t r, float *work, int64_t threads, float *logits) {
    float *x = work;
    const Room room =
        divided(decoder->layers, r, larger(place->room, place->longest), work + r * decoder->layers->d, threads);
    embed(decoder, tokens, r, place->length, x);
    for (int64_t i = 0; i < decoder->count; i++) decoder_layer(&decoder->layers[i], &pasts[i], place, x, r, &room);
    if (decoder->last.scale) normalise(&decoder->last, x, r, decoder->layers->d, x);
    linear(output, x, r, logits, room.bytes, threads);
}

/* A continuation of a row. */
typedef struct {
    double score;
    int64_t row, token;
} Candidate;

/* Into the best so far, of which there are `count`, the best first; the last of them is lost. */
INLINE void insert(Candidate *best, int64_t count, Candidate found) {
    int64_t place = count - 1;
    for (; place > 0 && best[place - 1].score < found.score; place--) best[place] = best[place - 1];
    best[place] = found;
}

/* The likeliest continuations of each source: rows r of source r / beam have logits (R, V), their normalisers, and in
 * `scores` (B, beam) what the tokens before are worth. Twice as many as rows are looked at. The first half of them may hold
 * an `end`: their scores, rows of the source and tokens go to `best`, `origin` and `tokens` (B, beam) each. The first of
 * all that are no end go on: their scores go to `live`, which rows they are of to `rows` and their tokens to `newest`,
 * (B, beam) each. What is impossible is not looked at: where too little is possible scores of minus infinity come last.
 * Equally likely ones come in the order of rows and tokens. Gives back how many ends there are. */
EXPORT FAST int64_t choose(const float *logits, int64_t r, int64_t v, int64_t beam, const float *normaliser,
                           const double *scores, int64_t end, double *best, double *live, int64_t *origin,
                           int64_t *tokens, int64_t *rows, int64_t *newest) {
    Candidate found[2 * MOST];
    int64_t count = 2 * beam;
    int64_t ends = 0;
    for (int64_t source = 0; source < r / beam; source++) {
        for (int64_t i = 0; i < count; i++) found[i] = (Candidate){-INFINITY, 0, 0};
        for (int64_t row = 0; row < beam; row++) {
            const float *x = logits + (source * beam + row) * v;
            double before = scores[source * beam + row], mass = normaliser[source * beam + row];
            if (before == -INFINITY) continue;
            float least = -INFINITY; /* a logit that is no larger makes no better continuation */
            if (row && found[count - 1].score > -INFINITY)
                least = nextafterf((float)(found[count - 1].score - before + mass), -INFINITY);
            for (int64_t k = 0; k < v; k += LANES) {
                __m512 each = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), lanes(v - k), x + k);
                uint32_t larger = _mm512_cmp_ps_mask(each, _mm512_set1_ps(least), _CMP_GT_OQ);
                for (; larger; larger &= larger - 1) {
                    int64_t token = k + __builtin_ctz(larger);
                    double score = before + ((double)x[token] - mass);
                    if (!(score > found[count - 1].score)) continue;
                    insert(found, count, (Candidate){score, row, token});
                    if (found[count - 1].score == -INFINITY) continue;
                    least = nextafterf((float)(found[count - 1].score - before + mass), -INFINITY);
                }
            }
        }
        int64_t going = 0;
        for (int64_t i = 0; i < count; i++) {
            int ended = found[i].token == end && found[i].score > -INFINITY;
            if (i < beam) {
                *best++ = found[i].score, *origin++ = found[i].row, *tokens++ = found[i].token;
                ends += ended;
            }
            if (ended || going == beam) continue;
            *live++ = found[i].score, *rows++ = source * beam + found[i].row, *newest++ = found[i].token;
            going++;
        }
    }
    return ends;
}

#else

EXPORT int supported(void) { return 0; }

#endif
