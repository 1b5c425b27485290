/* Attention of one query per row, and whole encoders and decoder steps, with the layers of blocks/transformer.py. */
#include "kernels.h"

/* Load a vector of a KV cache, float16 if `half`, else float32. */
INLINE Floats16 cached(const void *cache, int64_t first, int64_t held, int64_t half) {
    return half ? load_float16((const uint16_t *)cache + first, held)
                : load_first((const float *)cache + first, held);
}

/* Store numbers in a KV cache. float16 saturates at its largest number; NaN stays NaN. */
INLINE void store_cached(const float *numbers, int64_t count, void *cache, int64_t first, int64_t half) {
    Floats16 largest = broadcast(65504.0f), smallest = broadcast(-65504.0f);
    for (int64_t k = 0; k < count; k += LANES) {
        int64_t held = count - k;
        Floats16 x = load_first(numbers + k, held);
        if (half) {
            x = maximum(smallest, minimum(largest, x));
            store_float16((uint16_t *)cache + first + k, held, x);
        } else {
            store_first((float *)cache + first + k, held, x);
        }
    }
}

/* Attention of one query (K,) over the keys and values of `seen` time steps, which begin at `key` and `value` and are
 * `key_step` and `value_step` numbers apart. `slot` (seen,) is the entry to read at each time step; the first if NULL. */
INLINE void attend(const float *q, const void *keys, const void *values, int64_t key, int64_t value, int64_t key_step,
                   int64_t value_step, const int32_t *slot, int64_t seen, int64_t dk, int64_t dv, int64_t half,
                   float *weights, float *out) {
    float scale = 1.0f / sqrtf((float)dk), largest = -INFINITY;
    for (int64_t t = 0; t < seen; t++) {
        int64_t first = key + t * key_step + (slot ? slot[t] * dk : 0);
        Floats16 sum = zeros();
        for (int64_t k = 0; k < dk; k += LANES) {
            int64_t held = dk - k;
            sum = multiply_add(load_first(q + k, held), cached(keys, first + k, held, half), sum);
        }
        weights[t] = sum_of(sum) * scale;
        largest = weights[t] > largest ? weights[t] : largest;
    }
    Floats16 total = zeros(), shift = broadcast(largest);
    for (int64_t t = 0; t < seen; t += LANES) {
        int64_t held = seen - t;
        Floats16 each = exponential(subtract(load_first(weights + t, held), shift));
        total = add(total, keep_first(each, held));
        store_first(weights + t, held, each);
    }
    float share = seen ? 1.0f / sum_of(total) : 0.0f;
    for (int64_t k = 0; k < dv; k += LANES) {
        int64_t held = dv - k;
        Floats16 sum = zeros();
        for (int64_t t = 0; t < seen; t++) {
            int64_t first = value + t * value_step + (slot ? slot[t] * dv : 0);
            sum = multiply_add(broadcast(weights[t]), cached(values, first + k, held, half), sum);
        }
        store_first(out + k, held, multiply(sum, broadcast(share)));
    }
}

/* Prefetch numbers that are needed soon. The keys and values of a source are too short a run for the processor's own
 * prefetcher. */
INLINE void fetch_run(const void *cache, int64_t first, int64_t count, int64_t half) {
    int64_t size = half ? sizeof(uint16_t) : sizeof(float);
    const char *bytes = (const char *)cache + first * size;
    for (int64_t k = 0; k < count * size; k += LINE) __builtin_prefetch(bytes + k, 0, 2);
}

/* Attention of one query per row over the keys of its source -> `out` (R, H, V).
 *
 * The heads (H, K) of row r are at `query + r * query_stride`. `keys` (B, G, room, width, K) and `values` (B, G, room,
 * width, V) hold up to `room` time steps; each of the G heads serves H / G query heads. A row sees `times` time steps, or
 * the number in `lengths` (B,). `slots` (R, times) says which of the `width` entries it reads; NULL for the first. With
 * `half` both are float16; it is a constant where this is inlined, so that no loop asks for it. */
INLINE void attend_rows(const float *query, int64_t query_stride, const void *keys, const void *values, int64_t r,
                        int64_t beam, int64_t heads, int64_t groups, int64_t dk, int64_t dv, int64_t room, int64_t width,
                        int64_t times, int64_t half, const int64_t *lengths, const int32_t *slots, float *weights,
                        float *out) {
    for (int64_t row = 0; row < r; row++) {
        int64_t source = row / beam, seen = lengths ? lengths[source] : times;
        const int32_t *slot = slots ? slots + row * times : NULL;
        for (int64_t head = 0; head < heads; head++) {
            int64_t first = (source * groups + head / (heads / groups)) * room * width, next = first + room * width;
            if (row % beam == 0) { /* the next group's, once: the other rows of a source find them in the cache */
                fetch_run(keys, next * dk, seen * width * dk, half);
                fetch_run(values, next * dv, seen * width * dv, half);
            }
            attend(query + row * query_stride + head * dk, keys, values, first * dk, first * dv, width * dk, width * dv,
                   slot, seen, dk, dv, half, weights, out + (row * heads + head) * dv);
        }
    }
}

EXPORT FAST void rows_attention(const float *query, int64_t query_stride, const void *keys, const void *values,
                                int64_t r, int64_t beam, int64_t heads, int64_t groups, int64_t dk, int64_t dv,
                                int64_t room, int64_t width, int64_t times, int64_t half, const int64_t *lengths,
                                const int32_t *slots, float *weights, float *out) {
    if (half)
        attend_rows(query, query_stride, keys, values, r, beam, heads, groups, dk, dv, room, width, times, 1, lengths,
                    slots, weights, out);
    else
        attend_rows(query, query_stride, keys, values, r, beam, heads, groups, dk, dv, room, width, times, 0, lengths,
                    slots, weights, out);
}

/* Layer normalisation, or RMSNorm if `shift` is NULL. */
typedef struct {
    const float *scale, *shift;
    double epsilon;
} Norm;

INLINE void normalise(const Norm *norm, const float *x, int64_t r, int64_t d, float *out) {
    for (int64_t row = 0; row < r; row++, x += d, out += d) {
        Floats16 total = zeros(), squares = zeros();
        float mean = 0.0f;
        if (norm->shift) {
            for (int64_t k = 0; k < d; k += LANES) total = add(total, load_first(x + k, d - k));
            mean = sum_of(total) / (float)d;
        }
        for (int64_t k = 0; k < d; k += LANES) {
            int64_t held = d - k;
            Floats16 deviation = keep_first(subtract(load_first(x + k, held), broadcast(mean)), held);
            squares = multiply_add(deviation, deviation, squares);
        }
        float variance = sum_of(squares) / (float)d + (float)norm->epsilon;
        Floats16 inverse = broadcast(1.0f / sqrtf(variance));
        for (int64_t k = 0; k < d; k += LANES) {
            int64_t held = d - k;
            Floats16 y = multiply(subtract(load_first(x + k, held), broadcast(mean)), inverse);
            Floats16 shift = norm->shift ? load_first(norm->shift + k, held) : zeros();
            store_first(out + k, held, multiply_add(y, load_first(norm->scale + k, held), shift));
        }
    }
}

EXPORT FAST void normalised(const Norm *norm, const float *x, int64_t r, int64_t d, float *out) {
    normalise(norm, x, r, d, out);
}

/* A layer. `query` and `recall` are the query and output projections of the cross-attention; an encoder has neither, nor
 * the second norm. */
typedef struct {
    int64_t d, heads, groups, dk, dv, pre, activation;
    const float *turns; /* (positions, K), sines followed by cosines for rotary positions; or NULL */
    Norm norms[3];
    Linear joint, output, query, recall, inner, outer;
} Layer;

/* The input of a sublayer: x, normalised if the layer is pre-norm. */
INLINE const float *given(const Layer *layer, int number, const float *x, int64_t r, float *normed) {
    if (!layer->pre) return x;
    normalise(&layer->norms[number], x, r, layer->d, normed);
    return normed;
}

/* Add a sublayer's output y to its input x, and normalise if the layer is post-norm. */
INLINE void around(const Layer *layer, int number, float *x, const float *y, int64_t r) {
    for (int64_t k = 0; k < r * layer->d; k++) x[k] += y[k];
    if (!layer->pre) normalise(&layer->norms[number], x, r, layer->d, x);
}

INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Rotary positions: rotate the queries and keys of a row, side by side, by their position. */
INLINE void turn(const Layer *layer, float *x, int64_t position) {
    int64_t half = layer->dk / 2;
    if (!layer->turns) return;
    const float *sine = layer->turns + position * layer->dk, *cosine = sine + half;
    for (int64_t head = 0; head < layer->heads + layer->groups; head++, x += layer->dk)
        for (int64_t k = 0; k < half; k++) {
            float first = x[k], second = x[k + half];
            x[k] = __builtin_fmaf(-second, sine[k], first * cosine[k]);
            x[k + half] = __builtin_fmaf(second, cosine[k], first * sine[k]);
        }
}

/* The scratch space of a layer for R rows: normalised rows, projections, outputs of the attention, attention weights of one
 * query, and quantised rows. */
typedef struct {
    float *normed, *wide, *seen, *weights;
    uint8_t *bytes;
    int64_t threads;
} Room;

/* The size of that space in numbers of 4 bytes, for attention over up to `keys` keys. */
EXPORT FAST int64_t layer_room(const Layer *layer, int64_t r, int64_t keys) {
    int64_t seen = layer->heads * layer->dv, width = larger(layer->d, larger(layer->joint.f, layer->inner.f));
    return r * (layer->d + width + seen + larger(width, seen) / 2 + 5) + keys;
}

static FAST Room divided(const Layer *layer, int64_t r, int64_t keys, float *room, int64_t threads) {
    int64_t width = larger(layer->d, larger(layer->joint.f, layer->inner.f));
    float *wide = room + r * layer->d, *seen = wide + r * width, *weights = seen + r * layer->heads * layer->dv;
    return (Room){room, wide, seen, weights, (uint8_t *)(weights + keys), threads};
}

/* In the order of ACTIVATIONS in kernels/cpu.py. */
enum { RELU, GELU, GELU_TANH, SILU };

/* x sigmoid(y) = x / (1 + exp(-y)). */
INLINE Floats16 times_sigmoid(Floats16 x, Floats16 y) {
    Floats16 one = broadcast(1.0f);
    return divide(x, add(one, exponential(subtract(zeros(), y))));
}

/* GELU: x times the normal distribution function at x, with the error function by formula 7.1.26 of Abramowitz and Stegun
 * 1964, accurate to 1.5e-7. */
INLINE Floats16 gelu(Floats16 x) {
    Floats16 one = broadcast(1.0f), z = multiply(magnitude(x), broadcast(0.707106781f));
    Floats16 t = divide(one, multiply_add(z, broadcast(0.3275911f), one));
    Floats16 y = multiply_add(t, broadcast(1.061405429f), broadcast(-1.453152027f));
    y = multiply_add(y, t, broadcast(1.421413741f));
    y = multiply_add(y, t, broadcast(-0.284496736f));
    y = multiply_add(y, t, broadcast(0.254829592f));
    Floats16 tail = multiply(multiply(y, t), exponential(subtract(zeros(), multiply(z, z))));
    tail = multiply(tail, broadcast(0.5f)); /* the probability beyond |x|, on one side */
    return multiply(x, where_negative(x, tail, subtract(one, tail)));
}

INLINE Floats16 activated(int64_t activation, Floats16 x) {
    if (activation == GELU) return gelu(x);
    if (activation == SILU) return times_sigmoid(x, x);
    if (activation == RELU) return maximum(zeros(), x);
    Floats16 cubic = multiply(multiply(x, x), broadcast(0.044715f)); /* tanh form, Hendrycks and Gimpel 2016 */
    return times_sigmoid(x, multiply(multiply_add(cubic, x, x), broadcast(1.5957691216f)));
}

static FAST void feed_forward(const Layer *layer, float *x, int64_t r, const Room *room) {
    float *wide = room->wide;
    linear(&layer->inner, given(layer, 2, x, r, room->normed), r, wide, room->bytes, room->threads);
    for (int64_t k = 0, all = r * layer->inner.f; k < all; k += LANES) {
        int64_t held = all - k;
        store_first(wide + k, held, activated(layer->activation, load_first(wide + k, held)));
    }
    linear(&layer->outer, wide, r, room->normed, room->bytes, room->threads);
    around(layer, 2, x, room->normed, r);
}

/* Run an encoder of `count` layers over flat sequences x (R, D), which begin at `offsets` (B + 1,), in place. */
EXPORT FAST void encoder(const Layer *layers, int64_t count, const int64_t *offsets, int64_t sources, int64_t longest,
                         float *x, int64_t r, float *work, int64_t threads) {
    const Room room = divided(layers, r, longest, work, threads);
    for (const Layer *layer = layers; layer < layers + count; layer++) {
        int64_t dk = layer->dk, dv = layer->dv, heads = layer->heads, stride = layer->joint.f;
        linear(&layer->joint, given(layer, 0, x, r, room.normed), r, room.wide, room.bytes, threads);
        for (int64_t source = 0; source < sources; source++) {
            for (int64_t row = offsets[source]; row < offsets[source + 1]; row++)
                turn(layer, room.wide + row * stride, row - offsets[source]);
            for (int64_t row = offsets[source]; row < offsets[source + 1]; row++)
                for (int64_t head = 0; head < heads; head++) {
                    int64_t group = head / (heads / layer->groups);
                    int64_t keys = offsets[source] * stride + heads * dk, values = keys + layer->groups * dk;
                    attend(room.wide + row * stride + head * dk, room.wide, room.wide, keys + group * dk,
                           values + group * dv, stride, stride, NULL, offsets[source + 1] - offsets[source], dk, dv, 0,
                           room.weights, room.seen + (row * heads + head) * dv);
                }
        }
        linear(&layer->output, room.seen, r, room.wide, room.bytes, threads);
        around(layer, 0, x, room.wide, r);
        feed_forward(layer, x, r, &room);
    }
}

/* Project flat sequences to keys or values, padded with zeros: (R, D) -> (B, G, longest, width). */
static FAST void heads_of(const Linear *layer, const int64_t *offsets, int64_t sources, int64_t longest, int64_t groups,
                          const float *x, float *work, int64_t threads, int64_t half, void *out) {
    int64_t r = offsets[sources], f = layer->f, width = f / groups, size = half ? sizeof(uint16_t) : sizeof(float);
    linear(layer, x, r, work, (uint8_t *)(work + r * f), threads);
    for (int64_t source = 0, first = 0; source < sources; source++)
        for (int64_t g = 0; g < groups; g++, first += longest * width) {
            int64_t times = offsets[source + 1] - offsets[source];
            for (int64_t t = 0; t < times; t++)
                store_cached(work + (offsets[source] + t) * f + g * width, width, out, first + t * width, half);
            memset((char *)out + (first + times * width) * size, 0, (size_t)((longest - times) * width * size));
        }
}

/* The keys and values of flat sequences (R, D) for cross-attention, each (B, G, longest, width), padded with zeros. `work`
 * holds R * (the larger F + D / 2 + 5) numbers. */
EXPORT FAST void remember(const Linear *key, const Linear *value, const int64_t *offsets, int64_t sources,
                          int64_t longest, int64_t groups, const float *x, float *work, int64_t threads, int64_t half,
                          void *keys, void *values) {
    heads_of(key, offsets, sources, longest, groups, x, work, threads, half, keys);
    heads_of(value, offsets, sources, longest, groups, x, work, threads, half, values);
}

/* The KV cache of a decoder layer: of the tokens that the rows have written, and of the sources (the memory). */
typedef struct {
    void *keys, *values;
    const void *memory_keys, *memory_values;
} Past;

/* Common to all layers of a step: `length` of `room` time steps in the caches are filled, sources are padded to `longest`.
 * The others are as in `rows_attention`. */
typedef struct {
    int64_t room, beam, length, longest, half;
    const int32_t *slots;
    const int64_t *lengths;
} Place;

/* Run the newest token of each row, x (R, D), through a layer, in place, adding its keys and values to the cache. */
static FAST void decoder_layer(const Layer *layer, const Past *past, const Place *place, float *x, int64_t r,
                               const Room *room) {
    int64_t heads = layer->heads, groups = layer->groups, dk = layer->dk, dv = layer->dv, beam = place->beam;
    int64_t stride = layer->joint.f;

    linear(&layer->joint, given(layer, 0, x, r, room->normed), r, room->wide, room->bytes, room->threads);
    for (int64_t row = 0; row < r; row++) {
        turn(layer, room->wide + row * stride, place->length);
        for (int64_t g = 0; g < groups; g++) {
            int64_t cell = ((row / beam * groups + g) * place->room + place->length) * beam + row % beam;
            const float *key = room->wide + row * stride + heads * dk;
            store_cached(key + g * dk, dk, past->keys, cell * dk, place->half);
            store_cached(key + groups * dk + g * dv, dv, past->values, cell * dv, place->half);
        }
    }
    rows_attention(room->wide, stride, past->keys, past->values, r, beam, heads, groups, dk, dv, place->room, beam,
                   place->length + 1, place->half, NULL, place->slots, room->weights, room->seen);
    linear(&layer->output, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 0, x, room->wide, r);

    linear(&layer->query, given(layer, 1, x, r, room->normed), r, room->wide, room->bytes, room->threads);
    rows_attention(room->wide, layer->query.f, past->memory_keys, past->memory_values, r, beam, heads, groups, dk, dv,
                   place->longest, 1, place->longest, place->half, place->lengths, NULL, room->weights, room->seen);
    linear(&layer->recall, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 1, x, room->wide, r);

    feed_forward(layer, x, r, room);
}

/* A decoder and its embedding: rows of `table` (vocabulary, D), int8 with `steps` or float32 without, are scaled by
 * `factor` and added to `positions`, or NULL. `last` is the norm after the layers, without scale if there is none. */
typedef struct {
    const Layer *layers;
    int64_t count;
    const void *table;
    int64_t vocabulary;
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
            x[k] = __builtin_fmaf(number, (float)decoder->factor, place ? place[k] : 0.0f);
        }
    }
}

/* The scratch space of a decoder's layers, which in `work` follows x (R, D). */
INLINE Room decoder_room(const Decoder *decoder, const Place *place, int64_t r, float *work, int64_t threads) {
    return divided(decoder->layers, r, larger(place->room, place->longest), work + r * decoder->layers->d, threads);
}

/* The newest token of each row (R,) -> the input of the output projection, x (R, D). Returns 0, with nothing done, if a
 * token is not in the vocabulary. */
static FAST int64_t hidden(const Decoder *decoder, const Past *pasts, const Place *place, const int64_t *tokens, int64_t r,
                           const Room *room, float *x) {
    for (int64_t row = 0; row < r; row++)
        if (tokens[row] < 0 || tokens[row] >= decoder->vocabulary) return 0;
    embed(decoder, tokens, r, place->length, x);
    for (int64_t i = 0; i < decoder->count; i++) decoder_layer(&decoder->layers[i], &pasts[i], place, x, r, room);
    if (decoder->last.scale) normalise(&decoder->last, x, r, decoder->layers->d, x);
    return 1;
}

/* The newest token of each row (R,) -> the logits of the next (R, V). Returns 0 if a token is not in the vocabulary. `work`
 * holds R * D numbers more than `layer_room`. */
EXPORT FAST int64_t decode(const Decoder *decoder, const Linear *output, const Past *pasts, const Place *place,
                           const int64_t *tokens, int64_t r, float *work, int64_t threads, float *logits) {
    const Room room = decoder_room(decoder, place, r, work, threads);
    if (!hidden(decoder, pasts, place, tokens, r, &room, work)) return 0;
    linear(output, work, r, logits, room.bytes, threads);
    return 1;
}

/* Reorder by `rows` and append to each row its token or, if `tokens` is NULL, its slot: (R, t) -> (R, t + 1). */
static void extend(const int32_t *from, const int64_t *rows, int64_t r, int64_t t, const int64_t *tokens, int64_t beam,
                   int32_t *to) {
    for (int64_t row = 0; row < r; row++, to += t + 1) {
        memcpy(to, from + rows[row] * t, (size_t)t * sizeof *to);
        to[t] = (int32_t)(tokens ? tokens[row] : row % beam);
    }
}

/* The ids of the newest tokens in the decoder's table; NULL if one is not in the shortlist. */
static const int64_t *named(const Search *search, int64_t r, int64_t v) {
    if (!search->names) return search->newest;
    for (int64_t row = 0; row < r; row++) {
        if (search->newest[row] < 0 || search->newest[row] >= v) return NULL;
        search->named[row] = search->names[search->newest[row]];
    }
    return search->named;
}

/* Take steps of a search, the first with its `newest` tokens, until an output may end or `most` steps are done. Returns the
 * number of steps, or 0 if a token is not in the vocabulary. The last step's continuations are not yet appended to rows.
 *
 * `tokens` and `slots` are double-buffered, `span` numbers each. Logits are computed for `together` sources at a time, and
 * read while they are still in the cache. */
EXPORT FAST int64_t ahead(const Decoder *decoder, const Linear *output, const Past *pasts, const Place *start,
                          Search *search, int64_t most, int64_t r, float *work, int64_t threads) {
    int64_t beam = start->beam, v = output->f, d = decoder->layers->d;
    const Room room = decoder_room(decoder, start, r, work, threads);
    Place place = *start;
    for (int64_t k = 0; k < search->forbidden; k++)
        if (search->never[k] < 0 || search->never[k] >= v) return 0;
    for (int64_t step = 1;; step++, place.length++) {
        int64_t held = (step - 1) % 2 * search->span, other = step % 2 * search->span, t = place.length + 1;
        place.slots = beam > 1 ? search->slots + held : NULL;
        const int64_t *tokens = named(search, r, v);
        if (!tokens || !hidden(decoder, pasts, &place, tokens, r, &room, work)) return 0;
        search->ends = 0;
        for (int64_t first = 0, last; first < r / beam; first = last) {
            last = r / beam - first < search->together ? r / beam : first + search->together;
            int64_t rows = (last - first) * beam;
            linear(output, work + first * beam * d, rows, search->logits, room.bytes, threads);
            for (int64_t row = 0; search->others && row < rows; row++) {
                const uint8_t *others = search->others + (first + row / beam) * v;
                float *x = search->logits + row * v;
                for (int64_t k = 0; k < v; k++) x[k] = others[k] ? -INFINITY : x[k];
            }
            log_normaliser(search->logits, rows, v, search->normaliser, threads);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t k = 0; k < search->forbidden; k++) search->logits[row * v + search->never[k]] = -INFINITY;
            choose(search, first, last, v, beam, t);
        }
        if (search->ends || step == most) return step;
        memcpy(search->scores, search->live, (size_t)r * sizeof *search->scores);
        extend(search->tokens + held, search->rows, r, t, search->newest, beam, search->tokens + other);
        if (beam > 1) extend(search->slots + held, search->rows, r, t, NULL, beam, search->slots + other);
    }
}
