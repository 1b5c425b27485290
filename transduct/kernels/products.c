/* Products of a few rows with a constant packed matrix, int8 or float32. */
#include "kernels.h"

#if AMX
#define TILED __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8")))
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* The checksum of the sources that were compiled; see setup.py. */
EXPORT int sources(void) { return (int)SOURCES; }

#if COMPILED
enum {
    VECTORS = 4,
    COLUMNS = LANES * VECTORS, /* of a tile: with ROWS rows, its sums and weights fill the registers */
    ROWS = 6,
    OFFSET = 128, /* makes activations unsigned: the processor multiplies unsigned by signed bytes */
    STEPS = 127,
    LINE = 64,        /* bytes of a cache line */
    AHEAD = 2048,     /* prefetch distance, in bytes, of weights that are read once */
    CHUNK = 8,        /* steps of a product between prefetches */
    SHARED = 1 << 19, /* multiplications, with an allowance for starting, that are worth several threads */
    PARTS = 8,        /* per thread, so that idle threads can take over work */
};

#if AMX
static int has_amx; /* whether this process may use AMX */

int amx_permitted(unsigned kind) {
    enum { TILES = 1 << 24, ASK = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILES && d & kind && !syscall(SYS_arch_prctl, ASK, TILE_DATA);
}

TILED void configure_tiles(uint8_t rows) {
    const struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE},
               {rows, rows, rows, rows, rows, LANES, LANES, LANES}};
    __asm__ volatile("" ::"m"(shape) : "memory"); /* GCC's intrinsic does not declare that it reads `shape` */
    _tile_loadconfig(&shape);
}
#endif

/* Whether the processor has the instructions. Call it first: it also looks for AMX. */
EXPORT int supported(void) {
#if AMX
    enum { INT8 = 1 << 25 };
    has_amx = amx_permitted(INT8);
#endif
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

/* The size in bytes of a packed int8 matrix (F, D). */
EXPORT int64_t packed_size(int64_t f, int64_t d) {
    int64_t blocks = (f + COLUMNS - 1) / COLUMNS, fours = (d + 3) / 4;
    return blocks * COLUMNS * (fours * 4 + (int64_t)sizeof(int32_t));
}

/* Pack an int8 matrix (F, D): blocks of COLUMNS columns, four numbers of each at a time, and then the corrections of their
 * sums that undo OFFSET. */
EXPORT void pack(const int8_t *weight, int64_t f, int64_t d, int8_t *packed) {
    int64_t blocks = (f + COLUMNS - 1) / COLUMNS, fours = (d + 3) / 4;
    int32_t *sums = (int32_t *)(packed + blocks * COLUMNS * fours * 4);
    memset(packed, 0, (size_t)packed_size(f, d));
    for (int64_t first = 0; first < f; first += COLUMNS)
        for (int64_t start = 0; start < d; start += LINE) /* a cache line of each column at a time: the cache holds these */
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

/* Quantise a row to integers from -127 to 127, plus OFFSET. Returns the step, or NaN if the row contains one. */
INLINE float quantise(const float *x, int64_t d, uint8_t *out) {
    __m512 largest = _mm512_set1_ps(1e-12f);
    __mmask16 nans = 0;
    int64_t k = 0;
    for (; k < d; k += LANES) {
        __m512 numbers = _mm512_maskz_loadu_ps(lanes(d - k), x + k);
        nans |= _mm512_cmp_ps_mask(numbers, numbers, _CMP_UNORD_Q); /* a maximum may drop a NaN */
        largest = _mm512_max_ps(largest, _mm512_abs_ps(numbers));
    }
    float most = nans ? NAN : _mm512_reduce_max_ps(largest);
    __m512 scale = _mm512_set1_ps(1.0f / most * (float)STEPS); /* rounds like PyTorch's 127 / most */
    __m512i offset = _mm512_set1_epi32(OFFSET);
    for (k = 0; k < d; k += LANES) {
        __mmask16 held = lanes(d - k);
        __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(held, x + k), scale));
        _mm_mask_storeu_epi8(out + k, held, _mm512_cvtepi32_epi8(_mm512_add_epi32(steps, offset)));
    }
    return most / (float)STEPS;
}

/* Dequantise a tile of sums by the steps of their column and row, and add the bias. */
INLINE void write_tile(const int rows, __m512i sum[][VECTORS], const float *scales, const float *steps,
                       const float *bias, float *out, int64_t f, int64_t columns) {
    UNROLLED
    for (int v = 0; v < VECTORS; v++) {
        if (v * LANES >= columns) break;
        __mmask16 held = lanes(columns - v * LANES);
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

/* Weights to prefetch while others are multiplied, `bytes` at a time. To prefetch all of them at once would stall the
 * multiplication until they arrive. */
typedef struct {
    const char *from;
    int64_t bytes;
} Ahead;

INLINE void fetch(Ahead *ahead) {
    for (int64_t line = 0; line < ahead->bytes; line += LINE) _mm_prefetch(ahead->from + line, _MM_HINT_T1);
    ahead->from += ahead->bytes;
}

/* Prefetch into the L1 cache what is read soon, if every weight is read `once`. */
INLINE void fetch_soon(const int once, const void *weights) {
    if (once) _mm_prefetch((const char *)weights + AHEAD, _MM_HINT_T0);
}

/* An int8 tile: `rows` rows times a block of columns, which no other rows read if `once`. */
INLINE void tile(const int rows, const int once, Ahead ahead, const uint8_t *x, int64_t stride, const int8_t *block,
                 const int32_t *sums, int64_t fours, const float *scales, const float *steps, const float *bias, float *out, int64_t f,
                 int64_t columns) {
    __m512i sum[ROWS][VECTORS];
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_loadu_si512(sums + v * LANES);
    for (int64_t k = 0; k < fours;) {
        if (!once) fetch(&ahead);
        for (int64_t end = k + CHUNK < fours ? k + CHUNK : fours; k < end; k++, block += COLUMNS * 4) {
            __m512i weights[VECTORS];
            UNROLLED
            for (int v = 0; v < VECTORS; v++) {
                weights[v] = _mm512_loadu_si512(block + v * LANES * 4);
                fetch_soon(once, block + v * LANES * 4);
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
    }
    write_tile(rows, sum, scales, steps, bias, out, f, columns);
}

/* The same for float32. */
INLINE void float_tile(const int rows, const int once, Ahead ahead, const float *x, int64_t d, const float *block, const float *bias,
                       float *out, int64_t f, int64_t columns) {
    __m512 sum[ROWS][VECTORS];
    UNROLLED
    for (int v = 0; v < VECTORS; v++) {
        __mmask16 held = columns > v * LANES ? lanes(columns - v * LANES) : 0;
        __m512 shift = bias ? _mm512_maskz_loadu_ps(held, bias + v * LANES) : _mm512_setzero_ps();
        UNROLLED
        for (int r = 0; r < rows; r++) sum[r][v] = shift;
    }
    for (int64_t k = 0; k < d;) {
        if (!once) fetch(&ahead);
        for (int64_t end = k + CHUNK < d ? k + CHUNK : d; k < end; k++, block += COLUMNS) {
            __m512 weights[VECTORS];
            UNROLLED
            for (int v = 0; v < VECTORS; v++) {
                weights[v] = _mm512_loadu_ps(block + v * LANES);
                fetch_soon(once, block + v * LANES);
            }
            UNROLLED
            for (int r = 0; r < rows; r++) {
                __m512 number = _mm512_set1_ps(x[r * d + k]);
                UNROLLED
                for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_fmadd_ps(number, weights[v], sum[r][v]);
            }
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

/* Packing of a float32 matrix (F, D): blocks of COLUMNS columns, one number of each at a time, zero-padded. */
typedef struct {
    const float *weight;
    int64_t f, d;
    float *packed;
} Layout;

static void lay_out(const Layout *matrix, int64_t first, int64_t last) {
    int64_t f = matrix->f, d = matrix->d;
    for (int64_t b = first * COLUMNS; b < last * COLUMNS; b += COLUMNS)
        for (int64_t start = 0; start < d; start += LANES)
            for (int64_t column = b; column < b + COLUMNS; column++)
                for (int64_t k = start; k < d && k < start + LANES; k++)
                    matrix->packed[b * d + k * COLUMNS + column - b] = column < f ? matrix->weight[column * d + k] : 0.0f;
}

static void block_of_layout(const void *matrix, int64_t block) { lay_out(matrix, block, block + 1); }

EXPORT void pack_floats(const float *weight, int64_t f, int64_t d, float *packed, int64_t threads) {
    Layout matrix = {weight, f, d, packed};
    in_parts(block_of_layout, &matrix, (f + COLUMNS - 1) / COLUMNS, f * d >= SHARED / 4 ? threads : 1);
}

/* A product in `parts`. For an int8 layer, `rows` (R, D) are quantised and followed by their steps (R,). */
typedef struct {
    const Linear *layer;
    const void *rows;
    int64_t r;
    float *out;
    int64_t parts;
} Product;

/* The columns, of `bytes` each, that are read after a block: after the last one those of the next matrix, if known. */
INLINE const char *columns_after(const Linear *layer, int64_t block, int64_t bytes) {
    int64_t last = (layer->f - 1) / COLUMNS;
    if (block == last && layer->next) return layer->next;
    return (const char *)layer->packed + (block < last ? block + 1 : block) * COLUMNS * bytes;
}

#if AMX
/* Blocks [first, last) of the columns of an int8 product with AMX: LANES rows at a time, LINE numbers of each. Integer sums
 * are exact, so the results have the same bits as without AMX. */
static TILED void amx_columns_of(const Product *product, int64_t first, int64_t last) {
    const Linear *layer = product->layer;
    int64_t r = product->r, f = layer->f, d = layer->d, tiles = (r + LANES - 1) / LANES;
    int64_t share = (COLUMNS * LINE / tiles + LINE - 1) / LINE * LINE; /* bytes to prefetch per step */
    const int8_t *packed = layer->packed;
    const int32_t *sums = (const int32_t *)(packed + (f + COLUMNS - 1) / COLUMNS * COLUMNS * d);
    const uint8_t *rows = product->rows;
    const float *scales = (const float *)(rows + r * d);
    int count = r < LANES ? (int)r : LANES;
    configure_tiles((uint8_t)count);
    for (int64_t b = first * COLUMNS; b < last * COLUMNS; b += COLUMNS)
        for (int64_t i = 0; i < tiles; i++) {
            int64_t row = i + 1 < tiles ? i * LANES : r - count; /* the last tile may overlap the one before */
            const uint8_t *x = rows + row * d;
            const int8_t *block = packed + b * d;
            Ahead ahead = {columns_after(layer, b / COLUMNS, d) + i * share * (d / LINE), share};
            __m512i sum[LANES][VECTORS];
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t k = 0; k < d; k += LINE, block += COLUMNS * LINE) {
                fetch(&ahead);
                _tile_loadd(4, x + k, d);
                _tile_loadd(5, block, COLUMNS * 4);
                _tile_dpbusd(0, 4, 5);
                _tile_loadd(6, block + LINE, COLUMNS * 4);
                _tile_dpbusd(1, 4, 6);
                _tile_loadd(7, block + 2 * LINE, COLUMNS * 4);
                _tile_dpbusd(2, 4, 7);
                _tile_loadd(5, block + 3 * LINE, COLUMNS * 4);
                _tile_dpbusd(3, 4, 5);
            }
            _tile_stored(0, &sum[0][0], sizeof sum[0]);
            _tile_stored(1, &sum[0][1], sizeof sum[0]);
            _tile_stored(2, &sum[0][2], sizeof sum[0]);
            _tile_stored(3, &sum[0][3], sizeof sum[0]);
            for (int n = 0; n < count; n++)
                for (int v = 0; v < VECTORS; v++)
                    sum[n][v] = _mm512_add_epi32(sum[n][v], _mm512_loadu_si512(sums + b + v * LANES));
            write_tile(count, sum, scales + row, layer->steps + b, layer->bias ? layer->bias + b : NULL,
                       product->out + row * f + b, f, f - b);
        }
    _tile_release();
}
#endif

/* Blocks [first, last) of the columns of a product. */
static FAST void columns_of(const Product *product, int64_t first, int64_t last) {
    const Linear *layer = product->layer;
    int integers = layer->steps != NULL;
#if AMX
    if (integers && has_amx && product->r > 2 * ROWS && layer->d % LINE == 0) {
        amx_columns_of(product, first, last);
        return;
    }
#endif
    int64_t r = product->r, f = layer->f, fours = (layer->d + 3) / 4;
    int64_t stride = integers ? fours * 4 : layer->d * (int64_t)sizeof(float); /* bytes of a row and of a column */
    const uint8_t *rows = product->rows;
    const int8_t *packed = layer->packed;
    const int32_t *sums = (const int32_t *)(packed + (f + COLUMNS - 1) / COLUMNS * COLUMNS * stride);
    const float *scales = (const float *)(rows + r * stride);
    int64_t passes = (r + ROWS - 1) / ROWS;
    int64_t share = (CHUNK * COLUMNS * 4 / passes + LINE - 1) / LINE * LINE; /* bytes to prefetch per CHUNK steps */
    for (int64_t b = first; b < last; b++) {
        int64_t columns = f - b * COLUMNS < COLUMNS ? f - b * COLUMNS : COLUMNS;
        const float *shift = layer->bias ? layer->bias + b * COLUMNS : NULL;
        for (int64_t row = 0, pass = 0; row < r; pass++) {
            const uint8_t *x = rows + row * stride;
            const int8_t *block = packed + b * COLUMNS * stride;
            int64_t fetched = pass * share * ((stride / 4 + CHUNK - 1) / CHUNK);
            const Ahead ahead = {columns_after(layer, b, stride) + fetched, share};
            float *out = product->out + row * f + b * COLUMNS;
#define TILE(n, once)                                                                                                  \
    if (integers)                                                                                                      \
        tile(n, once, ahead, x, stride, block, sums + b * COLUMNS, fours, scales + row, layer->steps + b * COLUMNS,    \
             shift, out, f, columns);                                                                                  \
    else float_tile(n, once, ahead, (const float *)x, layer->d, (const float *)block, shift, out, f, columns);         \
    row += n
            if (passes == 1) switch (r) {
            case 1: TILE(1, 1); break;
            case 2: TILE(2, 1); break;
            case 3: TILE(3, 1); break;
            case 4: TILE(4, 1); break;
            case 5: TILE(5, 1); break;
            default: TILE(ROWS, 1);
            }
            else switch ((r - row + passes - pass - 1) / (passes - pass)) { /* rows spread evenly over passes */
            case 3: TILE(3, 0); break;
            case 4: TILE(4, 0); break;
            case 5: TILE(5, 0); break;
            default: TILE(ROWS, 0);
            }
#undef TILE
        }
    }
}

static void part_of_product(const void *data, int64_t part) {
    const Product *product = data;
    int64_t blocks = (product->layer->f + COLUMNS - 1) / COLUMNS;
    columns_of(product, blocks * part / product->parts, blocks * (part + 1) / product->parts);
}

/* x (R, D) W^T + b, as declared in kernels.h. Even for a single row several cores are faster than one: together they read
 * the weights at a higher bandwidth. */
EXPORT FAST void linear(const Linear *layer, const float *x, int64_t r, float *out, uint8_t *room, int64_t threads) {
    int64_t d = layer->d, stride = (d + 3) / 4 * 4;
    float *scales = (float *)(room + r * stride);
    if (!r) return;
    for (int64_t row = 0; row < r && layer->steps; row++) {
        memset(room + row * stride + d, 0, (size_t)(stride - d));
        scales[row] = quantise(x + row * d, d, room + row * stride);
    }
    if ((r + 3) * layer->f * d < SHARED) threads = 1;
    int64_t blocks = (layer->f + COLUMNS - 1) / COLUMNS, parts = threads > 1 ? PARTS * threads : 1;
    Product product = {layer, layer->steps ? (const void *)room : x, r, out, parts < blocks ? parts : blocks};
    in_parts(part_of_product, &product, product.parts, threads);
}

#else

EXPORT int supported(void) { return 0; }

#endif
