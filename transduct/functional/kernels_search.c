/* What a search goes on with, as decoding/search.py has it. */
#include "kernels.h"

#if COMPILED
enum { MOST = 32 }; /* rows of a source */

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
 * Equally likely ones come in the order of rows and tokens. Where a source's rows hold as many tokens as it has `limits`
 * (B), if there are any, nothing but the end is possible. Gives back how many ends there are. */
EXPORT FAST int64_t choose(const float *logits, int64_t r, int64_t v, int64_t beam, const float *normaliser,
                           const double *scores, int64_t end, const int64_t *limits, int64_t length, double *best,
                           double *live, int64_t *origin, int64_t *tokens, int64_t *rows, int64_t *newest) {
    Candidate found[2 * MOST];
    int64_t count = 2 * beam;
    int64_t ends = 0;
    for (int64_t source = 0; source < r / beam; source++) {
        for (int64_t i = 0; i < count; i++) found[i] = (Candidate){-INFINITY, 0, 0};
        for (int64_t row = 0; row < beam; row++) {
            const float *x = logits + (source * beam + row) * v;
            double before = scores[source * beam + row], mass = normaliser[source * beam + row];
            if (before == -INFINITY) continue;
            if (limits && limits[source] <= length) {
                double score = before + ((double)x[end] - mass);
                if (score > found[count - 1].score) insert(found, count, (Candidate){score, row, end});
                continue;
            }
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

#endif
