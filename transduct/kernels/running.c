/* A running batch: sources whose rows take steps together, each source at a position of its own.
 *
 * Keys and values lie in a pool of cells, one for each token: (G, cells, K) and (G, cells, V) in each layer. A source owns
 * some cells. Its rows share those of the encoder, and list those of the tokens that they continue. */
#include "kernels.h"

/* A finished output: its `length` tokens, without the begin and the end. */
typedef struct {
    double score, rank;
    int64_t length;
    int32_t *tokens;
} Finished;

/* When a source with `beam` finished outputs is done; see decoding/search.py. */
enum { LIKELIEST, EARLY, ESTIMATE, NEVER };

/* A source of a running batch: `beam` rows, of which `active` may be continued, of `length` tokens each.
 *
 * `tokens` and `cells` (2, beam, span) are double-buffered with a beam; `cells` are those of the tokens. `owned` lists the
 * cells for new tokens, `beam` for each time step, and `memory` the `sources` cells of the encoder. The first `forced`
 * tokens of an output are `prefix`, and the first `free` of them cost nothing. `never` lists the `forbidden` tokens. An
 * output of `limit` tokens must end, at no cost with `cut`. `penalties` (limit + 1,) divide scores by length, up to
 * `longest`. `finished` are the best so far, `count` of them, the best first; `likeliest` is their largest score. With
 * `drawn` no token is chosen: the logits (V,) and their `normaliser` are written there. */
typedef struct {
    int64_t beam, active, length, limit, longest, span, sources, end, forced, free, forbidden, cut, stopping, count, done;
    double likeliest, normaliser;
    const int64_t *prefix, *never;
    const double *penalties;
    const int32_t *memory, *owned;
    int32_t *tokens, *cells;
    double *scores;
    Finished *finished;
    float *drawn;
} Source;

/* The pool of a layer. */
typedef struct {
    void *keys, *values;
} Pool;

/* The buffers of a running batch: pools of `room` cells each, float16 if `half`; for up to `rows` rows the scratch space
 * `work`, and for at least `together` rows at a time `logits` and `normalisers`. Steps end when `news` is not zero. */
typedef struct {
    const Pool *pools;
    int64_t room, half, rows, together;
    float *work, *logits, *normalisers;
    const int64_t *news;
} Batch;

/* Project flat sequences (R, D) to keys and values in these cells (R,). `work` is as for `remember`. */
EXPORT FAST void remember_cells(const Linear *key, const Linear *value, const int32_t *cells, int64_t r, int64_t groups,
                                const float *x, float *work, int64_t threads, const Batch *batch, int64_t layer) {
    const Pool *pool = &batch->pools[layer];
    for (int n = 0; n < 2; n++) {
        const Linear *linear_ = n ? value : key;
        int64_t f = linear_->f, width = f / groups;
        linear(linear_, x, r, work, (uint8_t *)(work + r * f), threads);
        for (int64_t row = 0; row < r; row++)
            for (int64_t g = 0; g < groups; g++)
                store_cached(work + row * f + g * width, width, n ? pool->values : pool->keys,
                             (g * batch->room + cells[row]) * width, batch->half);
    }
}

/* The cells of the tokens of a row; those of a single row are in order. */
INLINE int32_t *cells_of(const Source *source, int64_t row) {
    if (source->beam == 1) return (int32_t *)source->owned;
    return source->cells + (source->length % 2 * source->beam + row) * source->span;
}

INLINE int32_t *tokens_of(const Source *source, int64_t row) {
    int64_t buffer = source->beam == 1 ? 0 : source->length % 2;
    return source->tokens + (buffer * source->beam + row) * source->span;
}

/* Attention of the active rows of all sources, over their own tokens or, with `memory`, over their source. */
INLINE void attend_sources(const Layer *layer, const Pool *pool, const Batch *batch, Source *const *all, int64_t count,
                           const float *query, int64_t stride, int memory, int64_t half, const Room *room) {
    int64_t heads = layer->heads, dk = layer->dk, dv = layer->dv;
    float *out = room->seen;
    for (int64_t n = 0; n < count; n++)
        for (int64_t row = 0; row < all[n]->active; row++, query += stride)
            for (int64_t head = 0; head < heads; head++, out += dv) {
                int64_t first = head / (heads / layer->groups) * batch->room;
                attend(query + head * dk, pool->keys, pool->values, first * dk, first * dv, 0, 0,
                       memory ? all[n]->memory : cells_of(all[n], row), memory ? all[n]->sources : all[n]->length, dk, dv,
                       half, room->weights, out);
            }
}

static FAST void attend_all(const Layer *layer, const Pool *pool, const Batch *batch, Source *const *all, int64_t count,
                            const float *query, int64_t stride, int memory, const Room *room) {
    if (batch->half) attend_sources(layer, pool, batch, all, count, query, stride, memory, 1, room);
    else attend_sources(layer, pool, batch, all, count, query, stride, memory, 0, room);
}

/* Run the newest tokens of all rows, x (R, D), through a layer, in place; see `decoder_layer`. */
static FAST void running_layer(const Layer *layer, const Pool *pool, const Batch *batch, Source *const *all,
                               int64_t count, float *x, int64_t r, const Room *room) {
    int64_t heads = layer->heads, groups = layer->groups, dk = layer->dk, dv = layer->dv, stride = layer->joint.f;
    float *wide = room->wide;
    linear(&layer->joint, given(layer, 0, x, r, room->normed), r, wide, room->bytes, room->threads);
    for (int64_t n = 0; n < count; n++)
        for (int64_t row = 0; row < all[n]->active; row++, wide += stride) {
            int64_t position = all[n]->length - 1, cell = cells_of(all[n], row)[position];
            turn(layer, wide, position);
            for (int64_t g = 0; g < groups; g++) {
                const float *key = wide + heads * dk + g * dk, *value = wide + (heads + groups) * dk + g * dv;
                store_cached(key, dk, pool->keys, (g * batch->room + cell) * dk, batch->half);
                store_cached(value, dv, pool->values, (g * batch->room + cell) * dv, batch->half);
            }
        }
    attend_all(layer, pool, batch, all, count, room->wide, stride, 0, room);
    linear(&layer->output, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 0, x, room->wide, r);

    linear(&layer->query, given(layer, 1, x, r, room->normed), r, room->wide, room->bytes, room->threads);
    attend_all(layer, pool, batch, all, count, room->wide, layer->query.f, 1, room);
    linear(&layer->recall, room->seen, r, room->wide, room->bytes, room->threads);
    around(layer, 1, x, room->wide, r);
    feed_forward(layer, x, r, room);
}

/* Keep an output that ends after the tokens of a row, unless there are `beam` better ones. Of equal ones the first stays. */
static FAST void finish(Source *source, int64_t row, double score) {
    int64_t length = source->length, counted = length < source->longest ? length : source->longest;
    double rank = score / source->penalties[counted];
    int64_t place = source->count;
    if (!(score <= source->likeliest)) source->likeliest = score;
    while (place && source->finished[place - 1].rank < rank) place--;
    if (place == source->beam) return;
    int64_t last = source->count < source->beam ? source->count++ : source->beam - 1;
    int32_t *tokens = source->finished[last].tokens;
    for (; last > place; last--) source->finished[last] = source->finished[last - 1];
    memcpy(tokens, tokens_of(source, row) + 1, (size_t)(length - 1) * sizeof *tokens);
    source->finished[place] = (Finished){score, rank, length - 1, tokens};
}

/* Whether a source is done, whose likeliest active row has this score; see `Beam._enough`. */
static FAST int enough(const Source *source, double active) {
    int64_t length = source->stopping == NEVER || source->length > source->longest ? source->longest : source->length;
    if (source->length >= source->limit) return 1;
    if (source->count < source->beam) return 0;
    if (source->stopping == LIKELIEST) return source->likeliest >= active;
    if (source->stopping == EARLY) return 1;
    return source->finished[source->beam - 1].rank >= active / source->penalties[length];
}

/* Take the best continuations of a source, given the logits (rows, V) of its active rows: finish those that end, and extend
 * the rows by the others. */
static FAST void choose_next(Source *source, float *logits, const float *normalisers, int64_t v) {
    int64_t beam = source->beam, count = 2 * beam, length = source->length, end = source->end, live = 0;
    Candidate found[2 * MOST], next[MOST];
    for (int64_t i = 0; i < count; i++) found[i] = (Candidate){-INFINITY, 0, 0};
    for (int64_t row = 0; row < source->active; row++) {
        const float *x = logits + row * v;
        double before = source->scores[row], normaliser = normalisers[row];
        int must = length >= source->limit, forced = length - 1 < source->forced;
        if (must || forced) {
            int64_t token = must ? end : source->prefix[length - 1];
            int free = must ? source->cut : length - 1 < source->free;
            double score = free ? before : before + ((double)x[token] - normaliser);
            if (score > found[count - 1].score) insert(found, count, (Candidate){score, row, token});
        } else consider(found, count, x, v, before, normaliser, row);
    }
    for (int64_t i = 0; i < count && live < beam; i++) {
        int ended = found[i].token == end && found[i].score > -INFINITY;
        if (ended && i < beam) finish(source, found[i].row, found[i].score);
        if (!ended) next[live++] = found[i];
    }
    source->done = enough(source, next[0].score);
    if (source->done) return;
    const int32_t *tokens = tokens_of(source, 0), *cells = cells_of(source, 0);
    source->length++;
    source->active = 0;
    for (int64_t row = 0; row < beam && (row == 0 || next[row].score > -INFINITY); row++) {
        int32_t *to = tokens_of(source, row), *at = cells_of(source, row);
        if (beam > 1) {
            memcpy(to, tokens + next[row].row * source->span, (size_t)length * sizeof *to);
            memcpy(at, cells + next[row].row * source->span, (size_t)length * sizeof *at);
            at[length] = source->owned[length * beam + row];
        }
        to[length] = (int32_t)next[row].token;
        source->scores[row] = next[row].score;
        source->active++;
    }
}

/* Take steps of a running batch until a source is done, has its tokens drawn elsewhere, or there are news, `most` at most.
 * Returns the number of steps, or 0 if a token is not in the vocabulary. */
EXPORT FAST int64_t advance(const Decoder *decoder, const Linear *output, const Batch *batch, Source *const *all,
                            int64_t count, int64_t most, int64_t keys, int64_t threads) {
    int64_t d = decoder->layers->d, v = output->f, stop = 0, steps = 0;
    float *x = batch->work;
    for (int64_t n = 0; n < count; n++) {
        for (int64_t k = 0; k < all[n]->forbidden; k++)
            if (all[n]->never[k] < 0 || all[n]->never[k] >= v) return 0;
        for (int64_t k = 0; k < all[n]->forced; k++)
            if (all[n]->prefix[k] < 0 || all[n]->prefix[k] >= v) return 0;
    }
    while (!stop && steps < most && !(steps && *(volatile const int64_t *)batch->news)) {
        int64_t r = 0;
        for (int64_t n = 0; n < count; n++)
            for (int64_t row = 0; row < all[n]->active; row++, r++) {
                int64_t token = tokens_of(all[n], row)[all[n]->length - 1];
                if (token < 0 || token >= decoder->vocabulary) return 0;
                embed(decoder, &token, 1, all[n]->length - 1, x + r * d);
            }
        const Room room = divided(decoder->layers, r, keys, x + r * d, threads);
        for (int64_t i = 0; i < decoder->count; i++)
            running_layer(&decoder->layers[i], &batch->pools[i], batch, all, count, x, r, &room);
        if (decoder->last.scale) normalise(&decoder->last, x, r, d, x);
        for (int64_t first = 0, last = 0, done = 0; first < count; first = last) {
            int64_t rows = 0;
            while (last < count && (!rows || rows + all[last]->active <= batch->together)) rows += all[last++]->active;
            linear(output, x + done * d, rows, batch->logits, room.bytes, threads);
            log_normaliser(batch->logits, rows, v, batch->normalisers, threads);
            done += rows;
            float *logits = batch->logits, *normalisers = batch->normalisers;
            for (int64_t n = first; n < last; n++) {
                Source *source = all[n];
                int64_t active = source->active;
                for (int64_t row = 0; row < active; row++)
                    for (int64_t k = 0; k < source->forbidden; k++) logits[row * v + source->never[k]] = -INFINITY;
                if (source->drawn) {
                    memcpy(source->drawn, logits, (size_t)v * sizeof *logits);
                    source->normaliser = *normalisers;
                } else choose_next(source, logits, normalisers, v);
                stop |= source->drawn || source->done;
                logits += active * v, normalisers += active;
            }
        }
        steps++;
    }
    return steps;
}
