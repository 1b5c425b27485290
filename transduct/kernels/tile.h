/* The inner loop of a product: some rows times some columns, whose sums stay in registers. products.c includes it once for
 * each kind of numbers and instruction. In a step, all kinds multiply 4 bytes of each row. The kind defines
 *
 *     TILE(name)           the names of this kind's functions
 *     TILE_TARGET          their instructions
 *     COLUMN_BYTES         bytes of each column in a step
 *     SUMS                 the type of 16 sums, Ints16 or Floats16
 *     WEIGHTS(address)     the weights of 16 columns, for ADD_PRODUCTS
 *     NUMBERS(address)     the 4 bytes of a row, in each lane
 *     ADD_PRODUCTS(sum, numbers, weights)
 *     FIRST_SUMS(product, column)
 *     WRITE(product, row, column, rows, vectors, sums)
 */

/* `rows` rows from `row` on, times `vectors` vectors of columns from block `block` on. */
static inline __attribute__((always_inline)) TILE_TARGET void TILE(tile)(const int rows, const int vectors, const int once,
                                                                         const Product *product, int64_t block, int64_t row,
                                                                         Ahead ahead) {
    int64_t steps = product->steps, stride = product->row_bytes, block_bytes = steps * COLUMNS * COLUMN_BYTES;
    /* vectors lie together within a block, or each is a block */
    int64_t apart = VECTORS > 1 ? LANES * COLUMN_BYTES : block_bytes;
    const char *x = (const char *)product->rows + row * stride;
    const char *weights = (const char *)product->layer->packed + block * block_bytes;
    SUMS sum[ROWS][ABREAST];
    UNROLLED for (int v = 0; v < vectors; v++) {
        SUMS first = FIRST_SUMS(product, block * COLUMNS + v * LANES);
        UNROLLED for (int r = 0; r < rows; r++) sum[r][v] = first;
    }
    for (int64_t k = 0; k < steps;) {
        if (!once) fetch(&ahead);
        for (int64_t end = k + CHUNK < steps ? k + CHUNK : steps; k < end; k++, weights += COLUMNS * COLUMN_BYTES, x += 4) {
            SUMS each[ABREAST];
            UNROLLED for (int v = 0; v < vectors; v++) {
                if (rows > 1) each[v] = WEIGHTS(weights + v * apart);
                if (once) __builtin_prefetch(weights + v * apart + DISTANCE, 0, 3);
            }
            UNROLLED for (int r = 0; r < rows; r++) {
                SUMS numbers = NUMBERS(x + r * stride);
                UNROLLED for (int v = 0; v < vectors; v++) {
                    if (rows == 1) each[v] = WEIGHTS(weights + v * apart); /* only now, which needs fewer registers */
                    sum[r][v] = ADD_PRODUCTS(sum[r][v], numbers, each[v]);
                    if (VECTORS == 1) IN_REGISTERS(sum[r][v]);
                }
            }
        }
    }
    WRITE(product, row, block * COLUMNS, rows, vectors, sum);
}

/* One function for each shape: within a larger one the compiler runs out of registers. */
#define SHAPE(name, rows, vectors, once)                                                                               \
    static __attribute__((noinline)) TILE_TARGET void TILE(name)(const Product *product, int64_t block, int64_t row,   \
                                                                 Ahead ahead) {                                        \
        TILE(tile)(rows, vectors, once, product, block, row, ahead);                                                   \
    }
#if WITH_AVX512
SHAPE(once1, 1, 4, 1)
SHAPE(once2, 2, 4, 1)
SHAPE(once3, 3, 4, 1)
SHAPE(once4, 4, 4, 1)
SHAPE(once5, 5, 4, 1)
SHAPE(once6, 6, 4, 1)
SHAPE(pass3, 3, 4, 0)
SHAPE(pass4, 4, 4, 0)
SHAPE(pass5, 5, 4, 0)
SHAPE(pass6, 6, 4, 0)
#else
/* With few rows, more columns: else each addition would wait for the one before. */
SHAPE(wide1, 1, 4, 1)
SHAPE(wide2, 2, 2, 1)
SHAPE(once1, 1, 1, 1)
SHAPE(once2, 2, 1, 1)
SHAPE(once3, 3, 1, 1)
SHAPE(once4, 4, 1, 1)
SHAPE(once5, 5, 1, 1)
SHAPE(once6, 6, 1, 1)
SHAPE(pass3, 3, 1, 0)
SHAPE(pass4, 4, 1, 0)
SHAPE(pass5, 5, 1, 0)
SHAPE(pass6, 6, 1, 0)
#endif
#undef SHAPE

/* Blocks [first, last) of the columns times rows [from, to). */
static TILE_TARGET void TILE(blocks)(const Product *product, int64_t first, int64_t last, int64_t from, int64_t to) {
    int64_t passes = (to - from + ROWS - 1) / ROWS;
    if (passes == 1) {
        const Ahead none = {NULL, 0};
        for (int64_t b = first; b < last;) {
#if !WITH_AVX512
            switch (to - from) {
            case 1: if (last - b >= 4) { TILE(wide1)(product, b, from, none), b += 4; continue; } break;
            case 2: if (last - b >= 2) { TILE(wide2)(product, b, from, none), b += 2; continue; } break;
            }
#endif
            switch (to - from) {
            case 1: TILE(once1)(product, b++, from, none); break;
            case 2: TILE(once2)(product, b++, from, none); break;
            case 3: TILE(once3)(product, b++, from, none); break;
            case 4: TILE(once4)(product, b++, from, none); break;
            case 5: TILE(once5)(product, b++, from, none); break;
            default: TILE(once6)(product, b++, from, none);
            }
        }
        return;
    }
    int64_t block_bytes = product->steps * COLUMNS * COLUMN_BYTES;
    int64_t share = (CHUNK * COLUMNS * COLUMN_BYTES / passes + LINE - 1) / LINE * LINE; /* bytes to prefetch per CHUNK steps */
    for (int64_t b = first; b < last; b++)
        for (int64_t row = from, pass = 0; row < to; pass++) {
            int64_t fetched = pass * share * ((product->steps + CHUNK - 1) / CHUNK);
            const Ahead ahead = {columns_after(product->layer, b, block_bytes) + fetched, share};
            int64_t rows = (to - row + passes - pass - 1) / (passes - pass); /* spread evenly over passes */
            switch (rows) {
            case 3: TILE(pass3)(product, b, row, ahead); break;
            case 4: TILE(pass4)(product, b, row, ahead); break;
            case 5: TILE(pass5)(product, b, row, ahead); break;
            default: TILE(pass6)(product, b, row, ahead);
            }
            row += rows;
        }
}

#undef TILE
#undef TILE_TARGET
#undef COLUMN_BYTES
#undef SUMS
#undef WEIGHTS
#undef NUMBERS
#undef ADD_PRODUCTS
#undef FIRST_SUMS
#undef WRITE
