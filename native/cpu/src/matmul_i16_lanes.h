// Quantised weights against 16-bit integer activations. Included after one of the lanes_*.h files.
//
// Codes stay in 16-bit lanes (the nibbles of a short are picked by shift and mask, never widened) and meet activations
// stored in the same order. A block of 64 inputs is four multiply_pairs: each of 8 int32 lanes sums 8 products, exactly:
// 8 * 32767 * 15 (4 bits), * 255 (8 bits) or * 6 * 512 (NVFP4) < 2^30. Then, per lane and in the order of the blocks,
// accumulator = fma(sum, scale * step, accumulator); scale * step is exact, steps being powers of two.
#pragma once

#include "matmul_octet_lanes.h"

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

// One column, blocks [from, from + count) of a chunk.
template <typename Codes, int scales_per_block, int rows>
struct I16Column {
  const Layout& layout;
  const Tile& tile;
  const ChunkScales& scales;
  int64_t from;
  float scaled[scales_per_block == 1 ? rows : 1][chunk_blocks(rows)];  // scale * step

  void scale_steps(int count) {
    if constexpr (scales_per_block == 1) {
      for (int i = 0; i < count; i += 8) {
        const Floats s = load(scales.scales + i);
        for (int m = 0; m < rows; ++m) {
          store(scaled[m] + i, mul(s, load(tile.steps + m * layout.steps + from + i)));
        }
      }
    }
  }

  void block(const uint8_t* codes, int b, Floats* sums) {
    Shorts q[4];
    Codes::expand(codes, q);
    Floats s{};
    if constexpr (scales_per_block == 4) s = four_twice(scales.scales + 4 * b);
    if constexpr (scales_per_block == 2) s = two_four_times(scales.scales + 2 * b);
    const int16_t* x = static_cast<const int16_t*>(tile.values) + (from + b) * rows * 64;
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m, x += 64) {
      const Integers dot = add(add(multiply_pairs(q[0], load_shorts(x)), multiply_pairs(q[1], load_shorts(x + 16))),
                               add(multiply_pairs(q[2], load_shorts(x + 32)), multiply_pairs(q[3], load_shorts(x + 48))));
      if constexpr (scales_per_block == 1) {
        sums[m] = fma(to_floats(dot), broadcast(scaled[m] + b), sums[m]);
      } else {
        sums[m] = fma(to_floats(dot), mul(s, broadcast(tile.steps + m * layout.steps + from + b)), sums[m]);
      }
    }
  }
};

template <typename Codes, int scales_per_block, int rows>
void i16_chunk(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int64_t from, int count,
               Floats* sums, Floats* bias_sums) {
  ChunkScales scales;
  load_scales<scales_per_block>(w, column, from, count, 1.0f / 512, scales);
  if constexpr (scales_per_block != 4) add_biases<scales_per_block, rows>(layout, tile, scales, from, count, bias_sums);
  I16Column<Codes, scales_per_block, rows> work{layout, tile, scales, from, {}};
  work.scale_steps(count);
  Floats local[rows];
  for (int m = 0; m < rows; ++m) local[m] = sums[m];
  const uint8_t* codes = w.values + column * w.value_bytes + from * Codes::bytes;
  const int whole = whole_blocks(w, from, count, 64);
  for (int b = 0; b < whole; ++b) {
    prefetch_ahead(codes + b * Codes::bytes, w, 1024);
    work.block(codes + b * Codes::bytes, b, local);
  }
  if (whole < count) {
    uint8_t padded[Codes::bytes] = {};
    __builtin_memcpy(padded, codes + whole * Codes::bytes, static_cast<size_t>(w.value_bytes - (from + whole) * Codes::bytes));
    work.block(padded, whole, local);
  }
  for (int m = 0; m < rows; ++m) sums[m] = local[m];
}

}  // namespace
