/* The operations of a CPU training step besides its matrix products: attention over short flat sequences, rotary positions,
 * dropout, and the losses of rows of logits. PyTorch's own operations take many passes over memory for each.
 *
 * Tensors are float32 or, if `narrow`, bfloat16; all sums are float32. Every result has one writer and a fixed order of
 * summation, so the bits do not depend on the number of threads.
 */
#include "kernels.h"

#if COMPILED

enum {
    BLOCK = 4,       /* rows of a product that share each load */
    DRAWS = 128,     /* 16-bit random numbers that are drawn together */
    PIECE = 1 << 14, /* elements in a part of dropout */
    ROWS = 8,        /* rows of logits in a part */
};

/* Load a vector as float32. */
INLINE __m512 load(const void *x, int64_t place, __mmask16 held, int64_t narrow) {
    if (!narrow) return _mm512_maskz_loadu_ps(held, (const float *)x + place);
    __m256i half = _mm256_maskz_loadu_epi16(held, (const uint16_t *)x + place);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Store a vector. bfloat16 is rounded as PyTorch does: to nearest, ties to even; NaN stays NaN. */
INLINE void store(void *x, int64_t place, __mmask16 held, __m512 y, int64_t narrow) {
    if (!narrow) {
        _mm512_mask_storeu_ps((float *)x + place, held, y);
        return;
    }
    __m512i bits = _mm512_castps_si512(y), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
    _mm256_mask_storeu_epi16((uint16_t *)x + place, held, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

/* Round up to whole vectors. */
INLINE int64_t whole(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* Attention of each of B sequences over its own keys, as in functional/attention.py.
 *
 * `query` (N, H, K), `key` (M, G, K), `value` (M, G, V), the output and the gradients are flat; a sequence begins at
 * `queries` and `keys` (B + 1,). Its `weights`, (H, T, S rounded up to whole vectors), begin at `cells` (B + 1,); NULL
 * if they are not kept. `back` asks for the gradients, from `grad` (N, H, V). Each of `parts` has its own scratch space in
 * `work`. */
typedef struct {
    const void *query, *key, *value, *grad;
    void *output, *grad_query, *grad_key, *grad_value;
    float *weights, *work;
    const int64_t *queries, *keys, *cells;
    int64_t back, sources, heads, groups, dk, dv, causal, narrow, most_queries, most_keys, parts;
} Attention;

/* The scratch space of a part, for one head of one sequence; rows are padded to whole vectors. */
typedef struct {
    float *query;    /* (T, K) */
    float *key;      /* (S, K) */
    float *value;    /* (S, V) */
    float *across;   /* the keys or, in the backward pass, the values, transposed: (K, S) or (V, S) */
    float *scores;   /* (T, S) or, in the backward pass, their gradient */
    float *grad;     /* the gradient of the output, (T, V) */
    float *of_key;   /* the gradient of the keys, (S, K), summed over the query heads that they serve */
    float *of_value; /* likewise of the values, (S, V) */
    float *product;  /* a product, before it is scattered or added to these two */
} Room;

enum { ROOMS = sizeof(Room) / sizeof(float *) };

static FAST void sizes_of(const Attention *a, int64_t sizes[ROOMS]) {
    int64_t t = whole(a->most_queries), s = whole(a->most_keys), dk = whole(a->dk), dv = whole(a->dv);
    int64_t wide = dk > dv ? dk : dv, longer = t > s ? t : s;
    const int64_t all[ROOMS] = {t * dk, s * dk, s * dv, s * wide, t * s, t * dv, s * dk, s * dv, longer * wide};
    memcpy(sizes, all, sizeof all);
}

/* The size of a part's scratch space, in numbers. */
EXPORT FAST int64_t attention_room(const Attention *a) {
    int64_t sizes[ROOMS], sum = 0;
    sizes_of(a, sizes);
    for (int n = 0; n < ROOMS; n++) sum += sizes[n];
    return sum;
}

static FAST Room room_of(const Attention *a, int64_t part) {
    int64_t sizes[ROOMS];
    float *rooms[ROOMS], *next = a->work + part * attention_room(a);
    sizes_of(a, sizes);
    for (int n = 0; n < ROOMS; n++) rooms[n] = next, next += sizes[n];
    Room room;
    memcpy(&room, rooms, sizeof room);
    return room;
}

/* Copy one head of `rows` rows of x (., heads, width), from row `first` on; each row is padded to whole vectors. */
INLINE void gather(const void *x, int64_t first, int64_t rows, int64_t heads, int64_t head, int64_t width, int64_t narrow,
                   float *out) {
    int64_t wide = whole(width);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < width; k += LANES) {
            int64_t place = ((first + row) * heads + head) * width + k;
            _mm512_storeu_ps(out + row * wide + k, load(x, place, lanes(width - k), narrow));
        }
}

/* The inverse of `gather`. */
INLINE void scatter(const float *x, int64_t first, int64_t rows, int64_t heads, int64_t head, int64_t width,
                    int64_t narrow, void *out) {
    int64_t wide = whole(width);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < width; k += LANES) {
            int64_t place = ((first + row) * heads + head) * width + k;
            store(out, place, lanes(width - k), _mm512_loadu_ps(x + row * wide + k), narrow);
        }
}

/* (rows, wide) -> (wide, rows), both padded to whole vectors; the padding may hold anything. */
INLINE void transpose(const float *x, int64_t rows, int64_t wide, float *out) {
    int64_t across = whole(rows);
    for (int64_t row = 0; row < across; row += LANES)
        for (int64_t k = 0; k < wide; k += LANES) {
            __m512 a[LANES], b[LANES];
            UNROLLED for (int i = 0; i < LANES; i++) a[i] = _mm512_loadu_ps(x + (row + i) * wide + k);
            UNROLLED for (int i = 0; i < LANES; i += 2) {
                b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
                b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
            }
            UNROLLED for (int i = 0; i < LANES; i += 4) UNROLLED for (int j = 0; j < 2; j++) {
                __m512d one = _mm512_castps_pd(b[i + j]), other = _mm512_castps_pd(b[i + j + 2]);
                a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, other));
                a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, other));
            }
            UNROLLED for (int j = 0; j < 4; j++) { /* quarter l of a[4 i + j] is column 4 l + j of rows 4 i to 4 i + 3 */
                __m512 even = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), odd = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
                __m512 even2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88);
                __m512 odd2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
                float *to = out + (k + j) * across + row;
                _mm512_storeu_ps(to, _mm512_shuffle_f32x4(even, even2, 0x88));
                _mm512_storeu_ps(to + 4 * across, _mm512_shuffle_f32x4(odd, odd2, 0x88));
                _mm512_storeu_ps(to + 8 * across, _mm512_shuffle_f32x4(even, even2, 0xdd));
                _mm512_storeu_ps(to + 12 * across, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
            }
        }
}

/* A tile of `product`: `rows` rows of `vectors` vectors from column c on, summed over [begin, end). */
INLINE void product_block(const float *a, int64_t down, int64_t along, int64_t begin, int64_t end, const float *x,
                          int64_t wide, int64_t c, const int rows, const int vectors, float *out) {
    __m512 sums[BLOCK][2];
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int n = 0; n < vectors; n++) sums[i][n] = _mm512_setzero_ps();
    for (int64_t j = begin; j < end; j++) {
        __m512 read[2];
        UNROLLED for (int n = 0; n < vectors; n++) read[n] = _mm512_loadu_ps(x + j * wide + c + n * LANES);
        UNROLLED for (int i = 0; i < rows; i++) {
            __m512 factor = _mm512_set1_ps(a[i * down + j * along]);
            UNROLLED for (int n = 0; n < vectors; n++) sums[i][n] = _mm512_fmadd_ps(factor, read[n], sums[i][n]);
        }
    }
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int n = 0; n < vectors; n++) _mm512_storeu_ps(out + i * wide + c + n * LANES, sums[i][n]);
}

/* What a causal mask leaves of row i of a product: all of it; the terms up to i, as of weights times values; the terms from
 * i on, as of transposed weights; or the columns up to i, as of scores. */
typedef enum { ALL, PAST, FUTURE, SEEN } Part;

/* (rows, inner) times (inner, wide) -> (rows, wide), in whole vectors. The first matrix has the strides `down` and `along`,
 * so it may be transposed. If the rows leave a remainder, the last block overlaps the one before. */
static FAST void product(const float *a, int64_t down, int64_t along, int64_t rows, int64_t inner, const float *x,
                         int64_t wide, float *out, Part part) {
    int64_t step = rows < BLOCK ? 1 : BLOCK;
    for (int64_t c = 0; c < wide; c += 2 * LANES)
        for (int64_t row = 0; row < rows; row += step) {
            int64_t first = row + step <= rows ? row : rows - step, next = first + step;
            if (part == SEEN && c >= next) continue;
            int64_t begin = part == FUTURE && first < inner ? first : 0, end = part == PAST && next < inner ? next : inner;
            const float *from = a + first * down;
            float *to = out + first * wide;
            if (wide - c > LANES && step > 1) product_block(from, down, along, begin, end, x, wide, c, BLOCK, 2, to);
            else if (wide - c > LANES) product_block(from, down, along, begin, end, x, wide, c, 1, 2, to);
            else if (step > 1) product_block(from, down, along, begin, end, x, wide, c, BLOCK, 1, to);
            else product_block(from, down, along, begin, end, x, wide, c, 1, 1, to);
        }
}

/* softmax(scale x) of the first `seen` numbers of a row, in place; zeros after them. */
INLINE void softmax(float *x, int64_t seen, int64_t wide, float scale) {
    __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps(), factor = _mm512_set1_ps(scale);
    for (int64_t s = 0; s < seen; s += LANES)
        most = _mm512_mask_max_ps(most, lanes(seen - s), most, _mm512_loadu_ps(x + s));
    __m512 shift = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(most)), factor);
    for (int64_t s = 0; s < wide; s += LANES) {
        __mmask16 held = s < seen ? lanes(seen - s) : 0;
        __m512 y = exponential(_mm512_fmsub_ps(_mm512_loadu_ps(x + s), factor, shift));
        total = _mm512_mask_add_ps(total, held, total, y);
        _mm512_storeu_ps(x + s, _mm512_maskz_mov_ps(held, y));
    }
    __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    for (int64_t s = 0; s < seen; s += LANES) _mm512_storeu_ps(x + s, _mm512_mul_ps(_mm512_loadu_ps(x + s), share));
}

/* The backward pass of `softmax`: the gradient of the scores from that of the weights, in place. */
INLINE void softmax_backward(float *grad, const float *weights, int64_t seen, int64_t wide, float scale) {
    __m512 total = _mm512_setzero_ps();
    for (int64_t s = 0; s < seen; s += LANES)
        total = _mm512_mask3_fmadd_ps(_mm512_loadu_ps(grad + s), _mm512_loadu_ps(weights + s), total, lanes(seen - s));
    __m512 dot = _mm512_set1_ps(_mm512_reduce_add_ps(total)), factor = _mm512_set1_ps(scale);
    for (int64_t s = 0; s < wide; s += LANES) {
        __mmask16 held = s < seen ? lanes(seen - s) : 0;
        __m512 centred = _mm512_maskz_sub_ps(held, _mm512_loadu_ps(grad + s), dot);
        _mm512_storeu_ps(grad + s, _mm512_mul_ps(_mm512_mul_ps(centred, factor), _mm512_loadu_ps(weights + s)));
    }
}

INLINE void add(float *x, const float *y, int64_t count) {
    for (int64_t k = 0; k < count; k += LANES)
        _mm512_storeu_ps(x + k, _mm512_add_ps(_mm512_loadu_ps(x + k), _mm512_loadu_ps(y + k)));
}

/* One key head, `group`, of one sequence, and the `each` query heads that it serves: `t` queries from row `query` on, `s`
 * keys from row `key` on. */
typedef struct {
    int64_t group, each, query, t, key, s;
    float *weights; /* of the first of these query heads */
} Place;

/* The number of keys that a query sees. */
INLINE int64_t seen_by(const Attention *a, const Place *p, int64_t row) {
    return a->causal && row < p->s ? row + 1 : p->s;
}

static FAST Place place_of(const Attention *a, int64_t number, const Room *room) {
    int64_t source = number / a->groups, query = a->queries[source], key = a->keys[source];
    Place p = {number % a->groups, a->heads / a->groups, query, a->queries[source + 1] - query, key,
               a->keys[source + 1] - key, room->scores};
    if (a->weights) p.weights = a->weights + a->cells[source] + p.group * p.each * p.t * whole(p.s);
    return p;
}

static FAST void forward_of(const Attention *a, int64_t number, const Room *room) {
    const Place p = place_of(a, number, room);
    int64_t wide = whole(p.s), dk = whole(a->dk), dv = whole(a->dv);
    float scale = 1.0f / sqrtf((float)a->dk), *weights = p.weights;
    gather(a->key, p.key, p.s, a->groups, p.group, a->dk, a->narrow, room->key);
    gather(a->value, p.key, p.s, a->groups, p.group, a->dv, a->narrow, room->value);
    transpose(room->key, p.s, dk, room->across);
    for (int64_t head = p.group * p.each; head < (p.group + 1) * p.each; head++) {
        gather(a->query, p.query, p.t, a->heads, head, a->dk, a->narrow, room->query);
        product(room->query, dk, 1, p.t, a->dk, room->across, wide, weights, a->causal ? SEEN : ALL);
        for (int64_t row = 0; row < p.t; row++) softmax(weights + row * wide, seen_by(a, &p, row), wide, scale);
        product(weights, wide, 1, p.t, p.s, room->value, dv, room->product, a->causal ? PAST : ALL);
        scatter(room->product, p.query, p.t, a->heads, head, a->dv, a->narrow, a->output);
        if (a->weights) weights += p.t * wide;
    }
}

static FAST void backward_of(const Attention *a, int64_t number, const Room *room) {
    const Place p = place_of(a, number, room);
    int64_t wide = whole(p.s), dk = whole(a->dk), dv = whole(a->dv);
    float scale = 1.0f / sqrtf((float)a->dk), *weights = p.weights;
    gather(a->key, p.key, p.s, a->groups, p.group, a->dk, a->narrow, room->key);
    gather(a->value, p.key, p.s, a->groups, p.group, a->dv, a->narrow, room->value);
    transpose(room->value, p.s, dv, room->across);
    memset(room->of_key, 0, (size_t)(p.s * dk) * sizeof(float));
    memset(room->of_value, 0, (size_t)(p.s * dv) * sizeof(float));
    for (int64_t head = p.group * p.each; head < (p.group + 1) * p.each; head++, weights += p.t * wide) {
        gather(a->query, p.query, p.t, a->heads, head, a->dk, a->narrow, room->query);
        gather(a->grad, p.query, p.t, a->heads, head, a->dv, a->narrow, room->grad);
        product(room->grad, dv, 1, p.t, a->dv, room->across, wide, room->scores, a->causal ? SEEN : ALL);
        for (int64_t row = 0; row < p.t; row++)
            softmax_backward(room->scores + row * wide, weights + row * wide, seen_by(a, &p, row), wide, scale);
        product(room->scores, wide, 1, p.t, p.s, room->key, dk, room->product, a->causal ? PAST : ALL);
        scatter(room->product, p.query, p.t, a->heads, head, a->dk, a->narrow, a->grad_query);
        product(room->scores, 1, wide, p.s, p.t, room->query, dk, room->product, a->causal ? FUTURE : ALL);
        add(room->of_key, room->product, p.s * dk);
        product(weights, 1, wide, p.s, p.t, room->grad, dv, room->product, a->causal ? FUTURE : ALL);
        add(room->of_value, room->product, p.s * dv);
    }
    scatter(room->of_key, p.key, p.s, a->groups, p.group, a->dk, a->narrow, a->grad_key);
    scatter(room->of_value, p.key, p.s, a->groups, p.group, a->dv, a->narrow, a->grad_value);
}

static FAST void some_heads(const void *job, int64_t part) {
    const Attention *a = job;
    const Room room = room_of(a, part);
    int64_t all = a->sources * a->groups;
    for (int64_t n = all * part / a->parts; n < all * (part + 1) / a->parts; n++)
        if (a->back) backward_of(a, n, &room);
        else forward_of(a, n, &room);
}

/* Compute the output and the weights or, with `back`, the gradients from them. */
EXPORT void segments_attention(const Attention *attention, int64_t threads) {
    beside_torch(some_heads, attention, attention->parts, threads);
}

/* Philox4x32-7, the random generator of dropout (Salmon et al. 2011). It maps a seed and a counter to bits, so any part can
 * be drawn alone; with seven rounds it passes all tests of the paper. */
INLINE void philox(uint64_t seed, uint64_t block, __m512i words[4]) {
    const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i factors[2] = {_mm512_set1_epi32((int)0xD2511F53), _mm512_set1_epi32((int)0xCD9E8D57)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    words[0] = numbers, words[1] = _mm512_set1_epi32((int)block), words[2] = _mm512_set1_epi32((int)(block >> 32));
    words[3] = _mm512_setzero_si512();
    for (int round = 0; round < 7; round++) {
        __m512i high[2], low[2];
        UNROLLED for (int n = 0; n < 2; n++) {
            __m512i even = _mm512_mul_epu32(words[2 * n], factors[n]);
            __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(words[2 * n], 32), factors[n]);
            low[n] = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
            high[n] = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
        }
        words[0] = _mm512_xor_si512(_mm512_xor_si512(high[1], words[1]), _mm512_set1_epi32((int)key[0]));
        words[2] = _mm512_xor_si512(_mm512_xor_si512(high[0], words[3]), _mm512_set1_epi32((int)key[1]));
        words[1] = low[1], words[3] = low[0];
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
}

/* Dropout of x (count,): the kept elements are multiplied by `scale`, the others set to zero; then `added` (count,) is added
 * unless NULL. `kept` has a bit per element, in whole DRAWS. With `drawn`, the bits are drawn first: an element is dropped
 * with probability `threshold` / 65536 and, with `relu`, if it is not positive. */
typedef struct {
    const void *x, *added;
    void *out;
    uint64_t *kept, seed;
    int64_t count, drawn, relu, threshold, narrow;
    double scale;
} Dropout;

static FAST void drop_some(const void *job, int64_t part) {
    const Dropout *d = job;
    __m512 scale = _mm512_set1_ps((float)d->scale);
    int64_t last = (part + 1) * PIECE < d->count ? (part + 1) * PIECE : d->count;
    for (int64_t first = part * PIECE; first < last; first += DRAWS) {
        uint64_t *kept = d->kept + first / 64;
        if (d->drawn) {
            __m512i words[4];
            philox(d->seed, (uint64_t)(first / DRAWS), words);
            UNROLLED for (int n = 0; n < 4; n++) {
                __mmask32 stay = _mm512_cmpge_epu16_mask(words[n], _mm512_set1_epi16((short)d->threshold));
                memcpy((uint32_t *)kept + n, &stay, sizeof stay);
            }
        }
        for (int64_t k = first; k < last && k < first + DRAWS; k += LANES) {
            __mmask16 stay, held = lanes(last - k);
            __m512 x = load(d->x, k, held, d->narrow);
            memcpy(&stay, (char *)kept + (k - first) / 8, sizeof stay);
            if (d->relu) { /* NaN is kept */
                stay &= _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ);
                memcpy((char *)kept + (k - first) / 8, &stay, sizeof stay);
            }
            x = _mm512_maskz_mul_ps(stay, x, scale);
            store(d->out, k, held, d->added ? _mm512_add_ps(x, load(d->added, k, held, d->narrow)) : x, d->narrow);
        }
    }
}

EXPORT void drop(const Dropout *dropout, int64_t threads) {
    beside_torch(drop_some, dropout, (dropout->count + PIECE - 1) / PIECE, threads);
}

/* Rotary positions: rotate each head of x (N, H, K) by its position (N,), with a table `turns` (positions, K) of sines
 * followed by cosines; by the opposite angle if `back`. */
typedef struct {
    const void *x;
    void *out;
    const int64_t *positions;
    const float *turns;
    int64_t rows, heads, dk, back, narrow, parts;
} Rotary;

static FAST void turn_some(const void *job, int64_t part) {
    const Rotary *r = job;
    int64_t half = r->dk / 2;
    for (int64_t row = r->rows * part / r->parts; row < r->rows * (part + 1) / r->parts; row++) {
        const float *sines = r->turns + r->positions[row] * r->dk, *cosines = sines + half;
        for (int64_t place = row * r->heads * r->dk; place < (row + 1) * r->heads * r->dk; place += r->dk)
            for (int64_t k = 0; k < half; k += LANES) {
                __mmask16 held = lanes(half - k);
                __m512 sine = _mm512_maskz_loadu_ps(held, sines + k), cosine = _mm512_maskz_loadu_ps(held, cosines + k);
                if (r->back) sine = _mm512_sub_ps(_mm512_setzero_ps(), sine);
                __m512 one = load(r->x, place + k, held, r->narrow), other = load(r->x, place + half + k, held, r->narrow);
                __m512 first = _mm512_fnmadd_ps(other, sine, _mm512_mul_ps(one, cosine));
                __m512 second = _mm512_fmadd_ps(other, cosine, _mm512_mul_ps(one, sine));
                store(r->out, place + k, held, first, r->narrow);
                store(r->out, place + half + k, held, second, r->narrow);
            }
    }
}

EXPORT void turn_rows(const Rotary *rotary, int64_t threads) { beside_torch(turn_some, rotary, rotary->parts, threads); }

/* Label-smoothed cross-entropy of each row of logits (N, V): `losses` and, without smoothing, `nlls` (N,). The logits are
 * overwritten with their gradient if `wanted`. `counted` (N,) is the weight of each row, 1 if NULL. With `agreement`, the
 * second half of the rows holds second readings of the tokens of the first half, and `agreement` / 2 * (KL(p || q) +
 * KL(q || p)) is added to the loss of the first reading. */
typedef struct {
    void *logits;
    const int64_t *targets;
    const float *counted;
    float *losses, *nlls;
    int64_t rows, size, wanted, narrow;
    double smoothing, agreement;
} Losses;

/* A row of logits, the largest of them, `top`, and the log-sum-exp of (logits - top), `log_mass`. */
typedef struct {
    char *logits;
    float top, log_mass;
} Reading;

/* Log-probabilities from token k on. Subtracting `top` first loses no precision where all logits are large. */
INLINE __m512 log_probability(const Reading *r, int64_t k, __mmask16 held, int64_t narrow) {
    __m512 x = _mm512_sub_ps(load(r->logits, k, held, narrow), _mm512_set1_ps(r->top));
    return _mm512_sub_ps(x, _mm512_set1_ps(r->log_mass));
}

/* Write the losses of a row, so far without `agreement`, and return its normaliser. */
INLINE Reading read_row(const Losses *l, int64_t row) {
    int64_t size = l->size, narrow = l->narrow, target = l->targets[row];
    Reading r = {(char *)l->logits + row * size * (narrow ? 2 : 4), 0.0f, 0.0f};
    float share = l->counted ? l->counted[row] : 1.0f, smoothing = (float)l->smoothing;
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps(), mass = _mm512_setzero_ps();
    for (int64_t k = 0; k < size; k += LANES) {
        __mmask16 held = lanes(size - k);
        most = _mm512_mask_max_ps(most, held, most, load(r.logits, k, held, narrow));
    }
    r.top = _mm512_reduce_max_ps(most);
    for (int64_t k = 0; k < size; k += LANES) {
        __mmask16 held = lanes(size - k);
        __m512 x = _mm512_maskz_sub_ps(held, load(r.logits, k, held, narrow), _mm512_set1_ps(r.top));
        sum = _mm512_add_ps(sum, x);
        mass = _mm512_mask_add_ps(mass, held, mass, exponential(x));
    }
    r.log_mass = logf(_mm512_reduce_add_ps(mass));
    float chosen = _mm512_cvtss_f32(load(r.logits, target, 1, narrow)) - r.top;
    /* without smoothing, minus infinity must not become NaN */
    float uniform = smoothing > 0.0f ? smoothing / (float)size * _mm512_reduce_add_ps(sum) : 0.0f;
    l->nlls[row] = share * (r.log_mass - chosen);
    l->losses[row] = share * (r.log_mass - (1.0f - smoothing) * chosen - uniform);
    return r;
}

/* The losses and gradients of a row and, with two readings, of the second reading of its token. */
INLINE void loss_of(const Losses *l, int64_t row, const int readings) {
    int64_t size = l->size, narrow = l->narrow, rows[2] = {row, row + l->rows / 2};
    float half = 0.5f * (float)l->agreement, smoothing = (float)l->smoothing, divergence[2];
    Reading read[2];
    for (int n = 0; n < readings; n++) read[n] = read_row(l, rows[n]);
    if (readings == 2) {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t k = 0; k < size; k += LANES) {
            __mmask16 held = lanes(size - k);
            __m512 p = log_probability(&read[0], k, held, narrow), q = log_probability(&read[1], k, held, narrow);
            __m512 ratio = _mm512_sub_ps(p, q);
            sums[0] = _mm512_mask3_fmadd_ps(exponential(p), ratio, sums[0], held);
            sums[1] = _mm512_mask3_fnmadd_ps(exponential(q), ratio, sums[1], held);
        }
        for (int n = 0; n < 2; n++) divergence[n] = _mm512_reduce_add_ps(sums[n]);
        l->losses[row] += (l->counted ? l->counted[row] : 1.0f) * half * (divergence[0] + divergence[1]);
    }
    for (int64_t k = 0; l->wanted && k < size; k += LANES) {
        __mmask16 held = lanes(size - k);
        __m512 logs[2], p[2];
        for (int n = 0; n < readings; n++) {
            logs[n] = log_probability(&read[n], k, held, narrow);
            p[n] = exponential(logs[n]);
        }
        for (int n = 0; n < readings; n++) {
            int64_t target = l->targets[rows[n]];
            __m512 y = _mm512_sub_ps(p[n], _mm512_set1_ps(smoothing / (float)size));
            if (target >= k && target < k + LANES)
                y = _mm512_mask_sub_ps(y, (__mmask16)(1u << (target - k)), y, _mm512_set1_ps(1.0f - smoothing));
            if (readings == 2) { /* gradient: p (log(p / q) - KL(p || q)) + p - q */
                __m512 ratio = _mm512_sub_ps(_mm512_sub_ps(logs[n], logs[1 - n]), _mm512_set1_ps(divergence[n]));
                __m512 pull = _mm512_fmadd_ps(p[n], ratio, _mm512_sub_ps(p[n], p[1 - n]));
                y = _mm512_fmadd_ps(_mm512_set1_ps(half), pull, y);
            }
            float share = l->counted ? l->counted[rows[n]] : 1.0f;
            store(read[n].logits, k, held, _mm512_mul_ps(y, _mm512_set1_ps(share)), narrow);
        }
    }
}

static FAST void some_losses(const void *job, int64_t part) {
    const Losses *l = job;
    int64_t tokens = l->agreement > 0.0 ? l->rows / 2 : l->rows;
    for (int64_t row = part * ROWS; row < (part + 1) * ROWS && row < tokens; row++) {
        if (l->agreement > 0.0) loss_of(l, row, 2);
        else loss_of(l, row, 1);
    }
}

EXPORT void row_losses(const Losses *losses, int64_t threads) {
    beside_torch(some_losses, losses, (losses->rows + ROWS - 1) / ROWS, threads);
}

#endif
