// The part of the Metal Shading Language that kernel bodies here may use, for clang++ on a CPU.
//
// Covered: scalars and 2-4 wide vectors with swizzles, half and bfloat as storage (arithmetic in float, rounded when
// stored), indexing of the named buffers, `threadgroup` and per-thread arrays, barriers, simd_sum/max/min, shuffles,
// prefix sums, as_type, and the mathematics below. Not covered: raw device pointers, atomics, quad functions,
// simdgroup_matrix, textures. A simd function met by part of a simdgroup is an error here; on a GPU it is a wrong sum.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime.h"

typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;

namespace emu {
template <class T>
constexpr int width = 1;
}

#define EMU_VECTOR(T, N)                                \
  typedef T T##N __attribute__((ext_vector_type(N)));   \
  template <>                                           \
  constexpr int emu::width<T##N> = N;
#define EMU_VECTORS(T) EMU_VECTOR(T, 2) EMU_VECTOR(T, 3) EMU_VECTOR(T, 4)
EMU_VECTORS(float)
EMU_VECTORS(int)
EMU_VECTORS(uint)
EMU_VECTORS(short)
EMU_VECTORS(ushort)
EMU_VECTORS(char)
EMU_VECTORS(uchar)
#undef EMU_VECTORS
#undef EMU_VECTOR

// Address spaces have no meaning here; translate.py has already dealt with `threadgroup`.
#define device
#define constant
#define thread
#define EMU_THREADGROUP static __attribute__((section("threadgroup_memory"), used))

namespace emu {

// A float stored in 16 bits, rounded to nearest even.
template <class Code>
struct Narrow {
  uint16_t bits;
  Narrow() = default;
  template <class T, class = std::enable_if_t<std::is_convertible_v<T, float>>>
  Narrow(T value) : bits(Code::encode(float(value))) {}
  operator float() const { return Code::decode(bits); }
  Narrow& operator+=(float x) { return *this = float(*this) + x; }
  Narrow& operator-=(float x) { return *this = float(*this) - x; }
  Narrow& operator*=(float x) { return *this = float(*this) * x; }
  Narrow& operator/=(float x) { return *this = float(*this) / x; }
};

// The upper half of a float.
struct Brain {
  static uint16_t encode(float value) {
    uint32_t u;
    memcpy(&u, &value, 4);
    if (value != value) return uint16_t(u >> 16) | 0x40;
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  static float decode(uint16_t bits) {
    const uint32_t u = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &u, 4);
    return value;
  }
};

// IEEE binary16: 10 bits of fraction, exponents -14..15.
struct Half {
  static uint16_t encode(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (size != size) return sign | 0x7e00;
    if (size >= 65520.f) return sign | 0x7c00;
    const int exponent = size < 6.103515625e-5f ? -14 : std::ilogb(size);
    const int fraction = int(std::nearbyint(std::ldexp(double(size), 10 - exponent)));
    return sign | uint16_t(((exponent + 14) << 10) + fraction);
  }
  static float decode(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? std::ldexp(float(1024 + fraction), exponent - 25)
                                      : std::ldexp(float(fraction), -24);
    return bits & 0x8000 ? -size : size;
  }
};

template <class V, class Part>
void append(V& v, int& at, Part part) {
  if constexpr (width<Part> == 1)
    v[at++] = part;
  else
    for (int i = 0; i < width<Part>; i++) v[at++] = part[i];
}

// float4(a, b, c, d), float4(ab, c, d), float4(a) for all four, float4(int4): Metal's constructors.
template <class V, class... Parts>
V make(Parts... parts) {
  static_assert(sizeof...(Parts) == 1 || (width<Parts> + ...) == width<V>, "as many parts as the vector is wide");
  V v;
  int at = 0;
  do (append(v, at, parts), ...);
  while (at < width<V>);
  return v;
}

// An index and the place it was used at.
struct Index {
  long value;
  Place at;
  template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
  Index(T v, Place p = Place::of("index")) : value(long(v)), at(p) {}
};

// A named buffer: `device T*` with bounds.
template <class T>
struct Buffer {
  T* data;
  size_t count;
  const char* name;
  long offset = 0;

  T& operator[](Index i) const {
    const long at = offset + i.value;
    if (at < 0 || size_t(at) >= count)
      fail("%s line %d: index %ld of %s, which holds %zu", i.at.file, i.at.line, at, name, count);
    return data[at];
  }
  T& operator*() const { return (*this)[0]; }
  Buffer operator+(long by) const { return {data, count, name, offset + by}; }
  Buffer& operator+=(long by) {
    offset += by;
    return *this;
  }
};

// Every lane's value of one simdgroup, after all have met.
template <class T>
struct Lanes {
  T value[LANES];
  const uint count = self->lanes(), lane = self->lane();

  Lanes(T mine, Place at) {
    static_assert(sizeof(T) <= SLOT, "more than a lane can hand over");
    const unsigned char* all = exchange(&mine, sizeof(T), at);
    for (uint i = 0; i < count; i++) memcpy(&value[i], all + i * SLOT, sizeof(T));
  }
  const T& of(uint i, Place at) const {
    if (i >= count) fail("%s line %d: %s from lane %u of %u", at.file, at.line, at.what, i, count);
    return value[i];
  }
};

}  // namespace emu

using half = emu::Narrow<emu::Half>;
using float16_t = half;
using bfloat = emu::Narrow<emu::Brain>;
using bfloat16_t = bfloat;

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

namespace metal {

using std::abs, std::fabs, std::ceil, std::floor, std::rint, std::round, std::trunc, std::fmod, std::copysign;
using std::exp, std::exp2, std::log, std::log2, std::log10, std::pow, std::sqrt, std::fma;
using std::sin, std::cos, std::tan, std::sinh, std::cosh, std::tanh, std::asin, std::acos, std::atan, std::atan2;
using std::isnan, std::isinf, std::isfinite, std::signbit, std::fmax, std::fmin;

inline float rsqrt(float x) { return 1 / std::sqrt(x); }

template <class T>
T max(T x, T y) {
  return x < y ? y : x;
}
template <class T>
T min(T x, T y) {
  return y < x ? y : x;
}
template <class T>
T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
T select(T no, T yes, bool condition) {
  return condition ? yes : no;
}
inline float dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
inline float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32; }
inline uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32; }

template <class To, class From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Sums pairwise. A GPU's order is its own: nothing may rest on this one.
template <class T>
T simd_sum(T x, emu::Place at = emu::Place::of("simd_sum")) {
  emu::Lanes<T> a(x, at);
  for (uint step = 1; step < a.count; step *= 2)
    for (uint i = 0; i + step < a.count; i += 2 * step) a.value[i] = a.value[i] + a.value[i + step];
  return a.value[0];
}
template <class T>
T simd_max(T x, emu::Place at = emu::Place::of("simd_max")) {
  const emu::Lanes<T> a(x, at);
  T most = a.value[0];
  for (uint i = 1; i < a.count; i++) most = max(most, a.value[i]);
  return most;
}
template <class T>
T simd_min(T x, emu::Place at = emu::Place::of("simd_min")) {
  const emu::Lanes<T> a(x, at);
  T least = a.value[0];
  for (uint i = 1; i < a.count; i++) least = min(least, a.value[i]);
  return least;
}
template <class T>
T simd_prefix_inclusive_sum(T x, emu::Place at = emu::Place::of("simd_prefix_inclusive_sum")) {
  const emu::Lanes<T> a(x, at);
  T sum = a.value[0];
  for (uint i = 1; i <= a.lane; i++) sum = sum + a.value[i];
  return sum;
}
template <class T>
T simd_prefix_exclusive_sum(T x, emu::Place at = emu::Place::of("simd_prefix_exclusive_sum")) {
  const emu::Lanes<T> a(x, at);
  T sum = T(0);
  for (uint i = 0; i < a.lane; i++) sum = sum + a.value[i];
  return sum;
}
template <class T>
T simd_shuffle(T x, ushort lane, emu::Place at = emu::Place::of("simd_shuffle")) {
  return emu::Lanes<T>(x, at).of(lane, at);
}
template <class T>
T simd_broadcast(T x, ushort lane, emu::Place at = emu::Place::of("simd_broadcast")) {
  return emu::Lanes<T>(x, at).of(lane, at);
}
template <class T>
T simd_broadcast_first(T x, emu::Place at = emu::Place::of("simd_broadcast_first")) {
  return emu::Lanes<T>(x, at).value[0];
}
template <class T>
T simd_shuffle_xor(T x, ushort mask, emu::Place at = emu::Place::of("simd_shuffle_xor")) {
  const emu::Lanes<T> a(x, at);
  return a.of(a.lane ^ mask, at);
}
// Lanes whose source lies outside the simdgroup keep their own value.
template <class T>
T simd_shuffle_down(T x, ushort by, emu::Place at = emu::Place::of("simd_shuffle_down")) {
  const emu::Lanes<T> a(x, at);
  return a.lane + by < a.count ? a.value[a.lane + by] : x;
}
template <class T>
T simd_shuffle_up(T x, ushort by, emu::Place at = emu::Place::of("simd_shuffle_up")) {
  const emu::Lanes<T> a(x, at);
  return a.lane >= by ? a.value[a.lane - by] : x;
}

inline void simdgroup_barrier(mem_flags, emu::Place at = emu::Place::of("simdgroup_barrier")) {
  emu::simdgroup_meeting(at);
}
inline void threadgroup_barrier(mem_flags, emu::Place at = emu::Place::of("threadgroup_barrier")) {
  emu::threadgroup_meeting(at);
}

namespace fast {
using namespace metal;
}
namespace precise {
using namespace metal;
}

}  // namespace metal

using namespace metal;

// A vector's name before a parenthesis is its constructor; elsewhere it stays a type.
#define float2(...) emu::make<float2>(__VA_ARGS__)
#define float3(...) emu::make<float3>(__VA_ARGS__)
#define float4(...) emu::make<float4>(__VA_ARGS__)
#define int2(...) emu::make<int2>(__VA_ARGS__)
#define int3(...) emu::make<int3>(__VA_ARGS__)
#define int4(...) emu::make<int4>(__VA_ARGS__)
#define uint2(...) emu::make<uint2>(__VA_ARGS__)
#define uint3(...) emu::make<uint3>(__VA_ARGS__)
#define uint4(...) emu::make<uint4>(__VA_ARGS__)
