/* Runs every kernel of one instruction set on made-up numbers and prints a checksum of each result. UNIT is avx2.c, avx512.c
 * or neon.c; the argument is the number of the instruction set, as in kernels.h. tests/kernels/checksums.py builds and runs
 * it; tests/kernels/checksums.txt holds what every processor must print. Exit status 3: the processor lacks the instructions,
 * about which a second argument only asks.
 */
#include UNIT

#include <stdio.h>
#include <stdlib.h>

int has_path(int wanted);
void use_path(int wanted);

enum { THREADS = 3 };

static uint64_t state, sum; /* of the random numbers, and the checksum so far (FNV-1a) */

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* About normally distributed, and exact: the sum of four 8-bit numbers. */
static float normal(void) {
    int total = 0;
    for (int n = 0; n < 4; n++) total += (int)(draw() & 255);
    return (float)(total - 510) / 148.0f;
}

static float *floats(int64_t count, float spread) {
    float *x = malloc((size_t)(count + LANES) * sizeof *x);
    for (int64_t k = 0; k < count + LANES; k++) x[k] = normal() * spread;
    return x;
}

static void *space(int64_t bytes) { return calloc(1, (size_t)bytes + 64); }

static void include(const void *bytes, int64_t count) {
    for (int64_t k = 0; k < count; k++) sum = (sum ^ ((const uint8_t *)bytes)[k]) * 1099511628211u;
}

static void begin(uint64_t seed) { state = seed, sum = 14695981039346656037u; }

static void print(const char *name) { printf("%s %016llx\n", name, (unsigned long long)sum); }

/* A packed layer of F outputs, int8 if `integers`; `fill` instead of random int8 numbers unless zero. */
static Linear layer_of(int64_t f, int64_t d, int integers, int fill, int biased) {
    float *weight = floats(f * d, 1.0f), *steps = floats(f, 0.01f);
    int8_t *numbers = space(f * d);
    for (int64_t k = 0; k < f * d; k++) numbers[k] = (int8_t)(fill ? fill : (int)(draw() % 255) - 127);
    void *packed = space(packed_size(f, d, integers));
    pack(integers ? (const void *)numbers : weight, f, d, integers, packed, THREADS);
    free(integers ? (void *)weight : numbers);
    return (Linear){packed, integers ? steps : NULL, biased ? floats(f, 1.0f) : NULL, d, f, NULL};
}

static void product_of(const Linear *layer, const float *x, int64_t r) {
    float *out = space(r * layer->f * 4);
    uint8_t *room = space(r * (2 * layer->d + 20));
    linear(layer, x, r, out, room, THREADS);
    include(out, r * layer->f * 4);
    free(out), free(room);
}

static FAST void products(int integers) {
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 13, 16, 33, 150}, widths[] = {1, 3, 16, 37, 64, 192, 1024};
    static const int64_t outputs[] = {1, 15, 63, 64, 65, 200};
    for (int w = 0; w < 7; w++)
        for (int f = 0; f < 6; f++) {
            const Linear layer = layer_of(outputs[f], widths[w], integers, 0, f % 2);
            float *x = floats(150 * widths[w], 1.0f);
            for (int r = 0; r < 11; r++) product_of(&layer, x, rows[r]);
            free(x);
        }
}

/* The largest sums that can be: a tile that saturates differs. */
static FAST void extremes(void) {
    for (int n = 0; n < 4; n++) {
        const Linear layer = layer_of(70, 2048, 1, n & 1 ? 127 : -127, 0);
        float *x = floats(20 * 2048, 1.0f);
        for (int64_t k = 0; k < 20 * 2048; k++) x[k] = n & 2 ? 3.0f : -3.0f;
        product_of(&layer, x, 20);
        product_of(&layer, x, 1);
        free(x);
    }
}

static FAST void attentions(int half) {
    static const int64_t widths[][2] = {{16, 16}, {5, 7}, {17, 40}, {64, 64}}, times[] = {1, 15, 16, 33};
    const int64_t lengths[] = {33, 0, 17};
    for (int w = 0; w < 4; w++)
        for (int t = 0; t < 4; t++)
            for (int kind = 0; kind < 3; kind++) {
                int64_t dk = widths[w][0], dv = widths[w][1], room = 40, cells = 3 * 2 * room * 2;
                float *query = floats(6 * 4 * dk, 1.0f), *keys = floats(cells * dk, 1.0f), *values = floats(cells * dv, 1.0f);
                float *weights = space(room * 4), *out = space(6 * 4 * dv * 4);
                uint16_t *half_keys = space(cells * dk * 2), *half_values = space(cells * dv * 2);
                int32_t slots[6 * 33];
                for (int k = 0; k < 6 * 33; k++) slots[k] = (int32_t)(draw() & 1);
                store_cached(keys, cells * dk, half_keys, 0, 1);
                store_cached(values, cells * dv, half_values, 0, 1);
                if (half) include(half_keys, cells * dk * 2);
                rows_attention(query, 4 * dk, half ? (void *)half_keys : keys, half ? (void *)half_values : values, 6, 2, 4, 2,
                               dk, dv, room, 2, times[t], half, kind == 1 ? lengths : NULL, kind == 2 ? slots : NULL, weights,
                               out);
                include(out, 6 * 4 * dv * 4);
                free(query), free(keys), free(values), free(weights), free(out), free(half_keys), free(half_values);
            }
}

static FAST void norms(void) {
    for (int64_t d = 1; d < 530; d += 31)
        for (int shifted = 0; shifted < 2; shifted++) {
            Norm norm = {floats(d, 1.0f), shifted ? floats(d, 1.0f) : NULL, 1e-5};
            float *x = floats(7 * d, 3.0f), *out = space(7 * d * 4);
            normalised(&norm, x, 7, d, out);
            include(out, 7 * d * 4);
            free(x), free(out);
        }
}

static FAST void normalisers(void) {
    for (int64_t v = 1; v < 3000; v = v * 2 + 1) {
        float *x = floats(9 * v, 5.0f), out[9];
        for (int64_t k = 0; k < v; k += 2) x[v + k] = -INFINITY;
        for (int64_t k = 0; k < v; k++) x[2 * v + k] = -INFINITY, x[4 * v + k] += 1e6f;
        x[4 * v - 1] = 1e30f;
        log_normaliser(x, 9, v, out, 2);
        include(out, sizeof out);
        free(x);
    }
}

static FAST void choices(void) {
    for (int64_t beam = 1; beam <= 8; beam++)
        for (int64_t v = 1; v < 1100; v = v * 3 + 4) {
            int64_t limits[] = {9, 4, 9}, others[4][24];
            double scores[24], best[24], live[24];
            float *logits = floats(3 * beam * v, 2.0f), normaliser[24];
            memset(others, 0, sizeof others), memset(best, 0, sizeof best), memset(live, 0, sizeof live);
            for (int64_t k = 0; k < 3 * beam; k++) scores[k] = -(double)draw() / 1e9;
            log_normaliser(logits, 3 * beam, v, normaliser, 2);
            Search search = {.end = 0, .limits = limits, .scores = scores, .logits = logits, .normaliser = normaliser,
                             .best = best, .live = live, .origin = others[0], .chosen = others[1], .rows = others[2],
                             .newest = others[3]};
            choose(&search, 0, 3, v, beam, 5);
            include(best, sizeof best), include(live, sizeof live), include(others, sizeof others);
            free(logits);
        }
}

/* A whole encoder and decoder: int8 or float32, pre- or post-norm, each activation, rotary positions or none. */
static FAST void models(int integers) {
    enum { D = 48, HEADS = 4, GROUPS = 2, DK = 12, DV = 10, FF = 70, V = 101, LAYERS = 2, B = 3, BEAM = 2, ROOM = 9 };
    static const int64_t offsets[] = {0, 5, 6, 13}, lengths[] = {5, 1, 7};
    for (int kind = 0; kind < 8; kind++) {
        Layer layers[LAYERS];
        int joint = HEADS * DK + GROUPS * (DK + DV), rows = B * BEAM;
        float *turns = floats(64 * DK, 0.7f);
        for (int n = 0; n < LAYERS; n++) {
            layers[n] = (Layer){.d = D, .heads = HEADS, .groups = GROUPS, .dk = DK, .dv = DV, .pre = kind & 1,
                                .activation = kind / 2, .turns = kind & 2 ? turns : NULL};
            for (int k = 0; k < 3; k++) layers[n].norms[k] = (Norm){floats(D, 1.0f), kind & 4 ? NULL : floats(D, 1.0f), 1e-6};
            layers[n].joint = layer_of(joint, D, integers, 0, 1);
            layers[n].output = layer_of(D, HEADS * DV, integers, 0, 1);
            layers[n].query = layer_of(HEADS * DK, D, integers, 0, 0);
            layers[n].recall = layer_of(D, HEADS * DV, integers, 0, 1);
            layers[n].inner = layer_of(FF, D, integers, 0, 1);
            layers[n].outer = layer_of(D, FF, integers, 0, 1);
        }
        float *x = floats(offsets[B] * D, 1.0f), *work = space(4 * (layer_room(layers, 32, 32) + 64 * D));
        encoder(layers, LAYERS, offsets, B, 7, x, offsets[B], work, THREADS);
        include(x, offsets[B] * D * 4);

        const Linear key = layer_of(GROUPS * DK, D, integers, 0, 1), value = layer_of(GROUPS * DV, D, integers, 0, 1);
        Past pasts[LAYERS];
        for (int n = 0; n < LAYERS; n++) {
            void *keys = space(B * GROUPS * 7 * DK * 4), *values = space(B * GROUPS * 7 * DV * 4);
            remember(&key, &value, offsets, B, 7, GROUPS, x, work, THREADS, integers, keys, values);
            pasts[n] = (Past){space(rows * GROUPS * ROOM * DK * 4), space(rows * GROUPS * ROOM * DV * 4), keys, values};
        }
        float *table = floats(V * D, 1.0f), *logits = space(rows * V * 4), *positions = floats(ROOM * D, 1.0f);
        const Decoder decoder = {layers, LAYERS, table, V, NULL, kind & 2 ? NULL : positions, 1.7, layers[0].norms[0]};
        const Linear output = layer_of(V, D, integers, 0, 1);
        Place place = {ROOM, BEAM, 0, 7, integers, NULL, lengths};
        int64_t tokens[] = {1, 5, 100, 0, 7, 7}, found[6][6] = {{0}}, limits[] = {8, 8, 8}, never[] = {3};
        int32_t slots[2][6 * ROOM] = {{0}}, history[2][6 * ROOM] = {{0}};
        if (!decode(&decoder, &output, pasts, &place, tokens, rows, work, THREADS, logits)) abort();
        include(logits, rows * V * 4);

        double scores[] = {0, -1, 0, -2, 0, -3};
        float normaliser[6];
        for (int k = 0; k < 6; k++) found[5][k] = tokens[k], history[0][k] = (int32_t)tokens[k], slots[0][k] = k % BEAM;
        Search search = {.end = 2, .forbidden = 1, .span = 6 * ROOM, .together = 2, .never = never, .limits = limits,
                         .tokens = history[0], .slots = slots[0], .scores = scores, .logits = logits,
                         .normaliser = normaliser, .best = (double *)found[0], .live = (double *)found[1],
                         .origin = found[2], .chosen = found[3], .rows = found[4], .newest = found[5]};
        int64_t steps = ahead(&decoder, &output, pasts, &place, &search, ROOM - 1, rows, work, THREADS);
        include(&steps, sizeof steps), include(found, sizeof found), include(history, sizeof history);
        free(x), free(work), free(logits);
    }
}

static FAST void training_attentions(int narrow) {
    static const int64_t queries[] = {0, 5, 5, 38, 39}, keys[] = {0, 7, 8, 41, 61};
    enum { HEADS = 4, GROUPS = 2, DK = 20, DV = 17, ROWS_ = 61 };
    for (int causal = 0; causal < 2; causal++) {
        int64_t cells[5] = {0}, size = narrow ? 2 : 4;
        void *given[4], *made[4];
        const int64_t counts[] = {39 * HEADS * DK, ROWS_ * GROUPS * DK, ROWS_ * GROUPS * DV, 39 * HEADS * DV};
        for (int n = 0; n < 4; n++) {
            float *x = floats(counts[n], 1.0f);
            given[n] = space(counts[n] * 4), made[n] = space(counts[n] * 4);
            for (int64_t k = 0; k < counts[n]; k += LANES) write(given[n], k, counts[n] - k, load(x + k), narrow);
            free(x);
        }
        for (int n = 0; n < 4; n++)
            cells[n + 1] = cells[n] + (queries[n + 1] - queries[n]) * whole(keys[n + 1] - keys[n]) * HEADS;
        Attention a = {.query = given[0], .key = given[1], .value = given[2], .grad = given[3], .output = made[3],
                       .grad_query = made[0], .grad_key = made[1], .grad_value = made[2], .weights = space(cells[4] * 4),
                       .queries = queries, .keys = keys, .cells = cells, .sources = 4, .heads = HEADS, .groups = GROUPS,
                       .dk = DK, .dv = DV, .causal = causal, .narrow = narrow, .most_queries = 33, .most_keys = 33, .parts = 5};
        a.work = space(a.parts * attention_room(&a) * 4);
        segments_attention(&a, THREADS);
        a.back = 1;
        segments_attention(&a, THREADS);
        for (int n = 0; n < 4; n++) include(made[n], counts[n] * size), free(given[n]), free(made[n]);
        free(a.work), free(a.weights);
    }
}

static FAST void dropouts(int narrow) {
    for (int64_t count = 1; count < 40000; count = count * 5 + 2)
        for (int relu = 0; relu < 2; relu++) {
            float *x = floats(count, 1.0f);
            void *in = space(count * 4), *out = space(count * 4), *kept = space(count / 8 + 64);
            for (int64_t k = 0; k < count; k += LANES) write(in, k, count - k, load(x + k), narrow);
            Dropout d = {.x = in, .added = relu ? NULL : in, .out = out, .kept = kept, .seed = 0x123456789abcdefu + (uint64_t)count,
                         .count = count, .drawn = 1, .relu = relu, .threshold = 6554, .narrow = narrow, .scale = 65536.0 / 58982};
            drop(&d, THREADS);
            include(out, count * (narrow ? 2 : 4)), include(kept, (count + 127) / 128 * 16);
            free(x), free(in), free(out), free(kept);
        }
}

static FAST void rotations(int narrow) {
    enum { R = 11, HEADS = 3 };
    int64_t positions[R];
    for (int64_t dk = 2; dk < 80; dk += 22)
        for (int back = 0; back < 2; back++) {
            int64_t count = R * HEADS * dk;
            float *x = floats(count, 1.0f), *turns = floats(50 * dk, 0.7f);
            void *in = space(count * 4), *out = space(count * 4);
            for (int64_t k = 0; k < count; k += LANES) write(in, k, count - k, load(x + k), narrow);
            for (int k = 0; k < R; k++) positions[k] = draw() % 50;
            Rotary r = {in, out, positions, turns, R, HEADS, dk, back, narrow, 4};
            turn_rows(&r, THREADS);
            include(out, count * (narrow ? 2 : 4));
            free(x), free(turns), free(in), free(out);
        }
}

static FAST void losses(int narrow) {
    for (int64_t v = 1; v < 2000; v = v * 4 + 3)
        for (int kind = 0; kind < 4; kind++) {
            float *x = floats(20 * v, 4.0f), *counted = floats(20, 1.0f), found[2][20];
            void *logits = space(20 * v * 4);
            int64_t targets[20];
            for (int64_t k = 0; k < 20 * v; k += LANES) write(logits, k, 20 * v - k, load(x + k), narrow);
            for (int k = 0; k < 20; k++) targets[k] = draw() % v;
            Losses l = {.logits = logits, .targets = targets, .counted = kind & 1 ? counted : NULL, .losses = found[0],
                        .nlls = found[1], .rows = 20, .size = v, .wanted = 1, .narrow = narrow,
                        .smoothing = kind & 1 ? 0.1 : 0.0, .agreement = kind & 2 ? 1.5 : 0.0};
            row_losses(&l, THREADS);
            include(found, sizeof found), include(logits, 20 * v * (narrow ? 2 : 4));
            free(x), free(counted), free(logits);
        }
}

static FAST void functions(void) {
    float out[LANES];
    for (float x = -100.0f; x < 100.0f; x += 0.37f) {
        store(out, exponential(add(broadcast(x), multiply(to_floats(load_ints(
            (const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})), broadcast(0.0231f)))));
        include(out, sizeof out);
    }
    for (float x = 1e-44f; x < 1e38f; x *= 1.173f) out[0] = logarithm(x), include(out, 4);
    for (int activation = RELU; activation <= SILU; activation++)
        for (float x = -120.0f; x < 120.0f; x += 0.79f) {
            store(out, activated(activation, broadcast(x)));
            include(out, 4);
        }
}

int main(int count, char **arguments) {
    int wanted = count > 1 ? atoi(arguments[1]) : -1;
    if (!has_path(wanted)) return 3;
    if (count > 2) return 0;
    use_path(wanted);
    begin(1), functions(), print("exponential, logarithm, activations");
    begin(2), products(1), print("int8 products");
    begin(3), extremes(), print("int8 extremes");
    begin(4), products(0), print("float32 products");
    begin(5), attentions(0), print("attention over float32");
    begin(6), attentions(1), print("attention over float16");
    begin(7), norms(), print("norms");
    begin(8), normalisers(), print("log-normalisers");
    begin(9), choices(), print("choices of continuations");
    begin(10), models(1), print("int8 models");
    begin(11), models(0), print("float32 models");
    for (int narrow = 0; narrow < 2; narrow++) {
        const char *type = narrow ? "bfloat16" : "float32";
        char name[80];
        snprintf(name, sizeof name, "training attention in %s", type);
        begin(12), training_attentions(narrow), print(name);
        snprintf(name, sizeof name, "dropout in %s", type);
        begin(13), dropouts(narrow), print(name);
        snprintf(name, sizeof name, "rotary positions in %s", type);
        begin(14), rotations(narrow), print(name);
        snprintf(name, sizeof name, "losses in %s", type);
        begin(15), losses(narrow), print(name);
    }
    return 0;
}
