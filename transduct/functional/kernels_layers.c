/* Attention of a single query a row, and whole encoders and decoders, as blocks/transformer.py has them. */
#include "kernels.h"

#if COMPILED

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

/* Fetches numbers into the cache that are needed soon. A source's keys and values are too few in a row for the processor to
 * do it by itself. */
INLINE void fetch(const float *numbers, int64_t count) {
    enum { LINE = 16 };
    for (int64_t k = 0; k < count; k += LINE) _mm_prefetch((const char *)(numbers + k), _MM_HINT_T1);
}

/* The same of many rows. Row r of source r / beam has heads (H, K) at `query + r * query_stride`; each of G heads of its
 * keys and values serves H / G of them. Time t of source s and group g stands at ((s * G + g) * room + t) * width + slot,
 * counted in vectors of K or V numbers: `slots` (R, times) says which of `width` slots. `times` are seen, or as many as
 * `lengths` says of each source. */
EXPORT FAST void rows_attention(const float *query, int64_t query_stride, const float *keys, const float *values,
                                int64_t r, int64_t beam, int64_t heads, int64_t groups, int64_t dk, int64_t dv,
                                int64_t room, int64_t width, int64_t times, const int64_t *lengths,
                                const int32_t *slots, float *weights, float *out) {
    for (int64_t row = 0; row < r; row++) {
        int64_t source = row / beam, seen = lengths ? lengths[source] : times;
        const int32_t *slot = slots ? slots + row * times : NULL;
        for (int64_t head = 0; head < heads; head++) {
            int64_t first = (source * groups + head / (heads / groups)) * room * width, next = first + room * width;
            if (row % beam == 0) { /* the other rows of a source find its keys and values in the cache */
                fetch(keys + next * dk, seen * width * dk);
                fetch(values + next * dv, seen * width * dv);
            }
            attend(query + row * query_stride + head * dk, keys + first * dk, values + first * dv, width * dk, width * dv,
                   slot, seen, dk, dv, weights, out + (row * heads + head) * dv);
        }
    }
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

EXPORT FAST void normalised(const Norm *norm, const float *x, int64_t r, int64_t d, float *out) {
    normalise(norm, x, r, d, out);
}

/* A layer in use, as blocks/transformer.py has it; without `query` and `recall`, and its second norm, one of an encoder. */
typedef struct {
    int64_t d, heads, groups, dk, dv, pre, activation;
    const float *turns; /* of each position the sines and then the cosines by which queries and keys are turned; or NULL */
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

/* Rotary positions: the queries and keys of a row, side by side, at a position. */
INLINE void turn(const Layer *layer, float *x, int64_t position) {
    int64_t half = layer->dk / 2;
    if (!layer->turns) return;
    const float *sine = layer->turns + position * layer->dk, *cosine = sine + half;
    for (int64_t head = 0; head < layer->heads + layer->groups; head++, x += layer->dk)
        for (int64_t k = 0; k < half; k++) {
            float first = x[k], second = x[k + half];
            x[k] = first * cosine[k] - second * sine[k];
            x[k + half] = first * sine[k] + second * cosine[k];
        }
}

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

/* In the order of ACTIVATIONS in functional/kernels.py. */
enum { RELU, GELU, GELU_TANH, SILU };

/* x / (1 + exp(-y)). */
INLINE __m512 gated(__m512 x, __m512 y) {
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(x, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), y))));
}

/* x times the share of a normal distribution that lies below x, its error function by formula 7.1.26 of Abramowitz and
 * Stegun 1964, which is off by 1.5e-7 at most. */
INLINE __m512 gelu(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f), z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.707106781f));
    __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 y = _mm512_fmadd_ps(t, _mm512_set1_ps(1.061405429f), _mm512_set1_ps(-1.453152027f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(1.421413741f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(-0.284496736f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.254829592f));
    __m512 beyond = _mm512_mul_ps(_mm512_mul_ps(y, t), exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(z, z))));
    beyond = _mm512_mul_ps(beyond, _mm512_set1_ps(0.5f)); /* what lies further out than |x|, on one side */
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_blend_ps(negative, _mm512_sub_ps(one, beyond), beyond));
}

INLINE __m512 activated(int64_t activation, __m512 x) {
    if (activation == GELU) return gelu(x);
    if (activation == SILU) return gated(x, x);
    if (activation == RELU) return _mm512_max_ps(_mm512_setzero_ps(), x);
    __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f)); /* of Hendrycks and Gimpel 2016 */
    return gated(x, _mm512_mul_ps(_mm512_fmadd_ps(cubic, x, x), _mm512_set1_ps(1.5957691216f)));
}

static FAST void feed_forward(const Layer *layer, float *x, int64_t r, const Room *room) {
    float *wide = room->wide;
    linear(&layer->inner, given(layer, 2, x, r, room->normed), r, wide, room->bytes, room->threads);
    for (int64_t k = 0, all = r * layer->inner.f; k < all; k += LANES) {
        __mmask16 held = lanes(all - k);
        _mm512_mask_storeu_ps(wide + k, held, activated(layer->activation, _mm512_maskz_loadu_ps(held, wide + k)));
    }
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
        for (int64_t source = 0; source < sources; source++) {
            for (int64_t row = offsets[source]; row < offsets[source + 1]; row++)
                turn(layer, room.wide + row * stride, row - offsets[source]);
            for (int64_t row = offsets[source]; row < offsets[source + 1]; row++)
                for (int64_t head = 0; head < heads; head++) {
                    int64_t group = head / (heads / layer->groups);
                    const float *keys = room.wide + offsets[source] * stride + heads * dk;
                    attend(room.wide + row * stride + head * dk, keys + group * dk,
                           keys + layer->groups * dk + group * dv, stride, stride, NULL,
                           offsets[source + 1] - offsets[source], dk, dv, room.weights,
                           room.seen + (row * heads + head) * dv);
                }
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

/* Where all layers of a decoder stand; as for `rows_attention`. */
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
    for (int64_t row = 0; row < r; row++) {
        turn(layer, room->wide + row * stride, place->length);
        for (int64_t g = 0; g < groups; g++) {
            int64_t cell = ((row / beam * groups + g) * place->room + place->length) * beam + row % beam;
            const float *key = room->wide + row * stride + heads * dk;
            memcpy(past->keys + cell * dk, key + g * dk, (size_t)dk * sizeof(float));
            memcpy(past->values + cell * dv, key + groups * dk + g * dv, (size_t)dv * sizeof(float));
        }
    }
    rows_attention(room->wide, stride, past->keys, past->values, r, beam, heads, groups, dk, dv, place->room, beam,
                   place->length + 1, NULL, place->slots, room->weights, room->seen);
    linear(&layer->output, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 0, x, room->wide, r);

    linear(&layer->query, given(layer, 1, x, r, room->normed), r, room->wide, room->bytes, room->threads);
    rows_attention(room->wide, layer->query.f, past->memory_keys, past->memory_values, r, beam, heads, groups, dk, dv,
                   place->longest, 1, place->longest, place->lengths, NULL, room->weights, room->seen);
    linear(&layer->recall, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 1, x, room->wide, r);

    feed_forward(layer, x, r, room);
}

/* A decoder with its embedding: a table (vocabulary, D), of 8-bit integers if there are steps, times `factor`, and a vector for each
 * position or NULL; and its last norm, if there is one. */
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
            x[k] = number * (float)decoder->factor + (place ? place[k] : 0.0f);
        }
    }
}

/* Where a decoder works: before the room of its layers there is one for x (R, D). */
INLINE Room beside(const Decoder *decoder, const Place *place, int64_t r, float *work, int64_t threads) {
    return divided(decoder->layers, r, larger(place->room, place->longest), work + r * decoder->layers->d, threads);
}

/* The newest token of each row (R,) to what its next one is told by, x (R, D); whether all are in the vocabulary, or else
 * nothing is done. */
static FAST int64_t hidden(const Decoder *decoder, const Past *pasts, const Place *place, const int64_t *tokens, int64_t r,
                           const Room *room, float *x) {
    for (int64_t row = 0; row < r; row++)
        if (tokens[row] < 0 || tokens[row] >= decoder->vocabulary) return 0;
    embed(decoder, tokens, r, place->length, x);
    for (int64_t i = 0; i < decoder->count; i++) decoder_layer(&decoder->layers[i], &pasts[i], place, x, r, room);
    if (decoder->last.scale) normalise(&decoder->last, x, r, decoder->layers->d, x);
    return 1;
}

/* The newest token of each row (R,) to the logits (R, V) of the next; 0 where one is not in the vocabulary. The work wants
 * R * D numbers more than a layer. */
EXPORT FAST int64_t decode(const Decoder *decoder, const Linear *output, const Past *pasts, const Place *place,
                           const int64_t *tokens, int64_t r, float *work, int64_t threads, float *logits) {
    const Room room = beside(decoder, place, r, work, threads);
    if (!hidden(decoder, pasts, place, tokens, r, &room, work)) return 0;
    linear(output, work, r, logits, room.bytes, threads);
    return 1;
}

/* (R, t) to (R, t + 1): each row goes on from one of them, by a token, or by its own number in its source. */
static void follow(const int32_t *from, const int64_t *rows, int64_t r, int64_t t, const int64_t *tokens, int64_t beam,
                   int32_t *to) {
    for (int64_t row = 0; row < r; row++, to += t + 1) {
        memcpy(to, from + rows[row] * t, (size_t)t * sizeof *to);
        to[t] = (int32_t)(tokens ? tokens[row] : row % beam);
    }
}

/* The newest tokens as the decoder's table knows them; NULL if one has no name. */
static const int64_t *named(const Search *search, int64_t r, int64_t v) {
    if (!search->names) return search->newest;
    for (int64_t row = 0; row < r; row++) {
        if (search->newest[row] < 0 || search->newest[row] >= v) return NULL;
        search->named[row] = search->names[search->newest[row]];
    }
    return search->named;
}

/* Steps of a search that begins with its `newest` tokens, until something may end, or `most`; gives back how many, of which
 * the last is not followed yet, or 0 where a token is not in the vocabulary. Tokens and slots take turns in two rooms of
 * `span` numbers each. Logits are looked at as soon as there are those of `together` sources, while a cache has them. */
EXPORT FAST int64_t ahead(const Decoder *decoder, const Linear *output, const Past *pasts, const Place *start,
                          Search *search, int64_t most, int64_t r, float *work, int64_t threads) {
    int64_t beam = start->beam, v = output->f, d = decoder->layers->d;
    const Room room = beside(decoder, start, r, work, threads);
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
            log_normaliser(search->logits, rows, v, search->normaliser);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t k = 0; k < search->forbidden; k++) search->logits[row * v + search->never[k]] = -INFINITY;
            choose(search, first, last, v, beam, t);
        }
        if (search->ends || step == most) return step;
        memcpy(search->scores, search->live, (size_t)r * sizeof *search->scores);
        follow(search->tokens + held, search->rows, r, t, search->newest, beam, search->tokens + other);
        if (beam > 1) follow(search->slots + held, search->rows, r, t, NULL, beam, search->slots + other);
    }
}

#endif
