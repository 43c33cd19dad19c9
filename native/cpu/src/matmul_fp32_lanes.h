// Quantised weights against float activations. Included after one of the lanes_*.h files.
//
// A block's 64 products are summed in 8 lanes, 8 fused multiply-adds each in order, on the bare codes; the sum enters
// the accumulator as fma(sum, scale, accumulator). Lane l holds what belongs to word l of the block, so that where
// scales differ within a block, each lane has one.
#pragma once

#include "matmul_band_lanes.h"

namespace {

struct Affine4Words {
  static constexpr int bytes = 32;
  Integers words;
  explicit Affine4Words(const uint8_t* p) : words(load_integers(p)) {}
  Floats vector(int j) const {  // codes times 16^j, but the last, whose top bit would be a sign
    return to_floats(j < 7 ? both(words, 15 << (4 * j)) : shift_right(words, 28));
  }
};

struct Affine8Words {
  static constexpr int bytes = 64;
  Integers first, second;
  explicit Affine8Words(const uint8_t* p) : first(join_integers(p, p + 32)), second(join_integers(p + 16, p + 48)) {}
  Floats vector(int j) const { return to_floats(both(shift_right(j < 4 ? first : second, 8 * (j % 4)), 255)); }
};

struct Nvfp4Words {
  static constexpr int bytes = 32;
  Integers words;
  explicit Nvfp4Words(const uint8_t* p) : words(load_integers(p)) {}
  Floats vector(int j) const { return e2m1_to_floats(words, j); }
};

template <typename Words, int per_block>
struct Fp32Kernel {
  using Input = float;
  static constexpr int scales_per_block = per_block;
  static constexpr int bytes = Words::bytes;
  static constexpr float nvfp4_unit = 1.0f;
  static constexpr int cache_rows(int rows) { return 2 * rows; }

  static constexpr int columns(int) { return 1; }

  template <int rows, int columns>
  static __attribute__((noinline)) void dot(const Span& span, Floats* sums) {
    Floats local[rows];
    unrolled<rows>([&]<int m>() { local[m] = sums[m]; });
    const float* x = static_cast<const float*>(span.x);
    const uint8_t* codes = span.codes;
    for (int b = 0; b < span.blocks; ++b, x += 64 * rows, codes += bytes) {
      prefetch_ahead(codes, span.ahead);
      const Words words(codes);
      Floats total[rows];
      const Floats first = words.vector(0);
      unrolled<rows>([&]<int m>() { total[m] = mul(first, load(x + 64 * m)); });
      unrolled<7>([&]<int j>() {
        const Floats code = words.vector(j + 1);
        unrolled<rows>([&]<int m>() { total[m] = fma(code, load(x + 64 * m + 8 * (j + 1)), total[m]); });
      });
      const float* scales = span.scales + b * per_block;
      const Floats s = per_block == 4 ? four_twice(scales) : per_block == 2 ? two_four_times(scales) : broadcast(scales);
      unrolled<rows>([&]<int m>() { local[m] = fma(total[m], s, local[m]); });
    }
    unrolled<rows>([&]<int m>() { sums[m] = local[m]; });
  }
};

}  // namespace
