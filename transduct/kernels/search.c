/* Log-normalisers, and the continuations that a search chooses, as in decoding/search.py. */
#include "kernels.h"
enum { MOST = 32 }; /* rows per source: WIDEST_BEAM in kernels/cpu_search.py */

/* Rows of logits (R, V), and their log-sum-exp (R,). */
typedef struct {
    const float *logits;
    int64_t v;
    float *out;
} Logits;

static FAST void normaliser_of(const void *data, int64_t row) {
    const Logits *all = data;
    const float *logits = all->logits + row * all->v;
    Floats16 largest = broadcast(-INFINITY), total = zeros();
    int64_t v = all->v, k = 0;
    for (; k + LANES <= v; k += LANES) largest = maximum(largest, load(logits + k));
    int64_t rest = v - k;
    largest = first_or(maximum(largest, load_first(logits + k, rest)), rest, largest);
    float most = maximum_of(largest);
    all->out[row] = most;
    if (isinf(most)) {
        for (k = 0; k < v; k++)
            if (isnan(logits[k])) all->out[row] = NAN;
        return;
    }
    Floats16 shift = broadcast(most);
    for (k = 0; k + LANES <= v; k += LANES) total = add(total, exponential(subtract(load(logits + k), shift)));
    Floats16 last = exponential(subtract(load_first(logits + k, rest), shift));
    total = add(total, keep_first(last, rest));
    all->out[row] += logarithm(sum_of(total));
}

/* The log-sum-exp of each row: (R, V) -> (R,). */
EXPORT FAST void log_normaliser(const float *logits, int64_t r, int64_t v, float *out, int64_t threads) {
    const Logits all = {logits, v, out};
    in_parts(normaliser_of, &all, r, r * v < SHARED / 8 ? 1 : threads);
}

/* The next smaller float. */
INLINE float float_before(float x) {
    int32_t bits;
    if (!(x > -INFINITY)) return x;
    if (x == 0.0f) return -1.40129846e-45f;
    memcpy(&bits, &x, sizeof bits);
    bits += x > 0.0f ? -1 : 1;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A continuation of a row by a token. */
typedef struct {
    double score;
    int64_t row, token;
} Candidate;

/* Insert into the `count` best so far, sorted from the best; the last one drops out. */
INLINE void insert(Candidate *best, int64_t count, Candidate found) {
    int64_t place = count - 1;
    for (; place > 0 && best[place - 1].score < found.score; place--) best[place] = best[place - 1];
    best[place] = found;
}

/* Insert the continuations of a row with these logits (V,), whose score is `before`, into the `count` best so far. */
INLINE void consider(Candidate *found, int64_t count, const float *x, int64_t v, double before, double normaliser,
                     int64_t row) {
    float least = -INFINITY; /* only larger logits can be among the best */
    if (row && found[count - 1].score > -INFINITY)
        least = float_before((float)(found[count - 1].score - before + normaliser));
    for (int64_t k = 0; k < v; k += LANES) {
        uint32_t larger = bits_above(load_first(x + k, v - k), broadcast(least)) & first_bits(v - k);
        for (; larger; larger &= larger - 1) {
            int64_t token = k + __builtin_ctz(larger);
            double score = before + ((double)x[token] - normaliser);
            if (!(score > found[count - 1].score)) continue;
            insert(found, count, (Candidate){score, row, token});
            if (found[count - 1].score == -INFINITY) continue;
            least = float_before((float)(found[count - 1].score - before + normaliser));
        }
    }
}

/* Choose the continuations of the sources [first, last), whose logits `search` holds. The rows have `length` tokens.
 *
 * Of the best 2 * beam continuations of a source, the first `beam`, ends included, and the first `beam` that do not end are
 * written. Impossible ones are skipped; if too few remain, the results are padded with scores of minus infinity. Ties are
 * broken by the lower row, then the lower token. */
EXPORT FAST void choose(Search *search, int64_t first, int64_t last, int64_t v, int64_t beam, int64_t length) {
    double *best = search->best + first * beam, *live = search->live + first * beam;
    int64_t *origin = search->origin + first * beam, *chosen = search->chosen + first * beam;
    int64_t *rows = search->rows + first * beam, *newest = search->newest + first * beam;
    Candidate found[2 * MOST];
    int64_t count = 2 * beam, end = search->end;
    for (int64_t source = first; source < last; source++) {
        for (int64_t i = 0; i < count; i++) found[i] = (Candidate){-INFINITY, 0, 0};
        for (int64_t row = 0; row < beam; row++) {
            int64_t place = (source - first) * beam + row;
            const float *x = search->logits + place * v;
            double before = search->scores[source * beam + row], normaliser = search->normaliser[place];
            if (before == -INFINITY) continue;
            if (search->limits && search->limits[source] <= length) {
                if (end < 0 || end >= v) continue;
                double score = before + ((double)x[end] - normaliser);
                if (score > found[count - 1].score) insert(found, count, (Candidate){score, row, end});
                continue;
            }
            consider(found, count, x, v, before, normaliser, row);
        }
        int64_t live_count = 0;
        for (int64_t i = 0; i < count; i++) {
            int ended = found[i].token == end && found[i].score > -INFINITY;
            if (i < beam) {
                *best++ = found[i].score, *origin++ = found[i].row, *chosen++ = found[i].token;
                search->ends += ended;
            }
            if (ended || live_count == beam) continue;
            *live++ = found[i].score, *rows++ = source * beam + found[i].row, *newest++ = found[i].token;
            live_count++;
        }
    }
}
