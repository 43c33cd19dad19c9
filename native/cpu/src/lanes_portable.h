// The names of lanes_avx2.h in plain C++, with the same bits. Read that file for what each does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels.h"

namespace {

constexpr int registers = 8;

struct Floats { float v[8]; };
struct Integers { int32_t v[8]; };
struct Shorts { int16_t v[16]; };

template <typename Lanes, typename Each>
inline Lanes lanes_of(Each&& each) {
  Lanes out;
  for (int i = 0; i < static_cast<int>(sizeof(out.v) / sizeof(out.v[0])); ++i) {
    out.v[i] = static_cast<std::remove_reference_t<decltype(out.v[0])>>(each(i));
  }
  return out;
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = (half >> 10) & 31, rest = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | rest << 13 | (rest ? 0x400000 : 0));
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(rest) * 0x1p-24f));
  return float_of(sign | (exponent + 112) << 23 | rest << 13);
}

inline uint16_t to_f16(float x) {
  const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((size >> 13) & 0x1ff));
  if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
  if (size < 0x38800000) {  // subnormal in f16: 0.5 + x is rounded to multiples of 2^-24, as the result must be
    return static_cast<uint16_t>(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13));
}

inline float from_bf16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }

inline uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline Floats splat(float x) { return lanes_of<Floats>([&](int) { return x; }); }
inline Floats broadcast(const float* p) { return splat(*p); }
inline Floats load(const float* p) { return lanes_of<Floats>([&](int i) { return p[i]; }); }
inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline Floats add(Floats a, Floats b) { return lanes_of<Floats>([&](int i) { return a.v[i] + b.v[i]; }); }
inline Floats sub(Floats a, Floats b) { return lanes_of<Floats>([&](int i) { return a.v[i] - b.v[i]; }); }
inline Floats mul(Floats a, Floats b) { return lanes_of<Floats>([&](int i) { return a.v[i] * b.v[i]; }); }
inline Floats fma(Floats a, Floats b, Floats c) {
  return lanes_of<Floats>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Floats min(Floats a, Floats b) {
  return lanes_of<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats max(Floats a, Floats b) {
  return lanes_of<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

inline Floats sum_each(const Floats* p, size_t stride) {
  return lanes_of<Floats>([&](int i) {
    const float* a = p[static_cast<size_t>(i) * stride].v;
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
  });
}

inline Floats first_lanes(Floats a, int count) {
  return lanes_of<Floats>([&](int i) { return i < count ? a.v[i] : 0.0f; });
}
inline Floats four_twice(const float* p) { return lanes_of<Floats>([&](int i) { return p[i / 2]; }); }
inline Floats two_four_times(const float* p) { return lanes_of<Floats>([&](int i) { return p[i / 4]; }); }

template <DsparkType type>
inline Floats load_as(const void* p) {
  if constexpr (type == DSPARK_F32) return load(static_cast<const float*>(p));
  const uint16_t* half = static_cast<const uint16_t*>(p);
  return lanes_of<Floats>([&](int i) { return type == DSPARK_F16 ? from_f16(half[i]) : from_bf16(half[i]); });
}

template <DsparkType type>
inline void store_as(void* p, Floats a) {
  if constexpr (type == DSPARK_F32) {
    store(static_cast<float*>(p), a);
  } else {
    uint16_t* half = static_cast<uint16_t*>(p);
    for (int i = 0; i < 8; ++i) half[i] = type == DSPARK_F16 ? to_f16(a.v[i]) : to_bf16(a.v[i]);
  }
}

inline Floats load_bf16_even(const void* p) {
  return lanes_of<Floats>([&](int i) { return from_bf16(static_cast<const uint16_t*>(p)[2 * i]); });
}
inline Floats load_bf16_odd(const void* p) {
  return lanes_of<Floats>([&](int i) { return from_bf16(static_cast<const uint16_t*>(p)[2 * i + 1]); });
}

inline float e4m3_value(uint8_t byte) {
  const int magnitude = byte & 0x7f, sign = byte >> 7;
  const int half = magnitude << 7 | sign << 15 | (magnitude == 0x7f ? 0x7e00 : 0);
  return from_f16(static_cast<uint16_t>(half)) * 256.0f;
}
inline Floats load_e4m3(const uint8_t* p) {
  return lanes_of<Floats>([&](int i) { return e4m3_value(p[i]); });
}

inline Integers load_integers(const void* p) {
  Integers out;
  std::memcpy(out.v, p, sizeof(out.v));
  return out;
}
inline void store(int32_t* p, Integers a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline Integers add(Integers a, Integers b) { return lanes_of<Integers>([&](int i) { return a.v[i] + b.v[i]; }); }
inline Integers both(Integers a, int32_t mask) { return lanes_of<Integers>([&](int i) { return a.v[i] & mask; }); }
inline Integers shift_right(Integers a, int bits) {
  return lanes_of<Integers>([&](int i) { return static_cast<uint32_t>(a.v[i]) >> bits; });
}
inline Floats to_floats(Integers a) { return lanes_of<Floats>([&](int i) { return a.v[i]; }); }
inline Integers round_to_integers(Floats a) {
  return lanes_of<Integers>([&](int i) { return __builtin_lrintf(a.v[i]); });
}
inline Integers max(Integers a, Integers b) {
  return lanes_of<Integers>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Integers size_bits(Floats a) {
  return lanes_of<Integers>([&](int i) { return bits_of(a.v[i]) & 0x7fffffff; });
}

struct Counts {
  int nonzero;
  int small;
  int inexact;
};
inline Counts count_small(Integers q, Floats rest, int32_t limit) {
  Counts counts{0, 0, 0};
  for (int i = 0; i < 8; ++i) {
    const bool inexact = rest.v[i] != 0.0f, nonzero = q.v[i] != 0 || inexact;
    counts.nonzero += nonzero;
    counts.small += nonzero && q.v[i] < limit && -q.v[i] < limit;
    counts.inexact += inexact;
  }
  return counts;
}

inline int32_t largest(Integers a) {
  int32_t m = a.v[0];
  for (int32_t x : a.v) m = x > m ? x : m;
  return m;
}

inline int32_t sum(Integers a) {
  int32_t s = 0;
  for (int32_t x : a.v) s += x;
  return s;
}

inline Shorts load_shorts(const void* p) {
  Shorts out;
  std::memcpy(out.v, p, sizeof(out.v));
  return out;
}
inline Shorts both(Shorts a, int16_t mask) { return lanes_of<Shorts>([&](int i) { return a.v[i] & mask; }); }
inline Shorts shift_right(Shorts a, int bits) {
  return lanes_of<Shorts>([&](int i) { return static_cast<uint16_t>(a.v[i]) >> bits; });
}
inline Shorts shift_left(Shorts a, int bits) {
  return lanes_of<Shorts>([&](int i) { return static_cast<uint16_t>(a.v[i]) << bits; });
}
inline Integers multiply_pairs(Shorts a, Shorts b) {
  return lanes_of<Integers>(
      [&](int i) { return a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1]; });
}
inline Integers multiply_four(const Shorts* a, const int16_t* b) {
  return add(add(multiply_pairs(a[0], load_shorts(b)), multiply_pairs(a[1], load_shorts(b + 16))),
             add(multiply_pairs(a[2], load_shorts(b + 32)), multiply_pairs(a[3], load_shorts(b + 48))));
}

struct Wide { Floats low, high; };
inline Wide join(Floats low, Floats high) { return {low, high}; }
inline Wide load_wide(const float* p) { return {load(p), load(p + 8)}; }
inline Wide fma(Wide a, Wide b, Wide c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
inline Floats low_of(Wide a) { return a.low; }
inline Floats high_of(Wide a) { return a.high; }


template <typename Lanes>
inline Lanes join(const uint8_t* low, const uint8_t* high) {
  Lanes out;
  std::memcpy(out.v, low, 16);
  std::memcpy(reinterpret_cast<char*>(out.v) + 16, high, 16);
  return out;
}
inline Shorts join_shorts(const uint8_t* low, const uint8_t* high) { return join<Shorts>(low, high); }
inline Integers join_integers(const uint8_t* low, const uint8_t* high) { return join<Integers>(low, high); }

inline float e2m1_value(int code) {
  static const float table[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return code < 8 ? table[code] : -table[code - 8];
}
inline void expand_e2m1(const uint8_t* p, Shorts* q) {
  const Shorts v = load_shorts(p);
  for (int i = 0; i < 4; ++i) {
    q[i] = lanes_of<Shorts>([&](int l) {
      return static_cast<int>(e2m1_value((static_cast<uint16_t>(v.v[l]) >> (4 * i)) & 15) * 512.0f);
    });
  }
}
inline Floats e2m1_to_floats(Integers words, int i) {
  return lanes_of<Floats>([&](int l) { return e2m1_value((static_cast<uint32_t>(words.v[l]) >> (4 * i)) & 15); });
}

inline int16_t saturated(int32_t x) { return static_cast<int16_t>(x > 32767 ? 32767 : x < -32768 ? -32768 : x); }

inline void store_by_nibble(int16_t* p, const Integers* q) {
  for (int i = 0; i < 4; ++i) {
    for (int l = 0; l < 16; ++l) p[16 * i + l] = saturated(q[l / 2].v[4 * (l % 2) + i]);
  }
}

inline void store_by_byte(int16_t* p, const Integers* q) {
  for (int i = 0; i < 64; ++i) {
    const int half = i % 32 / 16, place = i % 16;  // of the element: which 16 of its 32, which of those 16
    p[(2 * half + place % 2) * 16 + i / 32 * 8 + place / 2] = saturated(q[i / 8].v[i % 8]);
  }
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
