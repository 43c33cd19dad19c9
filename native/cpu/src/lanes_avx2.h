// Eight float lanes and their integer companions, for AVX2, FMA and F16C; a few go better where AVX-512 may be used.
// lanes_portable.h has the same names in plain C++ with the same bits. Everything sits in an unnamed namespace and
// nothing from the standard library is used, so a file compiled for an instruction set leaves no function behind that
// the linker could pick for another CPU.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace {

#if defined(__AVX512VNNI__)
constexpr int registers = 32;  // vectors that a kernel's tile may fill
#else
constexpr int registers = 16;
#endif

struct Floats { __m256 v; };     // 8 x float
struct Integers { __m256i v; };  // 8 x int32
struct Shorts { __m256i v; };    // 16 x int16

inline Floats splat(float x) { return {_mm256_set1_ps(x)}; }
inline Floats broadcast(const float* p) { return {_mm256_broadcast_ss(p)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }  // of a NaN and b: b
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }  // of a NaN and b: b

// The first `count` lanes, zeros in the others.
inline Floats first_lanes(Floats a, int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane)))};
}

// Column sums of eight vectors p[0], p[stride], ...: lane i is ((a0+a1)+(a2+a3)) + ((a4+a5)+(a6+a7)) of vector i.
inline Floats sum_each(const Floats* p, size_t stride) {
  const auto pair = [&](size_t i) { return _mm256_hadd_ps(p[i * stride].v, p[(i + 1) * stride].v); };
  const __m256 low = _mm256_hadd_ps(pair(0), pair(2)), high = _mm256_hadd_ps(pair(4), pair(6));
  return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31))};
}

// x0 x0 x1 x1 x2 x2 x3 x3
inline Floats four_twice(const float* p) {
  const __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(p));
  return {_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))};
}

// x0 x0 x0 x0 x1 x1 x1 x1
inline Floats two_four_times(const float* p) {
  return {_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_set1_ps(p[0])), _mm_set1_ps(p[1]), 1)};
}

template <DsparkType type>
inline Floats load_as(const void* p) {
  if constexpr (type == DSPARK_F32) return {_mm256_loadu_ps(static_cast<const float*>(p))};
  const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(p));
  if constexpr (type == DSPARK_F16) return {_mm256_cvtph_ps(half)};
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}

// Rounds to nearest even; NaN stays NaN.
template <DsparkType type>
inline void store_as(void* p, Floats a) {
  if constexpr (type == DSPARK_F32) {
    _mm256_storeu_ps(static_cast<float*>(p), a.v);
  } else if constexpr (type == DSPARK_F16) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
  } else {
    const __m256i bits = _mm256_castps_si256(a.v), top = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i picked = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m128i low = _mm256_castsi256_si128(picked), high = _mm256_extracti128_si256(picked, 1);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm_packus_epi32(low, high));
  }
}

// Of sixteen bfloat16, those at even and those at odd places.
inline Floats load_bf16_even(const void* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)), 16))};
}
inline Floats load_bf16_odd(const void* p) {
  const __m256i v = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Eight E4M3 bytes (bias 7, no infinities, 0x7f and 0xff are NaN).
inline Floats load_e4m3(const uint8_t* p) {
  const __m128i byte = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i magnitude = _mm_and_si128(byte, _mm_set1_epi16(0x7f));
  const __m128i sign = _mm_slli_epi16(_mm_andnot_si128(_mm_set1_epi16(0x7f), byte), 8);
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
  const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
  return {_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f))};
}

inline Integers load_integers(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
inline void store(int32_t* p, Integers a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
inline Integers add(Integers a, Integers b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Integers both(Integers a, int32_t mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(mask))}; }
inline Integers shift_right(Integers a, int bits) { return {_mm256_srli_epi32(a.v, bits)}; }
inline Floats to_floats(Integers a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Integers round_to_integers(Floats a) { return {_mm256_cvtps_epi32(a.v)}; }  // to nearest even
inline Integers max(Integers a, Integers b) { return {_mm256_max_epi32(a.v, b.v)}; }
// The bits of |a|: as integers they order like the values, infinities and NaN on top.
inline Integers size_bits(Floats a) { return {_mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(INT32_MAX))}; }

// Of 8 values q + rest: how many are not zero, how many of those have |q| < limit, how many have a rest.
struct Counts {
  int nonzero;
  int small;
  int inexact;
};
inline Counts count_small(Integers q, Floats rest, int32_t limit) {
  const auto bits = [](__m256i mask) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
  };
  const unsigned inexact = bits(_mm256_castps_si256(_mm256_cmp_ps(rest.v, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
  const unsigned zero = bits(_mm256_cmpeq_epi32(q.v, _mm256_setzero_si256())) & ~inexact;
  const unsigned below = bits(_mm256_cmpgt_epi32(_mm256_set1_epi32(limit), _mm256_abs_epi32(q.v))) & ~zero;
  return {8 - __builtin_popcount(zero), __builtin_popcount(below), __builtin_popcount(inexact)};
}

inline int32_t largest(Integers a) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

inline int32_t sum(Integers a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

inline Shorts load_shorts(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
inline Shorts both(Shorts a, int16_t mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi16(mask))}; }
inline Shorts shift_right(Shorts a, int bits) { return {_mm256_srli_epi16(a.v, bits)}; }
inline Shorts shift_left(Shorts a, int bits) { return {_mm256_slli_epi16(a.v, bits)}; }
// Lane i is a[2i] b[2i] + a[2i+1] b[2i+1].
inline Integers multiply_pairs(Shorts a, Shorts b) { return {_mm256_madd_epi16(a.v, b.v)}; }

// Lane i is the sum of multiply_pairs(a[j], b[16 j ..]) over j < 4.
inline Integers multiply_four(const Shorts* a, const int16_t* b) {
#if defined(__AVX512VNNI__)
  const __m256i first = _mm256_madd_epi16(a[0].v, load_shorts(b).v);
  const __m256i last = _mm256_madd_epi16(a[2].v, load_shorts(b + 32).v);
  return {_mm256_add_epi32(_mm256_dpwssd_epi32(first, a[1].v, load_shorts(b + 16).v),
                           _mm256_dpwssd_epi32(last, a[3].v, load_shorts(b + 48).v))};
#else
  return add(add(multiply_pairs(a[0], load_shorts(b)), multiply_pairs(a[1], load_shorts(b + 16))),
             add(multiply_pairs(a[2], load_shorts(b + 32)), multiply_pairs(a[3], load_shorts(b + 48))));
#endif
}

// Sixteen lanes: low and high of eight.
#if defined(__AVX512VNNI__)
struct Wide { __m512 v; };

inline Wide join(Floats low, Floats high) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low.v), high.v, 1)};
}
inline Wide load_wide(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Wide fma(Wide a, Wide b, Wide c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats low_of(Wide a) { return {_mm512_castps512_ps256(a.v)}; }
inline Floats high_of(Wide a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }
#else
struct Wide { Floats low, high; };

inline Wide join(Floats low, Floats high) { return {low, high}; }
inline Wide load_wide(const float* p) { return {load(p), load(p + 8)}; }
inline Wide fma(Wide a, Wide b, Wide c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
inline Floats low_of(Wide a) { return a.low; }
inline Floats high_of(Wide a) { return a.high; }
#endif

// Two 16-byte pieces in one vector.
inline __m256i join(const uint8_t* low, const uint8_t* high) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}
inline Shorts join_shorts(const uint8_t* low, const uint8_t* high) { return {join(low, high)}; }
inline Integers join_integers(const uint8_t* low, const uint8_t* high) { return {join(low, high)}; }

// E2M1 codes (0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives) in the nibbles of 16 shorts, each as 512 times its value:
// q[i] lane l is nibble i of short l.
inline void expand_e2m1(const uint8_t* p, Shorts* q) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), nibble = _mm256_set1_epi8(15);
  const __m256i high_byte = _mm256_set1_epi16(static_cast<int16_t>(0xff00));
  const __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble));
  const __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
  q[0].v = _mm256_slli_epi16(even, 8);
  q[1].v = _mm256_slli_epi16(odd, 8);
  q[2].v = _mm256_and_si256(even, high_byte);
  q[3].v = _mm256_and_si256(odd, high_byte);
}

// The E2M1 codes in nibble `i` of eight words, as floats.
inline Floats e2m1_to_floats(Integers words, int i) {
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(words.v, 4 * i));
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(words.v, 28 - 4 * i), _mm256_set1_epi32(INT32_MIN));
  return {_mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign))};
}

// Stores 64 integers, saturated to int16, in the order p[16 i + l] = q[4 l + i]: the order of the nibbles in a row of
// 4-bit codes read as shorts.
inline void store_by_nibble(int16_t* p, const Integers* q) {
  __m256i quad[4];  // of 16 values e, as (e[i], e[4+i], e[8+i], e[12+i]) for i = 0..3
  const __m256i pairs = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,
                                         0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m256i interleave = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int k = 0; k < 4; ++k) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * k].v, q[2 * k + 1].v), 0xd8);
    quad[k] = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(packed, pairs), interleave);
  }
  const __m256i a = _mm256_unpacklo_epi64(quad[0], quad[1]), b = _mm256_unpackhi_epi64(quad[0], quad[1]);
  const __m256i c = _mm256_unpacklo_epi64(quad[2], quad[3]), d = _mm256_unpackhi_epi64(quad[2], quad[3]);
  const auto put = [&](int i, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + i, v); };
  put(0, _mm256_permute2x128_si256(a, c, 0x20));
  put(1, _mm256_permute2x128_si256(b, d, 0x20));
  put(2, _mm256_permute2x128_si256(a, c, 0x31));
  put(3, _mm256_permute2x128_si256(b, d, 0x31));
}

// Stores 64 integers, saturated to int16, as even and odd places of 32 consecutive values, the halves of each taken
// 16 values apart: the order of 8-bit codes read by `join_shorts` from bytes 0 and 32, then 16 and 48.
inline void store_by_byte(int16_t* p, const Integers* q) {
  const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  __m256i split[4];  // of 16 values: the 8 even ones, the 8 odd ones
  for (int k = 0; k < 4; ++k) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * k].v, q[2 * k + 1].v), 0xd8);
    split[k] = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(packed, apart), 0xd8);
  }
  const auto put = [&](int i, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + i, v); };
  put(0, _mm256_permute2x128_si256(split[0], split[2], 0x20));
  put(1, _mm256_permute2x128_si256(split[0], split[2], 0x31));
  put(2, _mm256_permute2x128_si256(split[1], split[3], 0x20));
  put(3, _mm256_permute2x128_si256(split[1], split[3], 0x31));
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
