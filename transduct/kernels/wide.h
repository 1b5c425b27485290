/* Sixteen lanes, whatever the processor: one register of AVX512, two of AVX2, four of NEON. A kernel is written on them once.
 *
 * Every function gives the same bits on each instruction set. So sums follow a halving tree, a maximum is a comparison and
 * a choice (NaN gives the second operand), and each multiplication with an addition is fused or is not, as its name says.
 *
 * `count` is the number of lanes that exist in memory, at least 0; from LANES on, all do. Other lanes read as zero.
 */
#define INLINE static inline __attribute__((always_inline)) FAST

/* The exported functions bear the name of their instruction set. */
#define advance KERNEL(advance)
#define ahead KERNEL(ahead)
#define attention_room KERNEL(attention_room)
#define choose KERNEL(choose)
#define decode KERNEL(decode)
#define drop KERNEL(drop)
#define encoder KERNEL(encoder)
#define layer_room KERNEL(layer_room)
#define linear KERNEL(linear)
#define log_normaliser KERNEL(log_normaliser)
#define normalised KERNEL(normalised)
#define pack KERNEL(pack)
#define pack_floats KERNEL(pack_floats)
#define packed_size KERNEL(packed_size)
#define remember KERNEL(remember)
#define remember_cells KERNEL(remember_cells)
#define row_losses KERNEL(row_losses)
#define rows_attention KERNEL(rows_attention)
#define segments_attention KERNEL(segments_attention)
#define turn_rows KERNEL(turn_rows)

#if WITH_AVX512
#define FAST __attribute__((target(AVX512_TARGET)))
enum { VECTORS = 4 }; /* vectors of columns that lie together in a packed matrix */

typedef __m512 Floats16;
typedef __m512i Ints16;

/* The mask of the first `count` lanes. */
INLINE __mmask16 lanes(int64_t count) { return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

INLINE Floats16 broadcast(float x) { return _mm512_set1_ps(x); }
INLINE Floats16 load(const float *x) { return _mm512_loadu_ps(x); }
INLINE Floats16 load_first(const float *x, int64_t count) { return _mm512_maskz_loadu_ps(lanes(count), x); }
INLINE void store(float *x, Floats16 y) { _mm512_storeu_ps(x, y); }
INLINE void store_first(float *x, int64_t count, Floats16 y) { _mm512_mask_storeu_ps(x, lanes(count), y); }

INLINE Floats16 add(Floats16 a, Floats16 b) { return _mm512_add_ps(a, b); }
INLINE Floats16 subtract(Floats16 a, Floats16 b) { return _mm512_sub_ps(a, b); }
INLINE Floats16 multiply(Floats16 a, Floats16 b) { return _mm512_mul_ps(a, b); }
INLINE Floats16 divide(Floats16 a, Floats16 b) { return _mm512_div_ps(a, b); }
INLINE Floats16 maximum(Floats16 a, Floats16 b) { return _mm512_max_ps(a, b); }
INLINE Floats16 minimum(Floats16 a, Floats16 b) { return _mm512_min_ps(a, b); }
INLINE Floats16 multiply_add(Floats16 a, Floats16 b, Floats16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Floats16 multiply_subtract(Floats16 a, Floats16 b, Floats16 c) { return _mm512_fmsub_ps(a, b, c); }
INLINE Floats16 subtract_product(Floats16 a, Floats16 b, Floats16 c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE Floats16 rounded(Floats16 x) { return _mm512_roundscale_ps(x, 0); }

/* x 2^n, where 2^n is a normal number. */
INLINE Floats16 times_power(Floats16 x, Floats16 n) { return _mm512_scalef_ps(x, n); }

INLINE Ints16 all_ints(int32_t x) { return _mm512_set1_epi32(x); }
INLINE Ints16 load_ints(const void *x) { return _mm512_loadu_si512(x); }
INLINE Ints16 add_ints(Ints16 a, Ints16 b) { return _mm512_add_epi32(a, b); }
INLINE Ints16 and_ints(Ints16 a, Ints16 b) { return _mm512_and_si512(a, b); }
INLINE Ints16 xor_ints(Ints16 a, Ints16 b) { return _mm512_xor_si512(a, b); }
INLINE Ints16 maximum_ints(Ints16 a, Ints16 b) { return _mm512_max_epi32(a, b); }
INLINE Ints16 shift_left(Ints16 x, const int n) { return _mm512_slli_epi32(x, n); }
INLINE Ints16 shift_right(Ints16 x, const int n) { return _mm512_srli_epi32(x, n); }
INLINE Ints16 bits_of(Floats16 x) { return _mm512_castps_si512(x); }
INLINE Floats16 floats_of(Ints16 x) { return _mm512_castsi512_ps(x); }
INLINE Ints16 to_ints(Floats16 x) { return _mm512_cvtps_epi32(x); } /* to nearest, ties to even */
INLINE Floats16 to_floats(Ints16 x) { return _mm512_cvtepi32_ps(x); }

/* Lanes whose bit is set, zeros elsewhere. */
INLINE Floats16 keep_bits(Floats16 x, uint32_t bits) { return _mm512_maskz_mov_ps((__mmask16)bits, x); }
INLINE Floats16 first_or(Floats16 x, int64_t count, Floats16 y) { /* the first `count` lanes of x, then those of y */
    return _mm512_mask_mov_ps(y, count > 0 ? lanes(count) : 0, x);
}
INLINE uint32_t bits_above(Floats16 x, Floats16 least) { return _mm512_cmp_ps_mask(x, least, _CMP_GT_OQ); }
INLINE uint32_t bits_positive(Floats16 x) { /* or NaN */
    return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ);
}
INLINE Floats16 where_negative(Floats16 x, Floats16 a, Floats16 b) { /* a where x < 0, else b */
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}
INLINE Ints16 where_nan(Floats16 x, Ints16 a, Ints16 b) { /* a where x is NaN, else b */
    return _mm512_mask_mov_epi32(b, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), a);
}

INLINE float sum_of(Floats16 x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float maximum_of(Floats16 x) { return _mm512_reduce_max_ps(x); }
INLINE int32_t maximum_of_ints(Ints16 x) { return _mm512_reduce_max_epi32(x); }

INLINE Floats16 load_float16(const uint16_t *x, int64_t count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(count), x));
}
INLINE void store_float16(uint16_t *x, int64_t count, Floats16 y) {
    _mm256_mask_storeu_epi16(x, lanes(count), _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
}
INLINE Ints16 load_uint16(const uint16_t *x, int64_t count) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(count), x));
}
INLINE void store_uint16(uint16_t *x, int64_t count, Ints16 y) {
    _mm256_mask_storeu_epi16(x, lanes(count), _mm512_cvtepi32_epi16(y));
}
INLINE void store_uint8(uint8_t *x, int64_t count, Ints16 y) { _mm_mask_storeu_epi8(x, lanes(count), _mm512_cvtepi32_epi8(y)); }

/* The 64-bit products of numbers and a factor. */
INLINE void multiply_wide(Ints16 x, uint32_t factor, Ints16 *high, Ints16 *low) {
    __m512i factors = _mm512_set1_epi32((int)factor);
    __m512i even = _mm512_mul_epu32(x, factors), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), factors);
    *low = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
}

/* Which of 32 16-bit numbers are at least `least`. */
INLINE uint32_t halves_at_least(Ints16 x, uint16_t least) {
    return _mm512_cmpge_epu16_mask(x, _mm512_set1_epi16((short)least));
}

/* Widen 32 bytes to 16 bits. */
INLINE Ints16 load_pairs(const int8_t *x) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)x)); }

/* Add the products of two 16-bit numbers each. */
INLINE Ints16 add_pairs(Ints16 sum, Ints16 a, Ints16 b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }

/* GCC 12 would else keep sums in memory. */
#define IN_REGISTERS(x) __asm__("" : "+v"(x))

/* Exchange the rows and columns of 16 x 16 numbers, of these row lengths. */
INLINE void turn_square(const float *x, int64_t stride, float *out, int64_t out_stride) {
    __m512 a[LANES], b[LANES];
    UNROLLED for (int i = 0; i < LANES; i++) a[i] = _mm512_loadu_ps(x + i * stride);
    UNROLLED for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLLED for (int i = 0; i < LANES; i += 4) UNROLLED for (int j = 0; j < 2; j++) {
        __m512d one = _mm512_castps_pd(b[i + j]), other = _mm512_castps_pd(b[i + j + 2]);
        a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, other));
        a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, other));
    }
    UNROLLED for (int j = 0; j < 4; j++) { /* quarter l of a[4 i + j] is column 4 l + j of rows 4 i to 4 i + 3 */
        __m512 even = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), odd = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
        __m512 even2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88);
        __m512 odd2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
        float *to = out + j * out_stride;
        _mm512_storeu_ps(to, _mm512_shuffle_f32x4(even, even2, 0x88));
        _mm512_storeu_ps(to + 4 * out_stride, _mm512_shuffle_f32x4(odd, odd2, 0x88));
        _mm512_storeu_ps(to + 8 * out_stride, _mm512_shuffle_f32x4(even, even2, 0xdd));
        _mm512_storeu_ps(to + 12 * out_stride, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
    }
}

#elif WITH_AVX2
#define FAST __attribute__((target("avx2,fma,f16c")))
enum { VECTORS = 1 };

typedef struct {
    __m256 low, high;
} Floats16;
typedef struct {
    __m256i low, high;
} Ints16;

/* All bits of the first `count` of eight lanes. */
INLINE __m256i lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* One operation of eight lanes, for both halves of one, two or three operands. */
#define BOTH(kind, of, a) ((kind){of((a).low), of((a).high)})
#define BOTH2(kind, of, a, b) ((kind){of((a).low, (b).low), of((a).high, (b).high)})
#define BOTH3(kind, of, a, b, c) ((kind){of((a).low, (b).low, (c).low), of((a).high, (b).high, (c).high)})

INLINE Floats16 broadcast(float x) { return (Floats16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Floats16 load(const float *x) { return (Floats16){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
INLINE Floats16 load_first(const float *x, int64_t count) {
    if (count >= LANES) return load(x);
    return (Floats16){_mm256_maskload_ps(x, lanes(count)), _mm256_maskload_ps(x + 8, lanes(count - 8))};
}
INLINE void store(float *x, Floats16 y) { _mm256_storeu_ps(x, y.low), _mm256_storeu_ps(x + 8, y.high); }
INLINE void store_first(float *x, int64_t count, Floats16 y) {
    if (count >= LANES) store(x, y);
    else _mm256_maskstore_ps(x, lanes(count), y.low), _mm256_maskstore_ps(x + 8, lanes(count - 8), y.high);
}

INLINE Floats16 add(Floats16 a, Floats16 b) { return BOTH2(Floats16, _mm256_add_ps, a, b); }
INLINE Floats16 subtract(Floats16 a, Floats16 b) { return BOTH2(Floats16, _mm256_sub_ps, a, b); }
INLINE Floats16 multiply(Floats16 a, Floats16 b) { return BOTH2(Floats16, _mm256_mul_ps, a, b); }
INLINE Floats16 divide(Floats16 a, Floats16 b) { return BOTH2(Floats16, _mm256_div_ps, a, b); }
INLINE Floats16 maximum(Floats16 a, Floats16 b) { return BOTH2(Floats16, _mm256_max_ps, a, b); }
INLINE Floats16 minimum(Floats16 a, Floats16 b) { return BOTH2(Floats16, _mm256_min_ps, a, b); }
INLINE Floats16 multiply_add(Floats16 a, Floats16 b, Floats16 c) { return BOTH3(Floats16, _mm256_fmadd_ps, a, b, c); }
INLINE Floats16 multiply_subtract(Floats16 a, Floats16 b, Floats16 c) { return BOTH3(Floats16, _mm256_fmsub_ps, a, b, c); }
INLINE Floats16 subtract_product(Floats16 a, Floats16 b, Floats16 c) { return BOTH3(Floats16, _mm256_fnmadd_ps, a, b, c); }
INLINE Floats16 rounded(Floats16 x) {
    return (Floats16){_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT), _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT)};
}

INLINE Ints16 all_ints(int32_t x) { return (Ints16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE Ints16 load_ints(const void *x) {
    return (Ints16){_mm256_loadu_si256(x), _mm256_loadu_si256((const __m256i *)x + 1)};
}
INLINE Ints16 add_ints(Ints16 a, Ints16 b) { return BOTH2(Ints16, _mm256_add_epi32, a, b); }
INLINE Ints16 and_ints(Ints16 a, Ints16 b) { return BOTH2(Ints16, _mm256_and_si256, a, b); }
INLINE Ints16 xor_ints(Ints16 a, Ints16 b) { return BOTH2(Ints16, _mm256_xor_si256, a, b); }
INLINE Ints16 maximum_ints(Ints16 a, Ints16 b) { return BOTH2(Ints16, _mm256_max_epi32, a, b); }
INLINE Ints16 shift_left(Ints16 x, const int n) { return (Ints16){_mm256_slli_epi32(x.low, n), _mm256_slli_epi32(x.high, n)}; }
INLINE Ints16 shift_right(Ints16 x, const int n) { return (Ints16){_mm256_srli_epi32(x.low, n), _mm256_srli_epi32(x.high, n)}; }
INLINE Ints16 bits_of(Floats16 x) { return BOTH(Ints16, _mm256_castps_si256, x); }
INLINE Floats16 floats_of(Ints16 x) { return BOTH(Floats16, _mm256_castsi256_ps, x); }
INLINE Ints16 to_ints(Floats16 x) { return BOTH(Ints16, _mm256_cvtps_epi32, x); }
INLINE Floats16 to_floats(Ints16 x) { return BOTH(Floats16, _mm256_cvtepi32_ps, x); }

INLINE Floats16 times_power(Floats16 x, Floats16 n) {
    return multiply(x, floats_of(shift_left(add_ints(to_ints(n), all_ints(127)), 23))); /* n becomes the exponent */
}

INLINE Floats16 keep_bits(Floats16 x, uint32_t bits) {
    __m256i all = _mm256_set1_epi32((int)bits), each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i more = _mm256_slli_epi32(each, 8);
    return (Floats16){_mm256_and_ps(x.low, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, each), each))),
                      _mm256_and_ps(x.high, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, more), more)))};
}
INLINE Floats16 first_or(Floats16 x, int64_t count, Floats16 y) {
    if (count >= LANES) return x;
    return (Floats16){_mm256_blendv_ps(y.low, x.low, _mm256_castsi256_ps(lanes(count))),
                      _mm256_blendv_ps(y.high, x.high, _mm256_castsi256_ps(lanes(count - 8)))};
}
INLINE uint32_t bits_above(Floats16 x, Floats16 least) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.low, least.low, _CMP_GT_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.high, least.high, _CMP_GT_OQ)) << 8;
}
INLINE uint32_t bits_positive(Floats16 x) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.low, _mm256_setzero_ps(), _CMP_NLE_UQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.high, _mm256_setzero_ps(), _CMP_NLE_UQ)) << 8;
}
INLINE __m256 half_where_negative(__m256 x, __m256 a, __m256 b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
INLINE Floats16 where_negative(Floats16 x, Floats16 a, Floats16 b) { return BOTH3(Floats16, half_where_negative, x, a, b); }
INLINE __m256i half_where_nan(__m256 x, __m256i a, __m256i b) {
    return _mm256_blendv_epi8(b, a, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
INLINE Ints16 where_nan(Floats16 x, Ints16 a, Ints16 b) { return BOTH3(Ints16, half_where_nan, x, a, b); }

INLINE float sum_of(Floats16 x) {
    __m256 eight = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float maximum_of(Floats16 x) {
    __m256 eight = _mm256_max_ps(x.low, x.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
INLINE int32_t maximum_of_ints(Ints16 x) {
    __m256i eight = _mm256_max_epi32(x.low, x.high);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

/* Sixteen 16-bit numbers, of which `count` exist. */
INLINE __m256i load_halves(const uint16_t *x, int64_t count) {
    uint16_t some[LANES] = {0};
    if (count >= LANES) return _mm256_loadu_si256((const __m256i *)x);
    memcpy(some, x, (size_t)count * sizeof *x);
    return _mm256_loadu_si256((const __m256i *)some);
}
INLINE void store_halves(uint16_t *x, int64_t count, __m256i y) {
    uint16_t some[LANES];
    _mm256_storeu_si256(count >= LANES ? (__m256i *)x : (__m256i *)some, y);
    if (count < LANES) memcpy(x, some, (size_t)count * sizeof *x);
}
INLINE __m256i low_halves(Ints16 x) { /* the low 16 bits of each lane */
    __m256i low = _mm256_set1_epi32(0xffff);
    __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(x.low, low), _mm256_and_si256(x.high, low));
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}
INLINE Floats16 load_float16(const uint16_t *x, int64_t count) {
    __m256i halves = load_halves(x, count);
    return (Floats16){_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
INLINE void store_float16(uint16_t *x, int64_t count, Floats16 y) {
    store_halves(x, count, _mm256_set_m128i(_mm256_cvtps_ph(y.high, _MM_FROUND_TO_NEAREST_INT),
                                            _mm256_cvtps_ph(y.low, _MM_FROUND_TO_NEAREST_INT)));
}
INLINE Ints16 load_uint16(const uint16_t *x, int64_t count) {
    __m256i halves = load_halves(x, count);
    return (Ints16){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(halves)),
                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(halves, 1))};
}
INLINE void store_uint16(uint16_t *x, int64_t count, Ints16 y) { store_halves(x, count, low_halves(y)); }
INLINE void store_uint8(uint8_t *x, int64_t count, Ints16 y) {
    __m256i bytes = _mm256_and_si256(low_halves(y), _mm256_set1_epi16(0xff));
    __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    uint8_t some[LANES];
    _mm_storeu_si128(count >= LANES ? (__m128i *)x : (__m128i *)some, packed);
    if (count < LANES) memcpy(x, some, (size_t)count);
}

INLINE void half_multiply_wide(__m256i x, uint32_t factor, __m256i *high, __m256i *low) {
    __m256i factors = _mm256_set1_epi32((int)factor);
    __m256i even = _mm256_mul_epu32(x, factors), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factors);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
INLINE void multiply_wide(Ints16 x, uint32_t factor, Ints16 *high, Ints16 *low) {
    half_multiply_wide(x.low, factor, &high->low, &low->low);
    half_multiply_wide(x.high, factor, &high->high, &low->high);
}

INLINE uint32_t halves_at_least(Ints16 x, uint16_t least) {
    __m256i threshold = _mm256_set1_epi16((short)least);
    __m256i low = _mm256_cmpeq_epi16(_mm256_max_epu16(x.low, threshold), x.low);
    __m256i high = _mm256_cmpeq_epi16(_mm256_max_epu16(x.high, threshold), x.high);
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8));
}

/* Two numbers w of each of eight columns, and two numbers v of each of the eight columns after them. In memory they are
 * 16-bit numbers w + 256 v, as they stay for w, and v is a 256th of them, rounded. To widen bytes takes a shuffle for each
 * half, and the processor has one unit for it. Where the sums of `full` tiles need the registers, the factor is read. */
INLINE Ints16 load_pairs(const int8_t *x, const int full) {
    static const _Alignas(32) int16_t factor[LANES] = {128, 128, 128, 128, 128, 128, 128, 128,
                                                       128, 128, 128, 128, 128, 128, 128, 128};
    __m256i w = _mm256_loadu_si256((const __m256i *)x), v = _mm256_set1_epi16(128);
    if (full) v = *(const volatile __m256i *)factor;
    v = _mm256_mulhrs_epi16(w, v);
    return (Ints16){w, v};
}
INLINE Ints16 add_pairs(Ints16 sum, Ints16 a, Ints16 b) { return add_ints(sum, BOTH2(Ints16, _mm256_madd_epi16, a, b)); }

/* The sums of w and v. That of w was 256 times that of v too large; integers wrap around, so it is exact. */
INLINE Ints16 sums_of_pairs(Ints16 sum) {
    return (Ints16){_mm256_sub_epi32(sum.low, _mm256_slli_epi32(sum.high, 8)), sum.high};
}

#define IN_REGISTERS(x) __asm__("" : "+x"((x).low), "+x"((x).high))

INLINE void turn_square(const float *x, int64_t stride, float *out, int64_t out_stride) {
    for (int part = 0; part < 4; part++) { /* 8 x 8 numbers */
        const float *from = x + part / 2 * 8 * stride + part % 2 * 8;
        float *to = out + part % 2 * 8 * out_stride + part / 2 * 8;
        __m256 a[8], b[8];
        UNROLLED for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + i * stride);
        UNROLLED for (int i = 0; i < 8; i += 2) {
            b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        }
        UNROLLED for (int i = 0; i < 8; i += 4) UNROLLED for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
        }
        UNROLLED for (int j = 0; j < 4; j++) { /* half l of a[4 i + j] is column 4 l + j of rows 4 i to 4 i + 3 */
            _mm256_storeu_ps(to + j * out_stride, _mm256_permute2f128_ps(a[j], a[j + 4], 0x20));
            _mm256_storeu_ps(to + (j + 4) * out_stride, _mm256_permute2f128_ps(a[j], a[j + 4], 0x31));
        }
    }
}

#elif WITH_NEON
#define FAST
enum { VECTORS = 1 };

typedef float32x4x4_t Floats16;
typedef int32x4x4_t Ints16;
typedef int8x16x4_t Bytes64;

/* One operation of four lanes, for each quarter of one, two or three operands. */
#define EACH(kind, of, a) ((kind){{of((a).val[0]), of((a).val[1]), of((a).val[2]), of((a).val[3])}})
#define EACH2(kind, of, a, b)                                                                                          \
    ((kind){{of((a).val[0], (b).val[0]), of((a).val[1], (b).val[1]), of((a).val[2], (b).val[2]), of((a).val[3], (b).val[3])}})
#define EACH3(kind, of, a, b, c)                                                                                       \
    ((kind){{of((a).val[0], (b).val[0], (c).val[0]), of((a).val[1], (b).val[1], (c).val[1]),                           \
             of((a).val[2], (b).val[2], (c).val[2]), of((a).val[3], (b).val[3], (c).val[3])}})

INLINE Ints16 all_ints(int32_t x) {
    int32x4_t all = vdupq_n_s32(x);
    return (Ints16){{all, all, all, all}};
}

/* The numbers of the lanes, and all bits of the first `count` of them. */
INLINE Ints16 numbered(void) {
    static const int32_t numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (Ints16){{vld1q_s32(numbers), vld1q_s32(numbers + 4), vld1q_s32(numbers + 8), vld1q_s32(numbers + 12)}};
}
INLINE uint32x4x4_t lanes(int64_t count) { return EACH2(uint32x4x4_t, vcgtq_s32, all_ints((int32_t)count), numbered()); }

INLINE Floats16 broadcast(float x) {
    float32x4_t all = vdupq_n_f32(x);
    return (Floats16){{all, all, all, all}};
}
INLINE Floats16 load(const float *x) {
    return (Floats16){{vld1q_f32(x), vld1q_f32(x + 4), vld1q_f32(x + 8), vld1q_f32(x + 12)}};
}
INLINE Floats16 load_first(const float *x, int64_t count) {
    float some[LANES] = {0.0f};
    if (count >= LANES) return load(x);
    memcpy(some, x, (size_t)count * sizeof *x);
    return load(some);
}
INLINE void store(float *x, Floats16 y) {
    UNROLLED for (int n = 0; n < 4; n++) vst1q_f32(x + 4 * n, y.val[n]);
}
INLINE void store_first(float *x, int64_t count, Floats16 y) {
    float some[LANES];
    store(count >= LANES ? x : some, y);
    if (count < LANES) memcpy(x, some, (size_t)count * sizeof *x);
}

/* Of two numbers, as AVX: the second one if they are not ordered. */
INLINE float32x4_t quarter_maximum(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE float32x4_t quarter_minimum(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE float32x4_t quarter_multiply_add(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
INLINE float32x4_t quarter_subtract_product(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmsq_f32(c, a, b); }

INLINE Floats16 add(Floats16 a, Floats16 b) { return EACH2(Floats16, vaddq_f32, a, b); }
INLINE Floats16 subtract(Floats16 a, Floats16 b) { return EACH2(Floats16, vsubq_f32, a, b); }
INLINE Floats16 multiply(Floats16 a, Floats16 b) { return EACH2(Floats16, vmulq_f32, a, b); }
INLINE Floats16 divide(Floats16 a, Floats16 b) { return EACH2(Floats16, vdivq_f32, a, b); }
INLINE Floats16 maximum(Floats16 a, Floats16 b) { return EACH2(Floats16, quarter_maximum, a, b); }
INLINE Floats16 minimum(Floats16 a, Floats16 b) { return EACH2(Floats16, quarter_minimum, a, b); }
INLINE Floats16 multiply_add(Floats16 a, Floats16 b, Floats16 c) { return EACH3(Floats16, quarter_multiply_add, a, b, c); }
INLINE Floats16 multiply_subtract(Floats16 a, Floats16 b, Floats16 c) {
    return multiply_add(a, b, EACH(Floats16, vnegq_f32, c));
}
INLINE Floats16 subtract_product(Floats16 a, Floats16 b, Floats16 c) {
    return EACH3(Floats16, quarter_subtract_product, a, b, c);
}
INLINE Floats16 rounded(Floats16 x) { return EACH(Floats16, vrndnq_f32, x); }

INLINE Ints16 load_ints(const void *x) {
    const int32_t *numbers = x;
    return (Ints16){{vld1q_s32(numbers), vld1q_s32(numbers + 4), vld1q_s32(numbers + 8), vld1q_s32(numbers + 12)}};
}
INLINE Ints16 add_ints(Ints16 a, Ints16 b) { return EACH2(Ints16, vaddq_s32, a, b); }
INLINE Ints16 and_ints(Ints16 a, Ints16 b) { return EACH2(Ints16, vandq_s32, a, b); }
INLINE Ints16 xor_ints(Ints16 a, Ints16 b) { return EACH2(Ints16, veorq_s32, a, b); }
INLINE Ints16 maximum_ints(Ints16 a, Ints16 b) { return EACH2(Ints16, vmaxq_s32, a, b); }
INLINE Ints16 shift_left(Ints16 x, const int n) { return EACH2(Ints16, vshlq_s32, x, all_ints(n)); }
INLINE int32x4_t quarter_shift(int32x4_t x, int32x4_t n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), n));
}
INLINE Ints16 shift_right(Ints16 x, const int n) { return EACH2(Ints16, quarter_shift, x, all_ints(-n)); }
INLINE Ints16 bits_of(Floats16 x) { return EACH(Ints16, vreinterpretq_s32_f32, x); }
INLINE Floats16 floats_of(Ints16 x) { return EACH(Floats16, vreinterpretq_f32_s32, x); }
INLINE Ints16 to_ints(Floats16 x) { return EACH(Ints16, vcvtnq_s32_f32, x); }
INLINE Floats16 to_floats(Ints16 x) { return EACH(Floats16, vcvtq_f32_s32, x); }

INLINE Floats16 times_power(Floats16 x, Floats16 n) {
    return multiply(x, floats_of(shift_left(add_ints(to_ints(n), all_ints(127)), 23))); /* n becomes the exponent */
}

INLINE Floats16 first_or(Floats16 x, int64_t count, Floats16 y) {
    if (count >= LANES) return x;
    return EACH3(Floats16, vbslq_f32, lanes(count), x, y);
}
INLINE Floats16 keep_bits(Floats16 x, uint32_t bits) {
    int32x4_t all = vdupq_n_s32((int32_t)bits), one = vdupq_n_s32(1);
    Ints16 numbers = numbered(), y = bits_of(x);
    UNROLLED for (int n = 0; n < 4; n++)
        y.val[n] = vandq_s32(y.val[n], vreinterpretq_s32_u32(vtstq_s32(all, vshlq_s32(one, numbers.val[n]))));
    return floats_of(y);
}

/* A bit for each lane, all of whose bits are set or none. */
INLINE uint32_t as_bits(uint32x4x4_t mask) {
    uint32x4_t bits = vdupq_n_u32(0), one = vdupq_n_u32(1);
    Ints16 numbers = numbered();
    UNROLLED for (int n = 0; n < 4; n++) bits = vorrq_u32(bits, vandq_u32(mask.val[n], vshlq_u32(one, numbers.val[n])));
    return vaddvq_u32(bits);
}
INLINE uint32_t bits_above(Floats16 x, Floats16 least) { return as_bits(EACH2(uint32x4x4_t, vcgtq_f32, x, least)); }
INLINE uint32_t bits_positive(Floats16 x) { return as_bits(EACH(uint32x4x4_t, vclezq_f32, x)) ^ 0xffff; }
INLINE Floats16 where_negative(Floats16 x, Floats16 a, Floats16 b) {
    return EACH3(Floats16, vbslq_f32, EACH(uint32x4x4_t, vcltzq_f32, x), a, b);
}
INLINE Ints16 where_nan(Floats16 x, Ints16 a, Ints16 b) {
    return EACH3(Ints16, vbslq_s32, EACH2(uint32x4x4_t, vceqq_f32, x, x), b, a);
}

INLINE float sum_of(Floats16 x) {
    float32x4_t four = vaddq_f32(vaddq_f32(x.val[0], x.val[2]), vaddq_f32(x.val[1], x.val[3]));
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
INLINE float maximum_of(Floats16 x) {
    float32x4_t four = quarter_maximum(quarter_maximum(x.val[0], x.val[2]), quarter_maximum(x.val[1], x.val[3]));
    four = quarter_maximum(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(quarter_maximum(four, vextq_f32(four, four, 1)), 0);
}
INLINE int32_t maximum_of_ints(Ints16 x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.val[0], x.val[1]), vmaxq_s32(x.val[2], x.val[3])));
}

/* Sixteen 16-bit numbers, of which `count` exist. */
INLINE uint16x8x2_t load_halves(const uint16_t *x, int64_t count) {
    uint16_t some[LANES] = {0};
    if (count < LANES) memcpy(some, x, (size_t)count * sizeof *x), x = some;
    return (uint16x8x2_t){{vld1q_u16(x), vld1q_u16(x + 8)}};
}
INLINE void store_halves(uint16_t *x, int64_t count, uint16x8_t low, uint16x8_t high) {
    uint16_t some[LANES], *to = count >= LANES ? x : some;
    vst1q_u16(to, low), vst1q_u16(to + 8, high);
    if (count < LANES) memcpy(x, some, (size_t)count * sizeof *x);
}
INLINE Floats16 load_float16(const uint16_t *x, int64_t count) {
    uint16x8x2_t halves = load_halves(x, count);
    float16x8_t low = vreinterpretq_f16_u16(halves.val[0]), high = vreinterpretq_f16_u16(halves.val[1]);
    return (Floats16){{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
                       vcvt_high_f32_f16(high)}};
}
INLINE void store_float16(uint16_t *x, int64_t count, Floats16 y) {
    float16x8_t low = vcvt_high_f16_f32(vcvt_f16_f32(y.val[0]), y.val[1]);
    float16x8_t high = vcvt_high_f16_f32(vcvt_f16_f32(y.val[2]), y.val[3]);
    store_halves(x, count, vreinterpretq_u16_f16(low), vreinterpretq_u16_f16(high));
}
INLINE Ints16 load_uint16(const uint16_t *x, int64_t count) {
    uint16x8x2_t halves = load_halves(x, count);
    uint16x8_t low = halves.val[0], high = halves.val[1];
    return (Ints16){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_high_u16(low)),
                     vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_high_u16(high))}};
}
INLINE uint16x8_t low_halves(int32x4_t a, int32x4_t b) { /* the low 16 bits of each lane */
    return vuzp1q_u16(vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b));
}
INLINE void store_uint16(uint16_t *x, int64_t count, Ints16 y) {
    store_halves(x, count, low_halves(y.val[0], y.val[1]), low_halves(y.val[2], y.val[3]));
}
INLINE void store_uint8(uint8_t *x, int64_t count, Ints16 y) {
    uint16x8_t low = low_halves(y.val[0], y.val[1]), high = low_halves(y.val[2], y.val[3]);
    uint8_t some[LANES];
    vst1q_u8(count >= LANES ? x : some, vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)));
    if (count < LANES) memcpy(x, some, (size_t)count);
}

INLINE void multiply_wide(Ints16 x, uint32_t factor, Ints16 *high, Ints16 *low) {
    UNROLLED for (int n = 0; n < 4; n++) {
        uint32x4_t each = vreinterpretq_u32_s32(x.val[n]);
        int32x4_t first = vreinterpretq_s32_u64(vmull_n_u32(vget_low_u32(each), factor));
        int32x4_t second = vreinterpretq_s32_u64(vmull_high_n_u32(each, factor));
        low->val[n] = vuzp1q_s32(first, second), high->val[n] = vuzp2q_s32(first, second);
    }
}

INLINE uint32_t halves_at_least(Ints16 x, uint16_t least) {
    static const uint16_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    uint16x8_t threshold = vdupq_n_u16(least), each = vld1q_u16(bits);
    uint32_t found = 0;
    UNROLLED for (int n = 0; n < 4; n++)
        found |= (uint32_t)vaddvq_u16(vandq_u16(vcgeq_u16(vreinterpretq_u16_s32(x.val[n]), threshold), each)) << 8 * n;
    return found;
}

/* Four bytes of each of 16 columns: the first two of columns 0 to 7, the last two, then those of columns 8 to 15. */
INLINE Ints16 load_bytes(const void *x) {
    int16x8x2_t low = vld2q_s16(x), high = vld2q_s16((const int16_t *)x + LANES);
    return (Ints16){{vreinterpretq_s32_s16(low.val[0]), vreinterpretq_s32_s16(low.val[1]),
                     vreinterpretq_s32_s16(high.val[0]), vreinterpretq_s32_s16(high.val[1])}};
}
/* The first two of four bytes, and the last two, in each lane. */
INLINE Ints16 bytes_of(const void *address) {
    int16_t pairs[2];
    memcpy(pairs, address, sizeof pairs);
    int32x4_t first = vreinterpretq_s32_s16(vdupq_n_s16(pairs[0])), last = vreinterpretq_s32_s16(vdupq_n_s16(pairs[1]));
    return (Ints16){{first, last, first, last}};
}
/* Add the products of four bytes each. Two products of numbers up to 127 fit into 16 bits: 2 * 127 * 127 = 32258. */
INLINE Ints16 add_bytes(Ints16 sum, Ints16 a, Ints16 b) {
    UNROLLED for (int n = 0; n < 4; n += 2) {
        int8x16_t first = vreinterpretq_s8_s32(a.val[n]), last = vreinterpretq_s8_s32(a.val[n + 1]);
        int8x16_t one = vreinterpretq_s8_s32(b.val[n]), other = vreinterpretq_s8_s32(b.val[n + 1]);
        int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(first), vget_low_s8(one)), vget_low_s8(last), vget_low_s8(other));
        sum.val[n] = vpadalq_s16(sum.val[n], low);
        sum.val[n + 1] = vpadalq_s16(sum.val[n + 1], vmlal_high_s8(vmull_high_s8(first, one), last, other));
    }
    return sum;
}

/* `volatile` keeps the order of the products, for which the registers then suffice. */
#define IN_REGISTERS(x) __asm__ volatile("" : "+w"((x).val[0]), "+w"((x).val[1]), "+w"((x).val[2]), "+w"((x).val[3]))

INLINE void turn_square(const float *x, int64_t stride, float *out, int64_t out_stride) {
    for (int part = 0; part < 16; part++) { /* 4 x 4 numbers */
        const float *from = x + part / 4 * 4 * stride + part % 4 * 4;
        float *to = out + part % 4 * 4 * out_stride + part / 4 * 4;
        float32x4x2_t one = vtrnq_f32(vld1q_f32(from), vld1q_f32(from + stride));
        float32x4x2_t two = vtrnq_f32(vld1q_f32(from + 2 * stride), vld1q_f32(from + 3 * stride));
        UNROLLED for (int j = 0; j < 2; j++) { /* column j of rows 0 and 1 is the low half of one.val[j], column j + 2 the high */
            vst1q_f32(to + j * out_stride, vcombine_f32(vget_low_f32(one.val[j]), vget_low_f32(two.val[j])));
            vst1q_f32(to + (j + 2) * out_stride, vcombine_f32(vget_high_f32(one.val[j]), vget_high_f32(two.val[j])));
        }
    }
}
#endif

/* The same for any instruction set. */

INLINE Floats16 zeros(void) { return broadcast(0.0f); }
INLINE Floats16 keep_first(Floats16 x, int64_t count) { return first_or(x, count, zeros()); }

/* The mask of the first `count` lanes as bits. */
INLINE uint32_t first_bits(int64_t count) { return count >= LANES ? 0xffff : (1u << count) - 1; }

INLINE Floats16 magnitude(Floats16 x) { return floats_of(and_ints(bits_of(x), all_ints(0x7fffffff))); }

/* exp(x) to two units in the last place, as 2^n times a polynomial; exp(-87) below -87, infinity from 88.73 on. NaN stays
 * NaN: if an operand is NaN, `maximum` and `minimum` return the second one. */
INLINE Floats16 exponential(Floats16 x) {
    x = maximum(broadcast(-87.0f), x);
    Floats16 n = minimum(broadcast(127.0f), rounded(multiply(x, broadcast(1.44269504f)))); /* 2^n is a normal number */
    Floats16 rest = subtract_product(n, broadcast(0.693359375f), x);
    rest = subtract_product(n, broadcast(-2.12194440e-4f), rest);
    Floats16 y = broadcast(1.9875691500e-4f);
    y = multiply_add(y, rest, broadcast(1.3981999507e-3f));
    y = multiply_add(y, rest, broadcast(8.3334519073e-3f));
    y = multiply_add(y, rest, broadcast(4.1665795894e-2f));
    y = multiply_add(y, rest, broadcast(1.6666665459e-1f));
    y = multiply_add(y, rest, broadcast(5.0000001201e-1f));
    y = multiply_add(y, multiply(rest, rest), add(rest, broadcast(1.0f)));
    return times_power(y, n);
}
