/* float32 matrix products with AMX, which multiplies bfloat16 only, sixteen times as fast as AVX512 multiplies float32.
 *
 * A float32 number is the exact sum of three bfloat16 numbers of 8 bits each, high + middle + low. Six of the nine products
 * of two such sums, each with a float32 sum, give what float32 gives: those left out are below 2^-25 of the whole.
 * (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
 * Computations".) Parts below 1e-38 count as zero, and where a number is infinite the result may be NaN.
 *
 * Let M and N be the rows of the two matrices, K their width.
 */
#include "kernels.h"

#if AMX
#define SPLIT __attribute__((target(AVX512_TARGET ",avx512vnni,prfchw,amx-tile,amx-int8,amx-bf16")))
#define INLINE_SPLIT static inline __attribute__((always_inline)) SPLIT
#define INLINE static inline __attribute__((always_inline, target(AVX512_TARGET)))

enum {
    HIGH, MIDDLE, LOW, SPLITS, /* the parts of a number */
    TILE = LANES * 2 * LANES,  /* numbers of a tile register: 16 rows (or columns), 32 of the K terms of their sums */
    STEP = 2 * LANES,          /* terms of a step, and rows of a strip, which is two tiles */
    CELL = SPLITS * 2 * TILE,  /* numbers of a strip in a step: its two tiles of each part */
    DEEP = 1024,               /* terms of a pass, */
    BROAD = 1024,              /* its rows of the smaller matrix, packed for all threads, */
    TALL = 128,                /* and rows of the larger one in a part, packed by the thread that multiplies them */
    PIECES = 32,               /* parts into which packing the smaller matrix is divided */
};

/* A matrix of `rows` rows and `columns` columns with any strides, one of which is 1. */
typedef struct {
    const float *x;
    int64_t rows, columns, down, along;
} Matrix;

/* out (M, N) = left (M, K) right^T (N, K) + bias (N,) or NULL; or, to `add`, out + left right^T. The smaller matrix is packed
 * into `room`, of `split_room` numbers. */
typedef struct {
    Matrix left, right;
    const float *bias;
    float *out;
    uint16_t *room;
    int64_t add;
} Floats;

/* A pass: `steps` from the term `from` on, `strips` of the smaller matrix from its row `first` on, `tall` rows of the larger
 * one in a part. */
typedef struct {
    const Floats *of;
    int64_t from, steps, first, strips, tall;
} Pass;

INLINE int64_t divided(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* The upper halves of two vectors in pairs: the bfloat16 numbers that are nearest to zero. */
INLINE __m512i halves(__m512 one, __m512 two) {
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(one), 16), 0xaaaaaaaa, _mm512_castps_si512(two));
}

/* What is left of numbers without their upper halves. */
INLINE __m512 rest_of(__m512 x, __m512 from) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(from), upper)));
}

/* Numbers whose upper halves are the bfloat16 numbers nearest to x. */
INLINE __m512 rounded(__m512 x) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)));
}

/* The mask of the first `count` lanes, at most all. */
INLINE __mmask16 lanes(int64_t count) { return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

/* Exchange the rows and the columns of 16 x 16 numbers. */
INLINE void turn(__m512i a[LANES]) {
    __m512i b[LANES];
    UNROLLED for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLLED for (int i = 0; i < LANES; i += 4) UNROLLED for (int j = 0; j < 2; j++) {
        a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
        a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
    }
    UNROLLED for (int i = 0; i < LANES; i += 8) UNROLLED for (int j = 0; j < 4; j++) {
        b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
        b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
    }
    UNROLLED for (int j = 0; j < 8; j++) {
        a[j] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88);
        a[j + 8] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd);
    }
}

/* Read 16 rows from `row` on in 16 columns from `column` on as (rows, columns) if `left`, else (columns, rows). Outside of
 * the matrix there are zeros. */
INLINE void read(const Matrix *matrix, int64_t row, int64_t column, const int left, __m512i out[LANES]) {
    const float *x = matrix->x + row * matrix->down + column * matrix->along;
    int64_t rows = matrix->rows - row, columns = matrix->columns - column;
    int natural = matrix->along == 1; /* the numbers of a row lie beside each other */
    int64_t count = natural ? rows : columns, stride = natural ? matrix->down : matrix->along;
    __mmask16 held = natural ? columns > 0 ? lanes(columns) : 0 : rows > 0 ? lanes(rows) : 0;
    for (int i = 0; i < LANES; i++)
        out[i] = i < count ? _mm512_castps_si512(_mm512_maskz_loadu_ps(held, x + i * stride)) : _mm512_setzero_si512();
    if (natural != left) turn(out);
}

/* Split 16 rows from `row` on in 32 columns from `column` on into tiles of pairs of terms, (rows, pairs) if `left`, else
 * (pairs, rows). A pair is a term and the sixteenth after it. The high part is nearest to zero, so that NaN stays NaN, the
 * middle one is the nearest number, so that what is left out is not biased, and the low one is the rest, which is exact. */
INLINE void pack_tiles(const Matrix *matrix, int64_t row, int64_t column, const int left, uint16_t *out) {
    __m512i one[LANES], two[LANES];
    read(matrix, row, column, left, one);
    read(matrix, row, column + LANES, left, two);
    for (int i = 0; i < LANES; i++, out += STEP) {
        __m512 x = _mm512_castsi512_ps(one[i]), y = _mm512_castsi512_ps(two[i]);
        _mm512_storeu_si512(out + HIGH * 2 * TILE, halves(x, y));
        x = rest_of(x, x), y = rest_of(y, y);
        __m512 near_x = rounded(x), near_y = rounded(y);
        _mm512_storeu_si512(out + MIDDLE * 2 * TILE, halves(near_x, near_y));
        _mm512_storeu_si512(out + LOW * 2 * TILE, halves(rest_of(x, near_x), rest_of(y, near_y)));
    }
}

/* Pack cells [first, last) of `strips` strips of a matrix from `row` on, in the order in which the matrix lies in memory. */
static SPLIT void pack_cells(const Matrix *matrix, const Pass *pass, int64_t row, int64_t strips, int64_t first, int64_t last,
                             const int left, uint16_t *out) {
    for (int64_t cell = first; cell < last; cell++) {
        int64_t strip = matrix->along == 1 ? cell / pass->steps : cell % strips;
        int64_t step = matrix->along == 1 ? cell % pass->steps : cell / strips;
        for (int half = 0; half < 2; half++)
            pack_tiles(matrix, row + strip * STEP + half * LANES, pass->from + step * STEP, left,
                       out + (strip * pass->steps + step) * CELL + half * TILE);
    }
}

/* Whether the left matrix is the smaller one. */
INLINE_SPLIT int left_smaller(const Floats *job) { return job->left.rows < job->right.rows; }

static SPLIT void pack_smaller(const void *data, int64_t part) {
    const Pass *pass = data;
    int left = left_smaller(pass->of);
    int64_t cells = pass->strips * pass->steps, first = cells * part / PIECES, last = cells * (part + 1) / PIECES;
    pack_cells(left ? &pass->of->left : &pass->of->right, pass, pass->first, pass->strips, first, last, left, pass->of->room);
}

/* Tile registers are named by literals: 0 to 3 for sums, 4 and 5 for the left matrix, 6 and 7 for the right one. */
#define LEFT(part) _tile_loadd(4, left + (part) * 2 * TILE, 2 * STEP); _tile_loadd(5, left + ((part) * 2 + 1) * TILE, 2 * STEP)
#define RIGHT(part) _tile_loadd(6, right + (part) * 2 * TILE, 2 * STEP); _tile_loadd(7, right + ((part) * 2 + 1) * TILE, 2 * STEP)
#define MULTIPLY _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7)

/* Prefetch a sixth of the next step. */
#define FETCH(part) \
    _Pragma("GCC unroll 16") for (int64_t line = 0; line < TILE; line += STEP) \
        _mm_prefetch((const char *)(left + CELL + (part) * TILE + line), _MM_HINT_T0), \
        _mm_prefetch((const char *)(right + CELL + (part) * TILE + line), _MM_HINT_T0)

/* A strip of the left matrix times one of the right, added to 32 x 32 numbers `before`: of `stride`, or of one row for 0.
 * The result's place is fetched ahead, which otherwise a store would wait for. */
INLINE_SPLIT void multiply_strips(const uint16_t *left, const uint16_t *right, int64_t steps, const float *before,
                                  int64_t stride, float *out, int64_t out_stride) {
    _tile_loadd(0, before, stride * 4);
    _tile_loadd(1, before + LANES, stride * 4);
    _tile_loadd(2, before + LANES * stride, stride * 4);
    _tile_loadd(3, before + LANES * stride + LANES, stride * 4);
    for (int64_t row = 0; row < STEP; row++) {
        _mm_prefetch((const char *)(out + row * out_stride), _MM_HINT_ET0);
        _mm_prefetch((const char *)(out + row * out_stride + LANES), _MM_HINT_ET0);
    }
    for (int64_t step = 0; step < steps; step++, left += CELL, right += CELL) {
        LEFT(HIGH); RIGHT(LOW); MULTIPLY; FETCH(0);
        RIGHT(MIDDLE); MULTIPLY; FETCH(1);
        RIGHT(HIGH); MULTIPLY; FETCH(2);
        LEFT(MIDDLE); MULTIPLY; FETCH(3);
        RIGHT(MIDDLE); MULTIPLY; FETCH(4);
        LEFT(LOW); RIGHT(HIGH); MULTIPLY; FETCH(5);
    }
    _tile_stored(0, out, out_stride * 4);
    _tile_stored(1, out + LANES, out_stride * 4);
    _tile_stored(2, out + LANES * out_stride, out_stride * 4);
    _tile_stored(3, out + LANES * out_stride + LANES, out_stride * 4);
}

/* The same at an edge of the result, of which `rows` rows and `columns` columns are left. */
static SPLIT void multiply_edge(const uint16_t *left, const uint16_t *right, int64_t steps, const float *before, int64_t stride,
                                float *out, int64_t out_stride, int64_t rows, int64_t columns) {
    float sums[STEP][STEP] = {{0}};
    int64_t width = (columns < STEP ? columns : STEP) * (int64_t)sizeof(float);
    for (int64_t i = 0; i < STEP && i < rows; i++) memcpy(sums[i], before + i * stride, (size_t)width);
    multiply_strips(left, right, steps, sums[0], STEP, sums[0], STEP);
    for (int64_t i = 0; i < STEP && i < rows; i++) memcpy(out + i * out_stride, sums[i], (size_t)width);
}

/* Some rows of the larger matrix times all packed rows of the smaller one. */
static SPLIT void multiply_rows(const void *data, int64_t part) {
    static _Thread_local _Alignas(LANES * 4) uint16_t packed[(TALL / STEP) * (DEEP / STEP) * CELL];
    static const float zeros[STEP];
    const Pass *pass = data;
    const Floats *job = pass->of;
    int left = left_smaller(job);
    const Matrix *larger = left ? &job->right : &job->left;
    int64_t m = job->left.rows, n = job->right.rows, cells = pass->steps * CELL, first = part * pass->tall;
    int64_t strips = divided(larger->rows - first < pass->tall ? larger->rows - first : pass->tall, STEP);
    int64_t stride = job->add || pass->from ? n : 0;
    pack_cells(larger, pass, first, strips, 0, strips * pass->steps, !left, packed);
    configure_tiles(LANES);
    for (int64_t j = 0; j < pass->strips; j++)
        for (int64_t i = 0; i < strips; i++) {
            const uint16_t *small = job->room + j * cells, *large = packed + i * cells;
            const uint16_t *one = left ? small : large, *other = left ? large : small;
            int64_t of_small = pass->first + j * STEP, of_large = first + i * STEP;
            int64_t down = left ? of_small : of_large, across = left ? of_large : of_small;
            float *out = job->out + down * n + across;
            const float *before = stride ? out : job->bias ? job->bias + across : zeros;
            if (down + STEP <= m && across + STEP <= n) multiply_strips(one, other, pass->steps, before, stride, out, n);
            else multiply_edge(one, other, pass->steps, before, stride, out, n, m - down, n - across);
        }
    _tile_release();
}

/* Whether the processor can do this and may. */
EXPORT int64_t splits(void) {
    enum { BF16 = 1 << 22 };
    return path == AMX_INT8 && amx_permitted(BF16);
}

/* The numbers of scratch space for any product. */
EXPORT int64_t split_room(void) { return (BROAD / STEP) * (DEEP / STEP) * CELL; }

EXPORT SPLIT void split_product(const Floats *job, int64_t threads) {
    int64_t few = job->left.rows, many = job->right.rows, k = job->left.columns;
    if (few > many) few = job->right.rows, many = job->left.rows;
    int64_t parts = divided(divided(many, TALL), threads) * threads; /* equally many for each thread */
    Pass pass = {.of = job, .tall = divided(divided(many, parts), STEP) * STEP};
    for (pass.from = 0; pass.from < k; pass.from += DEEP)
        for (pass.first = 0; pass.first < few; pass.first += BROAD) {
            pass.steps = divided(k - pass.from < DEEP ? k - pass.from : DEEP, STEP);
            pass.strips = divided(few - pass.first < BROAD ? few - pass.first : BROAD, STEP);
            beside_torch(pack_smaller, &pass, PIECES, threads);
            beside_torch(multiply_rows, &pass, divided(many, pass.tall), threads);
        }
}

#else

EXPORT int64_t splits(void) { return 0; }
EXPORT int64_t split_room(void) { return 0; }
EXPORT void split_product(const void *job, int64_t threads) { (void)job, (void)threads; }

#endif
