// Quantised weights against 16-bit integer activations. Included after one of the lanes_*.h files.
//
// Codes stay in 16-bit lanes (the nibbles of a short are picked by shift and mask, never widened) and meet activations
// stored in the same order. A block of 64 inputs is four multiply_pairs: each of 8 int32 lanes sums 8 products, exactly:
// 8 * 32767 * 15 (4 bits), * 255 (8 bits) or * 6 * 512 (NVFP4) < 2^30. Then, per lane and in the order of the blocks,
// accumulator = fma(sum, scale * step, accumulator); scale * step is exact, steps being powers of two.
#pragma once

#include "matmul_band_lanes.h"

namespace {

struct Affine4Codes {
  static constexpr int bytes = 32;
  static void expand(const uint8_t* p, Shorts* q) {
    const Shorts v = load_shorts(p);
    q[0] = both(v, 15);
    q[1] = both(shift_right(v, 4), 15);
    q[2] = both(shift_right(v, 8), 15);
    q[3] = shift_right(v, 12);
  }
};

struct Affine8Codes {
  static constexpr int bytes = 64;
  static void expand(const uint8_t* p, Shorts* q) {
    for (int half = 0; half < 2; ++half) {
      const Shorts v = join_shorts(p + 16 * half, p + 32 + 16 * half);
      q[2 * half] = both(v, 255);
      q[2 * half + 1] = shift_right(v, 8);
    }
  }
};

struct Nvfp4Codes {
  static constexpr int bytes = 32;
  static void expand(const uint8_t* p, Shorts* q) { expand_e2m1(p, q); }
};

template <typename Codes, int per_block>
struct I16Kernel {
  using Input = int16_t;
  static constexpr int scales_per_block = per_block;
  static constexpr int bytes = Codes::bytes;
  static constexpr float nvfp4_unit = 1.0f / 512;
  static constexpr int cache_rows(int rows) { return rows; }
  static constexpr int columns(int) { return 1; }

  template <int rows, int columns>
  static __attribute__((noinline)) void dot(const Span& span, Floats* sums) {
    alignas(32) float scaled[columns][rows][chunk_blocks(rows)];  // scale * step of each block
    if constexpr (per_block == 1) {
      for (int i = 0; i < span.blocks; i += 8) {
        unrolled<columns>([&]<int c>() {
          const Floats s = load(span.scales + c * span_scales + i);
          unrolled<rows>([&]<int m>() { store(scaled[c][m] + i, mul(s, load(span.steps + m * span.step_stride + i))); });
        });
      }
    }
    Floats local[columns][rows];
    unrolled<columns>([&]<int c>() { unrolled<rows>([&]<int m>() { local[c][m] = sums[c * rows + m]; }); });
    const int16_t* x = static_cast<const int16_t*>(span.x);
    const uint8_t* codes = span.codes;
    for (int b = 0; b < span.blocks; ++b, x += 64 * rows, codes += bytes) {
      unrolled<columns>([&]<int c>() {
        prefetch_ahead(codes + c * span.value_bytes, span.ahead);
        Shorts q[4];
        Codes::expand(codes + c * span.value_bytes, q);
        Floats s{};
        if constexpr (per_block == 4) s = four_twice(span.scales + c * span_scales + 4 * b);
        if constexpr (per_block == 2) s = two_four_times(span.scales + c * span_scales + 2 * b);
        unrolled<rows>([&]<int m>() {
          const int16_t* y = x + 64 * m;
          const Integers total = multiply_four(q, y);
          if constexpr (per_block == 1) {
            local[c][m] = fma(to_floats(total), broadcast(scaled[c][m] + b), local[c][m]);
          } else {
            const Floats scaled_here = mul(s, broadcast(span.steps + m * span.step_stride + b));
            local[c][m] = fma(to_floats(total), scaled_here, local[c][m]);
          }
        });
      });
    }
    unrolled<columns>([&]<int c>() { unrolled<rows>([&]<int m>() { sums[c * rows + m] = local[c][m]; }); });
  }
};

}  // namespace
