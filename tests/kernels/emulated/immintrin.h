/* AVX2, AVX512, VNNI and AMX for a processor that lacks them: by SIMDe, and what it lacks by loops. No instruction of these
 * sets is used, so the attributes that ask for them are left out. */
#ifndef EMULATED_H
#define EMULATED_H
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/simde-f16.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <stdint.h>
#include <string.h>

#undef _mm512_madd_epi16 /* wrong in SIMDe 0.7 */
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
typedef simde__mmask16 __mmask16;
typedef simde__mmask32 __mmask32;

#define target(instructions)
#define EMULATED(type) static inline __attribute__((unused)) type
#define EACH_LANE for (int i = 0; i < 16; i++)
#define IF(mask) if ((mask) >> i & 1)

EMULATED(__m512) _mm512_maskz_loadu_ps(__mmask16 mask, const float *x) {
    float y[16] = {0};
    EACH_LANE IF(mask) y[i] = x[i];
    return _mm512_loadu_ps(y);
}
EMULATED(void) _mm512_mask_storeu_ps(float *x, __mmask16 mask, __m512 y) {
    float z[16];
    _mm512_storeu_ps(z, y);
    EACH_LANE IF(mask) x[i] = z[i];
}
EMULATED(__m256i) _mm256_maskz_loadu_epi16(__mmask16 mask, const uint16_t *x) {
    uint16_t y[16] = {0};
    EACH_LANE IF(mask) y[i] = x[i];
    return _mm256_loadu_si256((const __m256i *)y);
}
EMULATED(void) _mm256_mask_storeu_epi16(uint16_t *x, __mmask16 mask, __m256i y) {
    uint16_t z[16];
    _mm256_storeu_si256((__m256i *)z, y);
    EACH_LANE IF(mask) x[i] = z[i];
}
EMULATED(void) _mm_mask_storeu_epi8(uint8_t *x, __mmask16 mask, __m128i y) {
    uint8_t z[16];
    _mm_storeu_si128((__m128i *)z, y);
    EACH_LANE IF(mask) x[i] = z[i];
}

/* A function of each lane. */
#define CONVERSION(name, from, load, to, make, expression)                                                             \
    EMULATED(to) name(from x) {                                                                                        \
        load;                                                                                                          \
        make y[16];                                                                                                    \
        memcpy(a, &x, sizeof x);                                                                                       \
        EACH_LANE y[i] = expression;                                                                                   \
        to z;                                                                                                          \
        memcpy(&z, y, sizeof z);                                                                                       \
        return z;                                                                                                      \
    }
CONVERSION(_mm512_cvtepi32_epi16, __m512i, int32_t a[16], __m256i, int16_t, (int16_t)a[i])
CONVERSION(_mm512_cvtepi32_epi8, __m512i, int32_t a[16], __m128i, int8_t, (int8_t)a[i])
CONVERSION(_mm512_cvtepi32_ps, __m512i, int32_t a[16], __m512, float, (float)a[i])
CONVERSION(_mm512_cvtps_epi32, __m512, float a[16], __m512i, int32_t, (int32_t)lrintf(a[i]))
CONVERSION(_mm512_cvtepu16_epi32, __m256i, uint16_t a[16], __m512i, int32_t, a[i])
CONVERSION(_mm512_cvtph_ps, __m256i, uint16_t a[16], __m512, float, simde_float16_to_float32(simde_uint16_as_float16(a[i])))
CONVERSION(to_halves, __m512, float a[16], __m256i, uint16_t, simde_float16_as_uint16(simde_float16_from_float32(a[i])))
#define _mm512_cvtps_ph(x, rounding) to_halves(x)

/* SIMDe rounds the product. */
#undef _mm512_fmadd_ps
#undef _mm512_fmsub_ps
#undef _mm512_fnmadd_ps
#undef _mm256_fmadd_ps
#undef _mm256_fmsub_ps
#undef _mm256_fnmadd_ps
#define FUSED(type, bits, name, expression)                                                                            \
    EMULATED(type) _mm##bits##_##name##_ps(type x, type y, type z) {                                                   \
        float a[16], b[16], c[16];                                                                                     \
        _mm##bits##_storeu_ps(a, x), _mm##bits##_storeu_ps(b, y), _mm##bits##_storeu_ps(c, z);                         \
        for (int i = 0; i < bits / 32; i++) a[i] = expression;                                                         \
        return _mm##bits##_loadu_ps(a);                                                                                \
    }
FUSED(__m512, 512, fmadd, __builtin_fmaf(a[i], b[i], c[i]))
FUSED(__m512, 512, fmsub, __builtin_fmaf(a[i], b[i], -c[i]))
FUSED(__m512, 512, fnmadd, __builtin_fmaf(-a[i], b[i], c[i]))
FUSED(__m256, 256, fmadd, __builtin_fmaf(a[i], b[i], c[i]))
FUSED(__m256, 256, fmsub, __builtin_fmaf(a[i], b[i], -c[i]))
FUSED(__m256, 256, fnmadd, __builtin_fmaf(-a[i], b[i], c[i]))

#define _mm256_dpbusd_avx_epi32(sum, a, b) simde_mm256_dpbusd_epi32(sum, a, b)
#define __asm__(...) /* which pins a sum to a register of AVX */

EMULATED(__m256) _mm512_extractf32x8_ps(__m512 x, int half) {
    float a[16];
    _mm512_storeu_ps(a, x);
    return _mm256_loadu_ps(a + 8 * half);
}
EMULATED(float) _mm512_reduce_max_ps(__m512 x) {
    float a[16];
    _mm512_storeu_ps(a, x);
    EACH_LANE a[0] = a[i] > a[0] ? a[i] : a[0];
    return a[0];
}
EMULATED(int32_t) _mm512_reduce_max_epi32(__m512i x) {
    int32_t a[16];
    _mm512_storeu_si512(a, x);
    EACH_LANE a[0] = a[i] > a[0] ? a[i] : a[0];
    return a[0];
}
EMULATED(__m512) _mm512_shuffle_f32x4(__m512 x, __m512 y, int order) {
    float a[32], b[16];
    _mm512_storeu_ps(a, x), _mm512_storeu_ps(a + 16, y);
    EACH_LANE b[i] = a[i / 8 * 16 + (order >> i / 4 * 2 & 3) * 4 + i % 4];
    return _mm512_loadu_ps(b);
}

/* Eight tile registers of up to 16 rows of 64 bytes, and their shapes. */
static __attribute__((unused)) _Thread_local struct {
    uint8_t rows[8], numbers[8][16][64];
    uint16_t bytes[8];
} tiles;

EMULATED(void) _tile_loadconfig(const void *shape) {
    memcpy(tiles.bytes, (const char *)shape + 16, sizeof tiles.bytes);
    memcpy(tiles.rows, (const char *)shape + 48, sizeof tiles.rows);
}
EMULATED(void) _tile_release(void) { memset(&tiles, 0, sizeof tiles); }
EMULATED(void) _tile_zero(int tile) { memset(tiles.numbers[tile], 0, sizeof tiles.numbers[tile]); }
EMULATED(void) _tile_loadd(int tile, const void *from, int64_t stride) {
    _tile_zero(tile);
    for (int row = 0; row < tiles.rows[tile]; row++)
        memcpy(tiles.numbers[tile][row], (const char *)from + row * stride, tiles.bytes[tile]);
}
EMULATED(void) _tile_stored(int tile, void *to, int64_t stride) {
    for (int row = 0; row < tiles.rows[tile]; row++)
        memcpy((char *)to + row * stride, tiles.numbers[tile][row], tiles.bytes[tile]);
}
/* Unsigned bytes of the rows of one tile times signed bytes of the columns of another, which lie in fours. */
EMULATED(void) _tile_dpbusd(int sums, int left, int right) {
    for (int row = 0; row < tiles.rows[sums]; row++)
        for (int column = 0; column < tiles.bytes[sums] / 4; column++) {
            int32_t sum;
            memcpy(&sum, tiles.numbers[sums][row] + 4 * column, sizeof sum);
            for (int k = 0; k < tiles.bytes[left]; k++)
                sum += tiles.numbers[left][row][k] * (int8_t)tiles.numbers[right][k / 4][4 * column + k % 4];
            memcpy(tiles.numbers[sums][row] + 4 * column, &sum, sizeof sum);
        }
}
#endif
