/* Log-normalisers, and the continuations that a search chooses, as in decoding/search.py. */
#include "kernels.h"

#if COMPILED
enum { MOST = 32 }; /* rows per source: WIDEST_BEAM in kernels/cpu_search.py */

/* The log-sum-exp of each row: (R, V) -> (R,). */
EXPORT FAST void log_normaliser(const float *logits, int64_t r, int64_t v, float *out) {
    for (int64_t row = 0; row < r; row++, logits += v) {
        __m512 largest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
        int64_t k = 0;
        for (; k + LANES <= v; k += LANES) largest = _mm512_max_ps(largest, _mm512_loadu_ps(logits + k));
        __mmask16 rest = lanes(v - k);
        largest = _mm512_mask_max_ps(largest, rest, largest, _mm512_maskz_loadu_ps(rest, logits + k));
        float most = _mm512_reduce_max_ps(largest);
        if (isinf(most)) {
            for (k = 0; k < v; k++) most = isnan(logits[k]) ? NAN : most;
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
            float least = -INFINITY; /* only larger logits can be among the best */
            if (row && found[count - 1].score > -INFINITY)
                least = nextafterf((float)(found[count - 1].score - before + normaliser), -INFINITY);
            for (int64_t k = 0; k < v; k += LANES) {
                __m512 each = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), lanes(v - k), x + k);
                uint32_t larger = _mm512_cmp_ps_mask(each, _mm512_set1_ps(least), _CMP_GT_OQ);
                for (; larger; larger &= larger - 1) {
                    int64_t token = k + __builtin_ctz(larger);
                    double score = before + ((double)x[token] - normaliser);
                    if (!(score > found[count - 1].score)) continue;
                    insert(found, count, (Candidate){score, row, token});
                    if (found[count - 1].score == -INFINITY) continue;
                    least = nextafterf((float)(found[count - 1].score - before + normaliser), -INFINITY);
                }
            }
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

#endif
