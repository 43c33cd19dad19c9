// Eight-lane float arithmetic for the layer kernels; included inside an anonymous namespace of each instruction set's
// own translation unit. Every operation here is defined lane by lane (round to nearest even, fused multiply-add,
// fixed order of horizontal sums), so the portable and the AVX2 build of a kernel give the same bits. No standard
// library containers: an inline function compiled for AVX2 must not be picked by the linker for the portable path.
//
// exp: 1 ulp of float32 over its whole range, subnormal results included; exp(-inf) = 0, exp(inf) = inf, NaN stays.
// log1p on [0, 1]: 2 ulp. silu(-inf) = -0. Conversions to bfloat16 and float16 round to nearest even, NaN stays NaN.

typedef float V __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));
typedef uint32_t VU __attribute__((vector_size(32)));  // wraps; VI is for comparisons and arithmetic shifts
typedef uint16_t VH __attribute__((vector_size(16)));
typedef float V4 __attribute__((vector_size(16)));

#define LAYER_INLINE static inline __attribute__((always_inline))

LAYER_INLINE V splat(float x) { return V{x, x, x, x, x, x, x, x}; }
LAYER_INLINE VU splat_bits(uint32_t x) { return VU{x, x, x, x, x, x, x, x}; }

LAYER_INLINE V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Keeps the compiler from loading v again at each use.
LAYER_INLINE V in_register(V v) {
#if defined(__AVX2__)
  asm("" : "+x"(v));
#endif
  return v;
}

LAYER_INLINE void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

// The first n (1..8) lanes from memory, the others zero.
LAYER_INLINE V load_part(const float* p, int n) {
  if (n >= 8) return load(p);
  float lanes[8] = {};
  for (int i = 0; i < n; i++) lanes[i] = p[i];
  return load(lanes);
}

LAYER_INLINE void store_part(float* p, V v, int n) {
  if (n >= 8) return store(p, v);
  for (int i = 0; i < n; i++) p[i] = v[i];
}

#if defined(__SSE2__) && !defined(__FMA__)
// a * b + c with one rounding, for CPUs without the instruction: the product is exact in double precision, and the sum
// is rounded to odd there, so that rounding it to float32 is the only rounding (Boldo & Melquiond, 2008).
LAYER_INLINE __m128d fma_rounded_to_odd(__m128d a, __m128d b, __m128d c) {
  const __m128d product = _mm_mul_pd(a, b), sum = _mm_add_pd(product, c), part = _mm_sub_pd(sum, product);
  const __m128d error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, part)), _mm_sub_pd(c, part));
  const __m128d zero = _mm_setzero_pd(), finite = _mm_cmpeq_pd(_mm_sub_pd(sum, sum), zero);
  const __m128i inexact = _mm_castpd_si128(_mm_and_pd(_mm_cmpneq_pd(error, zero), finite));
  const __m128i bits = _mm_castpd_si128(sum), one = _mm_set1_epi64x(1);
  const __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one);
  const __m128i signs = _mm_srai_epi32(_mm_xor_si128(_mm_castpd_si128(error), bits), 31);
  const __m128i step = _mm_or_si128(_mm_shuffle_epi32(signs, 0xf5), one);  // -1 where the exact sum is nearer to zero
  return _mm_castsi128_pd(_mm_add_epi64(bits, _mm_and_si128(step, _mm_and_si128(even, inexact))));
}

LAYER_INLINE __m128 fma_four(__m128 a, __m128 b, __m128 c) {
  const __m128d low = fma_rounded_to_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
  const __m128d high = fma_rounded_to_odd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)),
                                          _mm_cvtps_pd(_mm_movehl_ps(c, c)));
  return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}
#endif

LAYER_INLINE V fma(V a, V b, V c) {
#if defined(__FMA__)
  return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__SSE2__)
  __m128 x[2], y[2], z[2];
  __builtin_memcpy(x, &a, sizeof a);
  __builtin_memcpy(y, &b, sizeof b);
  __builtin_memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; i++) z[i] = fma_four(x[i], y[i], z[i]);
  __builtin_memcpy(&c, z, sizeof c);
  return c;
#else
  V r;
  for (int i = 0; i < 8; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

LAYER_INLINE float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

LAYER_INLINE V4 low_plus_high(V v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}

// ((v0 + v4) + (v2 + v6)) + ((v1 + v5) + (v3 + v7)).
LAYER_INLINE float sum(V v) {
  V4 f = low_plus_high(v);
  return (f[0] + f[2]) + (f[1] + f[3]);
}

// Four of those sums at once.
LAYER_INLINE V4 sum4(V a, V b, V c, V d) {
  V4 p = low_plus_high(a), q = low_plus_high(b), r = low_plus_high(c), s = low_plus_high(d);
  V4 pq_low = __builtin_shufflevector(p, q, 0, 4, 1, 5), pq_high = __builtin_shufflevector(p, q, 2, 6, 3, 7);
  V4 rs_low = __builtin_shufflevector(r, s, 0, 4, 1, 5), rs_high = __builtin_shufflevector(r, s, 2, 6, 3, 7);
  V4 pq = pq_low + pq_high, rs = rs_low + rs_high;  // p0+p2, q0+q2, p1+p3, q1+q3
  return __builtin_shufflevector(pq, rs, 0, 1, 4, 5) + __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
}

LAYER_INLINE float largest(V v) {
  float best = v[0];
  for (int i = 1; i < 8; i++) best = v[i] > best ? v[i] : best;
  return best;
}

LAYER_INLINE V power_of_two(VI k) { return (V)(((VU)k + 127) << 23); }

LAYER_INLINE V exp(V x) {
  V c = x < splat(-104.f) ? splat(-104.f) : x;
  c = c > splat(89.f) ? splat(89.f) : c;
  const V magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  V shifted = fma(c, splat(1.44269504f), magic);
  V n = shifted - magic;
  VI k = (VI)((VU)shifted - (VU)magic);
  V r = fma(n, splat(-0.693145752f), c);
  r = fma(n, splat(-1.42860677e-6f), r);
  V p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  V y = fma(p, r * r, r) + 1.f;
  VI half = k >> 1;
  return y * power_of_two(half) * power_of_two((VI)((VU)k - (VU)half));
}

// For 0 <= u <= 1: 2 atanh(u / (2 + u)).
LAYER_INLINE V log1p_unit(V u) {
  V s = u / (u + 2.f), q = s * s;
  V p = splat(1.f / 19);
  p = fma(p, q, splat(1.f / 17));
  p = fma(p, q, splat(1.f / 15));
  p = fma(p, q, splat(1.f / 13));
  p = fma(p, q, splat(1.f / 11));
  p = fma(p, q, splat(1.f / 9));
  p = fma(p, q, splat(1.f / 7));
  p = fma(p, q, splat(1.f / 5));
  p = fma(p, q, splat(1.f / 3));
  V twice = s + s;
  return fma(p * q, twice, twice);
}

LAYER_INLINE V magnitude(V x) { return (V)((VU)x & 0x7fffffff); }

LAYER_INLINE V softplus(V x) { return (x > 0.f ? x : splat(0.f)) + log1p_unit(exp(-magnitude(x))); }

LAYER_INLINE V sigmoid(V x) {
  V e = exp(-magnitude(x));
  return (x < 0.f ? e : splat(1.f)) / (e + 1.f);
}

LAYER_INLINE V silu(V x) {
  V c = x < splat(-200.f) ? splat(-200.f) : x;
  return c * sigmoid(c);
}

LAYER_INLINE VU load_halves(const uint16_t* p) {
  VH h;
  __builtin_memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, VU);
}

LAYER_INLINE void store_halves(uint16_t* p, VU bits) {
  VH h = __builtin_convertvector(bits, VH);
  __builtin_memcpy(p, &h, sizeof h);
}

LAYER_INLINE V from_bf16(VU h) { return (V)(h << 16); }

LAYER_INLINE VU to_bf16(V v) {
  const VU u = (VU)v, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return v == v ? rounded : (((u >> 16) & 0x8000) | 0x7fc0);
}

LAYER_INLINE V from_f16(VU h) {
  const VU number = (h & 0x7fff) << 13, special = number | 0x7f800000;
  const V scaled = (V)number * 0x1p112f;
  return (V)(((VI)number >= 0x0f800000 ? special : (VU)scaled) | ((h & 0x8000) << 16));
}

LAYER_INLINE VU to_f16(V v) {
  const VU u = (VU)v, sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  const VI size = (VI)a;
  const VU normal = (a - (112u << 23) + 0xfff + ((a >> 13) & 1)) >> 13;
  const VU tiny = (VU)((V)a + 0.5f) - 0x3f000000;  // adding 1/2 leaves the rounded subnormal in the low bits
  VU out = size < 0x38800000 ? tiny : normal;
  out = size >= 0x477ff000 ? splat_bits(0x7c00) : out;
  out = size > 0x7f800000 ? splat_bits(0x7e00) : out;
  return out | sign;
}

// Elements [i, i + n) of an array of `type`, n in 1..8, the other lanes zero.
template <int type>
LAYER_INLINE V load_as(const void* data, int64_t i, int n) {
  if constexpr (type == DSPARK_F32) {
    return load_part((const float*)data + i, n);
  } else {
    const uint16_t* p = (const uint16_t*)data + i;
    if (n >= 8) return type == DSPARK_BF16 ? from_bf16(load_halves(p)) : from_f16(load_halves(p));
    uint16_t lanes[8] = {};
    for (int j = 0; j < n; j++) lanes[j] = p[j];
    return type == DSPARK_BF16 ? from_bf16(load_halves(lanes)) : from_f16(load_halves(lanes));
  }
}

LAYER_INLINE V load_any(const void* data, int type, int64_t i, int n) {
  if (type == DSPARK_F32) return load_as<DSPARK_F32>(data, i, n);
  return type == DSPARK_BF16 ? load_as<DSPARK_BF16>(data, i, n) : load_as<DSPARK_F16>(data, i, n);
}

// v into elements [i, i + n) of an array of `type`, n in 1..8.
LAYER_INLINE void narrow(void* data, int type, int64_t i, V v, int n) {
  if (type == DSPARK_F32) return store_part((float*)data + i, v, n);
  const VU h = type == DSPARK_BF16 ? to_bf16(v) : to_f16(v);
  uint16_t* p = (uint16_t*)data + i;
  if (n >= 8) return store_halves(p, h);
  for (int j = 0; j < n; j++) p[j] = (uint16_t)h[j];
}

LAYER_INLINE int lanes_left(int64_t i, int64_t n) { return n - i < 8 ? (int)(n - i) : 8; }

template <int type>
LAYER_INLINE void widen_as(const void* data, int64_t begin, int64_t count, float* into) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(into + i, load_as<type>(data, begin + i, 8));
  if (i < count) store_part(into + i, load_as<type>(data, begin + i, (int)(count - i)), (int)(count - i));
}

// `count` elements from element `begin` as float32: in place where they are, else converted into `into`.
static const float* widen(const void* data, int type, int64_t begin, int64_t count, float* into) {
  if (type == DSPARK_F32) return (const float*)data + begin;
  if (type == DSPARK_BF16)
    widen_as<DSPARK_BF16>(data, begin, count, into);
  else
    widen_as<DSPARK_F16>(data, begin, count, into);
  return into;
}

// s[r * s_stride + c] = scale * (a_r . b_c) for R rows a and C rows b of `size` floats: eight partial sums a pair.
template <int R, int C>
LAYER_INLINE void dot_tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int size, float scale,
                           float* s, int s_stride) {
  V sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = splat(0.f);
  int i = 0;
  for (; i + 8 <= size; i += 8) {
    V x[R];
    for (int r = 0; r < R; r++) x[r] = in_register(load(a + r * a_stride + i));
    for (int c = 0; c < C; c++) {
      const V y = in_register(load(b + c * b_stride + i));
      for (int r = 0; r < R; r++) sums[r][c] = fma(x[r], y, sums[r][c]);
    }
  }
  if (i < size)
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++)
        sums[r][c] =
            fma(load_part(a + r * a_stride + i, size - i), load_part(b + c * b_stride + i, size - i), sums[r][c]);
  if constexpr (C % 4 == 0) {
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c += 4) {
        const V4 four = sum4(sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]) * scale;
        __builtin_memcpy(s + r * s_stride + c, &four, sizeof four);
      }
  } else if constexpr (R % 2 == 0 && C == 2) {
    for (int r = 0; r < R; r += 2) {
      const V4 four = sum4(sums[r][0], sums[r][1], sums[r + 1][0], sums[r + 1][1]) * scale;
      __builtin_memcpy(s + r * s_stride, &four, sizeof four / 2);
      __builtin_memcpy(s + (r + 1) * s_stride, (const char*)&four + sizeof four / 2, sizeof four / 2);
    }
  } else if constexpr (R == 4) {
    for (int c = 0; c < C; c++) {
      const V4 four = sum4(sums[0][c], sums[1][c], sums[2][c], sums[3][c]) * scale;
      for (int r = 0; r < R; r++) s[r * s_stride + c] = four[r];
    }
  } else {
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) s[r * s_stride + c] = sum(sums[r][c]) * scale;
  }
}

// The same for any numbers of rows.
static void dot_rows(const float* a, int64_t a_stride, int rows, const float* b, int64_t b_stride, int count, int size,
                     float scale, float* s, int s_stride) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    int c = 0;
    for (; c + 2 <= count; c += 2)
      dot_tile<4, 2>(a + r * a_stride, a_stride, b + c * b_stride, b_stride, size, scale, s + r * s_stride + c,
                     s_stride);
    if (c < count)
      dot_tile<4, 1>(a + r * a_stride, a_stride, b + c * b_stride, b_stride, size, scale, s + r * s_stride + c,
                     s_stride);
  }
  for (; r < rows; r++) {
    int c = 0;
    for (; c + 8 <= count; c += 8)
      dot_tile<1, 8>(a + r * a_stride, a_stride, b + c * b_stride, b_stride, size, scale, s + r * s_stride + c,
                     s_stride);
    for (; c < count; c++)
      dot_tile<1, 1>(a + r * a_stride, a_stride, b + c * b_stride, b_stride, size, scale, s + r * s_stride + c,
                     s_stride);
  }
}
