/* The operations of a CPU training step besides its matrix products: attention over short flat sequences, rotary positions,
 * dropout, and the losses of rows of logits. PyTorch's own operations take many passes over memory for each.
 *
 * Tensors are float32 or, if `narrow`, bfloat16; all sums are float32. Every result has one writer and a fixed order of
 * summation, so the bits do not depend on the number of threads.
 */
#include "kernels.h"

enum {
    BLOCK = 4,       /* rows of a product that share each load */
    DRAWS = 128,     /* 16-bit random numbers that are drawn together */
    PIECE = 1 << 14, /* elements in a part of dropout */
    LOSS_ROWS = 8,        /* rows of logits in a part */
};

/* Load a vector as float32. */
INLINE Floats16 read(const void *x, int64_t place, int64_t held, int64_t narrow) {
    if (!narrow) return load_first((const float *)x + place, held);
    return floats_of(shift_left(load_uint16((const uint16_t *)x + place, held), 16));
}

/* Store a vector. bfloat16 is rounded as PyTorch does: to nearest, ties to even; NaN stays NaN. */
INLINE void write(void *x, int64_t place, int64_t held, Floats16 y, int64_t narrow) {
    if (!narrow) {
        store_first((float *)x + place, held, y);
        return;
    }
    Ints16 bits = bits_of(y), odd = and_ints(shift_right(bits, 16), all_ints(1));
    Ints16 nearest = add_ints(bits, add_ints(odd, all_ints(0x7fff)));
    store_uint16((uint16_t *)x + place, held, shift_right(where_nan(y, all_ints(0x7fc00000), nearest), 16));
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
} Workspace;

enum { ROOMS = sizeof(Workspace) / sizeof(float *) };

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

static FAST Workspace room_of(const Attention *a, int64_t part) {
    int64_t sizes[ROOMS];
    float *rooms[ROOMS], *next = a->work + part * attention_room(a);
    sizes_of(a, sizes);
    for (int n = 0; n < ROOMS; n++) rooms[n] = next, next += sizes[n];
    Workspace room;
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
            store(out + row * wide + k, read(x, place, width - k, narrow));
        }
}

/* The inverse of `gather`. */
INLINE void scatter(const float *x, int64_t first, int64_t rows, int64_t heads, int64_t head, int64_t width,
                    int64_t narrow, void *out) {
    int64_t wide = whole(width);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < width; k += LANES) {
            int64_t place = ((first + row) * heads + head) * width + k;
            write(out, place, width - k, load(x + row * wide + k), narrow);
        }
}

/* (rows, wide) -> (wide, rows), both padded to whole vectors; the padding may hold anything. */
INLINE void transpose(const float *x, int64_t rows, int64_t wide, float *out) {
    int64_t across = whole(rows);
    for (int64_t row = 0; row < across; row += LANES)
        for (int64_t k = 0; k < wide; k += LANES)
            turn_square(x + row * wide + k, wide, out + k * across + row, across);
}

/* A tile of `product`: `rows` rows of `vectors` vectors from column c on, summed over [begin, end). */
INLINE void product_block(const float *a, int64_t down, int64_t along, int64_t begin, int64_t end, const float *x,
                          int64_t wide, int64_t c, const int rows, const int vectors, float *out) {
    Floats16 sums[BLOCK][2];
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int n = 0; n < vectors; n++) sums[i][n] = zeros();
    for (int64_t j = begin; j < end; j++) {
        Floats16 read[2];
        UNROLLED for (int n = 0; n < vectors; n++) read[n] = load(x + j * wide + c + n * LANES);
        UNROLLED for (int i = 0; i < rows; i++) {
            Floats16 factor = broadcast(a[i * down + j * along]);
            UNROLLED for (int n = 0; n < vectors; n++) sums[i][n] = multiply_add(factor, read[n], sums[i][n]);
        }
    }
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int n = 0; n < vectors; n++) store(out + i * wide + c + n * LANES, sums[i][n]);
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
    Floats16 most = broadcast(-INFINITY), total = zeros(), factor = broadcast(scale);
    for (int64_t s = 0; s < seen; s += LANES)
        most = first_or(maximum(most, load(x + s)), seen - s, most);
    Floats16 shift = multiply(broadcast(maximum_of(most)), factor);
    for (int64_t s = 0; s < wide; s += LANES) {
        int64_t held = s < seen ? seen - s : 0;
        Floats16 y = exponential(multiply_subtract(load(x + s), factor, shift));
        total = add(total, keep_first(y, held));
        store(x + s, keep_first(y, held));
    }
    Floats16 share = broadcast(1.0f / sum_of(total));
    for (int64_t s = 0; s < seen; s += LANES) store(x + s, multiply(load(x + s), share));
}

/* The backward pass of `softmax`: the gradient of the scores from that of the weights, in place. */
INLINE void softmax_backward(float *grad, const float *weights, int64_t seen, int64_t wide, float scale) {
    Floats16 total = zeros();
    for (int64_t s = 0; s < seen; s += LANES)
        total = first_or(multiply_add(load(grad + s), load(weights + s), total), seen - s, total);
    Floats16 dot = broadcast(sum_of(total)), factor = broadcast(scale);
    for (int64_t s = 0; s < wide; s += LANES) {
        int64_t held = s < seen ? seen - s : 0;
        Floats16 centred = keep_first(subtract(load(grad + s), dot), held);
        store(grad + s, multiply(multiply(centred, factor), load(weights + s)));
    }
}

INLINE void add_rows(float *x, const float *y, int64_t count) {
    for (int64_t k = 0; k < count; k += LANES)
        store(x + k, add(load(x + k), load(y + k)));
}

/* One key head, `group`, of one sequence, and the `each` query heads that it serves: `t` queries from row `query` on, `s`
 * keys from row `key` on. */
typedef struct {
    int64_t group, each, query, t, key, s;
    float *weights; /* of the first of these query heads */
} Group;

/* The number of keys that a query sees. */
INLINE int64_t seen_by(const Attention *a, const Group *p, int64_t row) {
    return a->causal && row < p->s ? row + 1 : p->s;
}

static FAST Group place_of(const Attention *a, int64_t number, const Workspace *room) {
    int64_t source = number / a->groups, query = a->queries[source], key = a->keys[source];
    Group p = {number % a->groups, a->heads / a->groups, query, a->queries[source + 1] - query, key,
               a->keys[source + 1] - key, room->scores};
    if (a->weights) p.weights = a->weights + a->cells[source] + p.group * p.each * p.t * whole(p.s);
    return p;
}

static FAST void forward_of(const Attention *a, int64_t number, const Workspace *room) {
    const Group p = place_of(a, number, room);
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

static FAST void backward_of(const Attention *a, int64_t number, const Workspace *room) {
    const Group p = place_of(a, number, room);
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
        add_rows(room->of_key, room->product, p.s * dk);
        product(weights, 1, wide, p.s, p.t, room->grad, dv, room->product, a->causal ? FUTURE : ALL);
        add_rows(room->of_value, room->product, p.s * dv);
    }
    scatter(room->of_key, p.key, p.s, a->groups, p.group, a->dk, a->narrow, a->grad_key);
    scatter(room->of_value, p.key, p.s, a->groups, p.group, a->dv, a->narrow, a->grad_value);
}

static FAST void some_heads(const void *job, int64_t part) {
    const Attention *a = job;
    const Workspace room = room_of(a, part);
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
INLINE void philox(uint64_t seed, uint64_t block, Ints16 words[4]) {
    static const int32_t numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    words[0] = load_ints(numbers), words[1] = all_ints((int32_t)block), words[2] = all_ints((int32_t)(block >> 32));
    words[3] = all_ints(0);
    for (int round = 0; round < 7; round++) {
        Ints16 high[2], low[2];
        multiply_wide(words[0], 0xD2511F53u, &high[0], &low[0]);
        multiply_wide(words[2], 0xCD9E8D57u, &high[1], &low[1]);
        words[0] = xor_ints(xor_ints(high[1], words[1]), all_ints((int32_t)key[0]));
        words[2] = xor_ints(xor_ints(high[0], words[3]), all_ints((int32_t)key[1]));
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
    Floats16 scale = broadcast((float)d->scale);
    int64_t last = (part + 1) * PIECE < d->count ? (part + 1) * PIECE : d->count;
    for (int64_t first = part * PIECE; first < last; first += DRAWS) {
        uint64_t *kept = d->kept + first / 64;
        if (d->drawn) {
            Ints16 words[4];
            philox(d->seed, (uint64_t)(first / DRAWS), words);
            UNROLLED for (int n = 0; n < 4; n++) {
                uint32_t stay = halves_at_least(words[n], (uint16_t)d->threshold);
                memcpy((uint32_t *)kept + n, &stay, sizeof stay);
            }
        }
        for (int64_t k = first; k < last && k < first + DRAWS; k += LANES) {
            uint16_t stay;
            int64_t held = last - k;
            Floats16 x = read(d->x, k, held, d->narrow);
            memcpy(&stay, (char *)kept + (k - first) / 8, sizeof stay);
            if (d->relu) { /* NaN is kept */
                stay &= (uint16_t)bits_positive(x);
                memcpy((char *)kept + (k - first) / 8, &stay, sizeof stay);
            }
            x = keep_bits(multiply(x, scale), stay);
            write(d->out, k, held, d->added ? add(x, read(d->added, k, held, d->narrow)) : x, d->narrow);
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
                int64_t held = half - k;
                Floats16 sine = load_first(sines + k, held), cosine = load_first(cosines + k, held);
                if (r->back) sine = subtract(zeros(), sine);
                Floats16 one = read(r->x, place + k, held, r->narrow), other = read(r->x, place + half + k, held, r->narrow);
                Floats16 first = subtract_product(other, sine, multiply(one, cosine));
                Floats16 second = multiply_add(other, cosine, multiply(one, sine));
                write(r->out, place + k, held, first, r->narrow);
                write(r->out, place + half + k, held, second, r->narrow);
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
INLINE Floats16 log_probability(const Reading *r, int64_t k, int64_t held, int64_t narrow) {
    Floats16 x = subtract(read(r->logits, k, held, narrow), broadcast(r->top));
    return subtract(x, broadcast(r->log_mass));
}

/* Write the losses of a row, so far without `agreement`, and return its normaliser. */
INLINE Reading read_row(const Losses *l, int64_t row) {
    int64_t size = l->size, narrow = l->narrow, target = l->targets[row];
    Reading r = {(char *)l->logits + row * size * (narrow ? 2 : 4), 0.0f, 0.0f};
    float share = l->counted ? l->counted[row] : 1.0f, smoothing = (float)l->smoothing;
    Floats16 most = broadcast(-INFINITY), sum = zeros(), mass = zeros();
    for (int64_t k = 0; k < size; k += LANES) {
        int64_t held = size - k;
        most = first_or(maximum(most, read(r.logits, k, held, narrow)), held, most);
    }
    r.top = maximum_of(most);
    for (int64_t k = 0; k < size; k += LANES) {
        int64_t held = size - k;
        Floats16 x = keep_first(subtract(read(r.logits, k, held, narrow), broadcast(r.top)), held);
        sum = add(sum, x);
        mass = add(mass, keep_first(exponential(x), held));
    }
    r.log_mass = logarithm(sum_of(mass));
    float chosen = sum_of(read(r.logits, target, 1, narrow)) - r.top; /* of one number */
    /* without smoothing, minus infinity must not become NaN */
    float uniform = smoothing > 0.0f ? smoothing / (float)size * sum_of(sum) : 0.0f;
    l->nlls[row] = share * (r.log_mass - chosen);
    l->losses[row] = share * (__builtin_fmaf(smoothing - 1.0f, chosen, r.log_mass) - uniform);
    return r;
}

/* The losses and gradients of a row and, with two readings, of the second reading of its token. */
INLINE void loss_of(const Losses *l, int64_t row, const int readings) {
    int64_t size = l->size, narrow = l->narrow, rows[2] = {row, row + l->rows / 2};
    float half = 0.5f * (float)l->agreement, smoothing = (float)l->smoothing, divergence[2];
    Reading read[2];
    for (int n = 0; n < readings; n++) read[n] = read_row(l, rows[n]);
    if (readings == 2) {
        Floats16 sums[2] = {zeros(), zeros()};
        for (int64_t k = 0; k < size; k += LANES) {
            int64_t held = size - k;
            Floats16 p = log_probability(&read[0], k, held, narrow), q = log_probability(&read[1], k, held, narrow);
            Floats16 ratio = subtract(p, q);
            sums[0] = first_or(multiply_add(exponential(p), ratio, sums[0]), held, sums[0]);
            sums[1] = first_or(subtract_product(exponential(q), ratio, sums[1]), held, sums[1]);
        }
        for (int n = 0; n < 2; n++) divergence[n] = sum_of(sums[n]);
        l->losses[row] += (l->counted ? l->counted[row] : 1.0f) * half * (divergence[0] + divergence[1]);
    }
    for (int64_t k = 0; l->wanted && k < size; k += LANES) {
        int64_t held = size - k;
        Floats16 logs[2], p[2];
        for (int n = 0; n < readings; n++) {
            logs[n] = log_probability(&read[n], k, held, narrow);
            p[n] = exponential(logs[n]);
        }
        for (int n = 0; n < readings; n++) {
            int64_t target = l->targets[rows[n]];
            Floats16 y = subtract(p[n], broadcast(smoothing / (float)size));
            if (target >= k && target < k + LANES)
                y = subtract(y, keep_bits(broadcast(1.0f - smoothing), 1u << (target - k)));
            if (readings == 2) { /* gradient: p (log(p / q) - KL(p || q)) + p - q */
                Floats16 ratio = subtract(subtract(logs[n], logs[1 - n]), broadcast(divergence[n]));
                Floats16 pull = multiply_add(p[n], ratio, subtract(p[n], p[1 - n]));
                y = multiply_add(broadcast(half), pull, y);
            }
            float share = l->counted ? l->counted[rows[n]] : 1.0f;
            write(read[n].logits, k, held, multiply(y, broadcast(share)), narrow);
        }
    }
}

static FAST void some_losses(const void *job, int64_t part) {
    const Losses *l = job;
    int64_t tokens = l->agreement > 0.0 ? l->rows / 2 : l->rows;
    for (int64_t row = part * LOSS_ROWS; row < (part + 1) * LOSS_ROWS && row < tokens; row++) {
        if (l->agreement > 0.0) loss_of(l, row, 2);
        else loss_of(l, row, 1);
    }
}

EXPORT void row_losses(const Losses *losses, int64_t threads) {
    beside_torch(some_losses, losses, (losses->rows + LOSS_ROWS - 1) / LOSS_ROWS, threads);
}
