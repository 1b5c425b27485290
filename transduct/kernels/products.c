/* Products of a few rows with a constant packed matrix, int8 or float32. */
#include "kernels.h"

enum {
    COLUMNS = LANES * VECTORS, /* of a block of a packed matrix */
    ROWS = 6,                  /* of a tile: its sums and weights fill the registers */
    ABREAST = 4,               /* the most vectors of columns of a tile */
    OFFSET = 128,              /* makes activations unsigned for instructions that multiply unsigned by signed bytes */
    STEPS = 127,
    LINE = 64,           /* bytes of a cache line */
    DISTANCE = 2048,     /* prefetch distance, in bytes, of weights that are read once */
    CHUNK = 8,           /* steps of a product between prefetches */
    SHARED = 1 << 19,    /* multiplications, with an allowance for starting, that are worth several threads */
    PARTS = 8,           /* per thread, so that idle threads can take over work */
    NEAR = 1 << 18,      /* bytes of rows that stay in the L2 cache while narrow blocks pass them */
};

/* How int8 numbers lie for an instruction: `together` of a column side by side, and those of rows with `bytes` bytes each
 * and an `offset`. */
typedef struct {
    int64_t together, bytes, offset;
} Form;

INLINE Form form_of(Path of) {
    switch (of) {
    case AVX2:
    case AVX512: return (Form){2, 2, 0};
    case AVX_VNNI:
    case AVX512_VNNI:
    case AMX_INT8: return (Form){4, 1, OFFSET};
    case I8MM: return (Form){8, 1, 0};
    default: return (Form){4, 1, 0};
    }
}

INLINE int64_t divided_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* The packed numbers of a block of columns, in bytes. */
INLINE int64_t bytes_of_block(int64_t d, int64_t integers) {
    int64_t together = form_of(path).together;
    return COLUMNS * (integers ? divided_up(d, together) * together : d * (int64_t)sizeof(float));
}

/* The size in bytes of a packed matrix (F, D), of int8 with `integers`, else of float32. */
EXPORT FAST int64_t packed_size(int64_t f, int64_t d, int64_t integers) {
    return divided_up(f, COLUMNS) * (bytes_of_block(d, integers) + COLUMNS * (int64_t)sizeof(int32_t));
}

/* Packing of a matrix (F, D): blocks of COLUMNS columns, zero-padded, one number of each at a time or, for int8, those that
 * are multiplied together. Corrections of the sums of int8, which undo `offset`, follow. */
typedef struct {
    const void *weight;
    int64_t f, d, integers;
    void *packed;
} Layout;

static FAST void lay_out_floats(const Layout *matrix, int64_t b) {
    int64_t f = matrix->f, d = matrix->d;
    const float *weight = matrix->weight;
    float *out = (float *)matrix->packed + b * COLUMNS * d;
    for (int64_t start = 0; start < d; start += LANES)
        for (int64_t column = 0; column < COLUMNS; column++)
            for (int64_t k = start; k < d && k < start + LANES; k++)
                out[k * COLUMNS + column] = b * COLUMNS + column < f ? weight[(b * COLUMNS + column) * d + k] : 0.0f;
}

static FAST void lay_out_integers(const Layout *matrix, int64_t b) {
    int64_t f = matrix->f, d = matrix->d, bytes = bytes_of_block(d, 1);
    const Form form = form_of(path);
    int8_t *out = (int8_t *)matrix->packed + b * bytes;
    int32_t *corrections = (int32_t *)((char *)matrix->packed + divided_up(f, COLUMNS) * bytes) + b * COLUMNS;
    memset(out, 0, (size_t)bytes);
    memset(corrections, 0, COLUMNS * sizeof *corrections);
    for (int64_t start = 0; start < d; start += LINE) /* a cache line of each column at a time: the cache holds these */
        for (int64_t column = 0; column < COLUMNS && b * COLUMNS + column < f; column++) {
            const int8_t *row = (const int8_t *)matrix->weight + (b * COLUMNS + column) * d + start;
            int64_t count = d - start < LINE ? d - start : LINE;
            int32_t sum = 0;
            for (int64_t k = 0; k < count; k++) sum += row[k];
            corrections[column] -= (int32_t)form.offset * sum;
            for (int64_t k = 0; k < count; k += form.together) {
                int64_t place = (start + k) / form.together * COLUMNS * form.together, left = count - k;
#if WITH_AVX2
                if (path == AVX2) { /* see `load_pairs` */
                    out[place + column % 8 * 4 + column / 8] = row[k];
                    if (left > 1) out[place + column % 8 * 4 + 2 + column / 8] = row[k + 1];
                    continue;
                }
#endif
                memcpy(out + place + column * form.together, row + k, (size_t)(left < form.together ? left : form.together));
            }
        }
#if WITH_AVX2
    for (int64_t k = 0; path == AVX2 && k < bytes; k += 2) out[k + 1] -= out[k] < 0; /* w + 256 v borrows from v */
#endif
}

static FAST void lay_out_block(const void *data, int64_t block) {
    const Layout *matrix = data;
    if (matrix->integers) lay_out_integers(matrix, block);
    else lay_out_floats(matrix, block);
}

EXPORT FAST void pack(const void *weight, int64_t f, int64_t d, int64_t integers, void *packed, int64_t threads) {
    Layout matrix = {weight, f, d, integers, packed};
    in_parts(lay_out_block, &matrix, divided_up(f, COLUMNS), f * d >= SHARED / 4 ? threads : 1);
}

/* Quantise a row to integers from -127 to 127, as `form` says. Returns the step, or NaN if the row contains one. */
INLINE float quantise(const float *x, int64_t d, const Form form, void *out) {
    Ints16 largest = bits_of(broadcast(1e-12f)), offset = all_ints((int32_t)form.offset);
    for (int64_t k = 0; k < d; k += LANES) /* as integers, numbers without a sign have the same order, and NaN is largest */
        largest = maximum_ints(largest, bits_of(magnitude(load_first(x + k, d - k))));
    int32_t bits = maximum_of_ints(largest);
    float most;
    memcpy(&most, &bits, sizeof most);
    Floats16 scale = broadcast(1.0f / most * (float)STEPS); /* rounds like PyTorch's 127 / most */
    for (int64_t k = 0; k < d; k += LANES) {
        Ints16 steps = add_ints(to_ints(multiply(load_first(x + k, d - k), scale)), offset);
        if (form.bytes == 2) store_uint16((uint16_t *)out + k, d - k, steps);
        else store_uint8((uint8_t *)out + k, d - k, steps);
    }
    return most / (float)STEPS;
}

/* A product in `parts`. A row takes `row_bytes` bytes in `rows` and is multiplied in `steps`. For an int8 layer the rows are
 * quantised, `scales` (R,) are their steps, and sums begin with `corrections` (F,). */
typedef struct {
    const Linear *layer;
    const void *rows;
    const float *scales;
    const int32_t *corrections;
    int64_t r, row_bytes, steps;
    float *out;
    int64_t parts;
} Product;

/* Dequantise a tile of sums by the steps of their column and row, and add the bias. */
INLINE void write_integers(const Product *product, int64_t row, int64_t column, const int rows, const int vectors,
                           Ints16 sum[][ABREAST]) {
    const Linear *layer = product->layer;
    UNROLLED for (int v = 0; v < vectors; v++, column += LANES) {
        int64_t columns = layer->f - column;
        if (columns <= 0) break;
        Floats16 step = load_first(layer->steps + column, columns);
        Floats16 shift = layer->bias ? load_first(layer->bias + column, columns) : zeros();
        UNROLLED for (int r = 0; r < rows; r++) {
            Floats16 found = multiply(to_floats(sum[r][v]), step);
            found = multiply_add(found, broadcast(product->scales[row + r]), shift);
            store_first(product->out + (row + r) * layer->f + column, columns, found);
        }
    }
}

#if WITH_AVX2
INLINE void write_pairs(const Product *product, int64_t row, int64_t column, const int rows, const int vectors,
                        Ints16 sum[][ABREAST]) {
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int v = 0; v < vectors; v++)
            sum[r][v] = add_ints(sums_of_pairs(sum[r][v]), load_ints(product->corrections + column + v * LANES));
    write_integers(product, row, column, rows, vectors, sum);
}
#endif

INLINE void write_floats(const Product *product, int64_t row, int64_t column, const int rows, const int vectors,
                         Floats16 sum[][ABREAST]) {
    int64_t f = product->layer->f;
    UNROLLED for (int v = 0; v < vectors; v++, column += LANES) {
        if (column >= f) break;
        UNROLLED for (int r = 0; r < rows; r++)
            store_first(product->out + (row + r) * f + column, f - column, sum[r][v]);
    }
}

INLINE Floats16 first_floats(const Product *product, int64_t column) {
    const Linear *layer = product->layer;
    return layer->bias && column < layer->f ? load_first(layer->bias + column, layer->f - column) : zeros();
}

INLINE Floats16 number_of(const void *address) {
    float number;
    memcpy(&number, address, sizeof number);
    return broadcast(number);
}

INLINE Ints16 integers_of(const void *address) {
    int32_t numbers;
    memcpy(&numbers, address, sizeof numbers);
    return all_ints(numbers);
}

/* Weights to prefetch while others are multiplied, `bytes` at a time. To prefetch all of them at once would stall the
 * multiplication until they arrive. */
typedef struct {
    const char *from;
    int64_t bytes;
} Ahead;

INLINE void fetch(Ahead *weights) {
    for (int64_t line = 0; line < weights->bytes; line += LINE) __builtin_prefetch(weights->from + line, 0, 2);
    weights->from += weights->bytes;
}

/* The columns that are read after a block of `bytes`: after the last one those of the next matrix, if known. */
INLINE const char *columns_after(const Linear *layer, int64_t block, int64_t bytes) {
    int64_t last = (layer->f - 1) / COLUMNS;
    if (block == last && layer->next) return layer->next;
    return (const char *)layer->packed + (block < last ? block + 1 : block) * bytes;
}

/* float32: one chain of fused additions over D, from the bias on. */
#define TILE(name) floats_##name
#define TILE_TARGET FAST
#define COLUMN_BYTES 4
#define SUMS Floats16
#define WEIGHTS(address) load((const float *)(address))
#define NUMBERS(address) number_of(address)
#define ADD_PRODUCTS(sum, numbers, weights) multiply_add(numbers, weights, sum)
#define FIRST_SUMS(product, column) first_floats(product, column)
#define WRITE(product, row, column, rows, vectors, sums) write_floats(product, row, column, rows, vectors, sums)
#include "tile.h"

/* int8 by instructions that every processor of the family has, which multiply two 16-bit numbers with x86 and four 8-bit
 * ones with ARM; no sum can overflow. */
#define TILE(name) plain_##name
#define TILE_TARGET FAST
#define SUMS Ints16
#if WITH_NEON
#define COLUMN_BYTES 4
#define WEIGHTS(address) load_bytes(address)
#define NUMBERS(address) bytes_of(address)
#define ADD_PRODUCTS(sum, numbers, weights) add_bytes(sum, numbers, weights)
#else
#define COLUMN_BYTES 2
#define NUMBERS(address) integers_of(address)
#define ADD_PRODUCTS(sum, numbers, weights) add_pairs(sum, numbers, weights)
#endif
#if WITH_AVX2
#define WEIGHTS(address) load_pairs((const int8_t *)(address), rows == ROWS)
#define FIRST_SUMS(product, column) all_ints(0)
#define WRITE(product, row, column, rows, vectors, sums) write_pairs(product, row, column, rows, vectors, sums)
#else
#define FIRST_SUMS(product, column) load_ints((product)->corrections + (column))
#define WRITE(product, row, column, rows, vectors, sums) write_integers(product, row, column, rows, vectors, sums)
#endif
#if WITH_AVX512
#define WEIGHTS(address) load_pairs((const int8_t *)(address))
#endif
#include "tile.h"

/* int8 by instructions for four 8-bit numbers, of which those of a row are unsigned with x86. */
#if WITH_AVX512 || (WITH_AVX2 && AVX_VNNI_COMPILED) || (WITH_NEON && DOTPROD_COMPILED)
#if WITH_NEON
#define TILE_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define AS_BYTES(x) EACH(Bytes64, vreinterpretq_s8_s32, x)
#define ADD_PRODUCTS(sum, numbers, weights) EACH3(Ints16, vdotq_s32, sum, AS_BYTES(numbers), AS_BYTES(weights))
#elif WITH_AVX512
#define TILE_TARGET __attribute__((target(AVX512_TARGET ",avx512vnni")))
#define ADD_PRODUCTS(sum, numbers, weights) _mm512_dpbusd_epi32(sum, numbers, weights)
#else
#define TILE_TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define ADD_PRODUCTS(sum, numbers, weights) BOTH3(Ints16, _mm256_dpbusd_avx_epi32, sum, numbers, weights)
#endif
#define FOURS 1
#define TILE(name) fours_##name
#define COLUMN_BYTES 4
#define SUMS Ints16
#define WEIGHTS(address) load_ints(address)
#define NUMBERS(address) integers_of(address)
#define FIRST_SUMS(product, column) load_ints((product)->corrections + (column))
#define WRITE(product, row, column, rows, vectors, sums) write_integers(product, row, column, rows, vectors, sums)
#include "tile.h"
#endif

#if WITH_NEON && DOTPROD_COMPILED
#define EIGHTS 1
#define TARGET_I8MM __attribute__((target("arch=armv8.2-a+i8mm")))
/* int8 by an instruction that multiplies eight numbers of two rows by eight of two columns: `pairs` of rows times a block
 * of columns. If `rows` is odd, the last one is multiplied twice. */
static inline __attribute__((always_inline)) TARGET_I8MM void eights_tile(const int pairs, const Product *product,
                                                                          int64_t block, int64_t row, int64_t rows) {
    int64_t stride = product->row_bytes;
    const int8_t *weights = (const int8_t *)product->layer->packed + block * COLUMNS * stride, *x[ROWS];
    int32x4_t squares[ROWS / 2][LANES / 2]; /* sums of two rows in two columns each */
    Ints16 sum[ROWS][ABREAST];
    UNROLLED for (int n = 0; n < 2 * pairs; n++)
        x[n] = (const int8_t *)product->rows + (row + (n < rows ? n : rows - 1)) * stride;
    UNROLLED for (int p = 0; p < pairs; p++)
        UNROLLED for (int n = 0; n < LANES / 2; n++) squares[p][n] = vdupq_n_s32(0);
    for (int64_t k = 0; k < stride; k += 8) {
        int8x16_t two[ROWS / 2];
        UNROLLED for (int p = 0; p < pairs; p++)
            two[p] = vcombine_s8(vld1_s8(x[2 * p] + k), vld1_s8(x[2 * p + 1] + k));
        UNROLLED for (int n = 0; n < LANES / 2; n++, weights += 16) {
            int8x16_t each = vld1q_s8(weights);
            UNROLLED for (int p = 0; p < pairs; p++) {
                squares[p][n] = vmmlaq_s32(squares[p][n], two[p], each);
                __asm__ volatile("" : "+w"(squares[p][n]));
            }
        }
    }
    UNROLLED for (int p = 0; p < pairs; p++)
        UNROLLED for (int n = 0; n < 4; n++) {
            int64x2_t left = vreinterpretq_s64_s32(squares[p][2 * n]), right = vreinterpretq_s64_s32(squares[p][2 * n + 1]);
            sum[2 * p][0].val[n] = vreinterpretq_s32_s64(vzip1q_s64(left, right));
            sum[2 * p + 1][0].val[n] = vreinterpretq_s32_s64(vzip2q_s64(left, right));
        }
    write_integers(product, row, block * COLUMNS, (int)rows, 1, sum);
}

#define SHAPE(name, pairs)                                                                                                 static __attribute__((noinline)) TARGET_I8MM void name(const Product *product, int64_t block, int64_t row,                                                                    int64_t rows) {                                                     eights_tile(pairs, product, block, row, rows);                                                                     }
SHAPE(eights1, 1)
SHAPE(eights2, 2)
SHAPE(eights3, 3)
#undef SHAPE

/* Blocks [first, last) of the columns times rows [from, to). */
static void eights_blocks(const Product *product, int64_t first, int64_t last, int64_t from, int64_t to) {
    for (int64_t b = first; b < last; b++)
        for (int64_t row = from; row < to; row += ROWS) {
            int64_t rows = to - row < ROWS ? to - row : ROWS;
            if (rows > 4) eights3(product, b, row, rows);
            else if (rows > 2) eights2(product, b, row, rows);
            else eights1(product, b, row, rows);
        }
}
#endif

#if AMX && WITH_AVX512
/* Blocks [first, last) of the columns of an int8 product with AMX: LANES rows at a time, LINE numbers of each. */
static TILED void amx_blocks(const Product *product, int64_t first, int64_t last) {
    const Linear *layer = product->layer;
    int64_t r = product->r, d = layer->d, tiles = (r + LANES - 1) / LANES;
    int64_t share = (COLUMNS * LINE / tiles + LINE - 1) / LINE * LINE; /* bytes to prefetch per step */
    const int8_t *packed = layer->packed;
    const uint8_t *rows = product->rows;
    int count = r < LANES ? (int)r : LANES;
    configure_tiles((uint8_t)count);
    for (int64_t b = first * COLUMNS; b < last * COLUMNS; b += COLUMNS)
        for (int64_t i = 0; i < tiles; i++) {
            int64_t row = i + 1 < tiles ? i * LANES : r - count; /* the last tile may overlap the one before */
            const uint8_t *x = rows + row * d;
            const int8_t *block = packed + b * d;
            Ahead after = {columns_after(layer, b / COLUMNS, d * COLUMNS) + i * share * (d / LINE), share};
            Ints16 sum[LANES][ABREAST];
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t k = 0; k < d; k += LINE, block += COLUMNS * LINE) {
                fetch(&after);
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
                    sum[n][v] = add_ints(sum[n][v], load_ints(product->corrections + b + v * LANES));
            write_integers(product, row, b, count, VECTORS, sum);
        }
    _tile_release();
}
#endif

/* Blocks [first, last) of the columns of a product. Integer sums are exact: every instruction set gives the same bits. */
static FAST void blocks_of(const Product *product, int64_t first, int64_t last) {
    int64_t r = product->r, near = NEAR / product->row_bytes / ROWS * ROWS;
#if AMX && WITH_AVX512
    if (product->scales && path == AMX_INT8 && r > 2 * ROWS && product->layer->d % LINE == 0) {
        amx_blocks(product, first, last);
        return;
    }
#endif
    if (VECTORS > 1) near = r; /* wide blocks read the rows rarely enough */
    else if (near < ROWS) near = ROWS;
    for (int64_t from = 0; from < r; from += near) {
        int64_t to = from + near < r ? from + near : r;
        if (!product->scales) floats_blocks(product, first, last, from, to);
#if EIGHTS
        else if (path == I8MM) eights_blocks(product, first, last, from, to);
#endif
#if FOURS
        else if (path != NEON && form_of(path).together == 4) fours_blocks(product, first, last, from, to);
#endif
        else plain_blocks(product, first, last, from, to);
    }
}
#undef FOURS
#undef EIGHTS

static FAST void part_of_product(const void *data, int64_t part) {
    const Product *product = data;
    int64_t blocks = divided_up(product->layer->f, COLUMNS);
    blocks_of(product, blocks * part / product->parts, blocks * (part + 1) / product->parts);
}

/* x (R, D) W^T + b -> (R, F). For int8, `room` holds R * (2 D + 20) bytes. Even for a single row several cores are faster
 * than one: together they read the weights at a higher bandwidth. */
EXPORT FAST void linear(const Linear *layer, const float *x, int64_t r, float *out, uint8_t *room, int64_t threads) {
    int64_t d = layer->d, blocks = divided_up(layer->f, COLUMNS), parts = threads > 1 ? PARTS * threads : 1;
    Product product = {layer, x, NULL, NULL, r, d * (int64_t)sizeof(float), d, out, parts < blocks ? parts : blocks};
    if (!r) return;
    if (layer->steps) {
        const Form form = form_of(path);
        int64_t used = d * form.bytes, stride = divided_up(d, form.together) * form.together * form.bytes;
        float *scales = (float *)(room + r * stride);
        for (int64_t row = 0; row < r; row++) {
            memset(room + row * stride + used, 0, (size_t)(stride - used));
            scales[row] = quantise(x + row * d, d, form, room + row * stride);
        }
        product.rows = room, product.scales = scales, product.row_bytes = stride, product.steps = stride / 4;
        product.corrections = (const int32_t *)((const char *)layer->packed + blocks * bytes_of_block(d, 1));
    }
    in_parts(part_of_product, &product, product.parts, (r + 3) * layer->f * d < SHARED ? 1 : threads);
}
