// Quantised weights against float activations. Included after one of the lanes_*.h files.
//
// A block's 64 products are summed in 8 lanes, 8 fused multiply-adds each in order, on the bare codes; the sum enters
// the accumulator as fma(sum, scale, accumulator). Lane l holds what belongs to word l of the block, so that where
// scales differ within a block, each lane has one.
#pragma once

#include "matmul_octet_lanes.h"

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

template <typename Words, int scales_per_block, int rows>
inline void fp32_block(const uint8_t* codes, const float* x, const float* scales, Floats* sums) {
  const Words words(codes);
  Floats dot[rows];
  const Floats first = words.vector(0);
  for (int m = 0; m < rows; ++m) dot[m] = mul(first, load(x + 64 * m));
#pragma GCC unroll 8
  for (int j = 1; j < 8; ++j) {
    const Floats code = words.vector(j);
    for (int m = 0; m < rows; ++m) dot[m] = fma(code, load(x + 64 * m + 8 * j), dot[m]);
  }
  const Floats s = scales_per_block == 4   ? four_twice(scales)
                   : scales_per_block == 2 ? two_four_times(scales)
                                           : broadcast(scales);
  for (int m = 0; m < rows; ++m) sums[m] = fma(dot[m], s, sums[m]);
}

template <typename Words, int scales_per_block, int rows>
void fp32_chunk(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int64_t from, int count,
                Floats* sums, Floats* bias_sums) {
  ChunkScales scales;
  load_scales<scales_per_block>(w, column, from, count, 1.0f, scales);
  if constexpr (scales_per_block != 4) add_biases<scales_per_block, rows>(layout, tile, scales, from, count, bias_sums);
  Floats local[rows];
  for (int m = 0; m < rows; ++m) local[m] = sums[m];
  const float* x = static_cast<const float*>(tile.values) + from * rows * 64;
  const uint8_t* codes = w.values + column * w.value_bytes + from * Words::bytes;
  const int whole = whole_blocks(w, from, count, 64);
  for (int b = 0; b < whole; ++b) {
    prefetch_ahead(codes + b * Words::bytes, w, 1024);
    fp32_block<Words, scales_per_block, rows>(codes + b * Words::bytes, x + b * rows * 64,
                                              scales.scales + b * scales_per_block, local);
  }
  if (whole < count) {
    uint8_t padded[Words::bytes] = {};
    __builtin_memcpy(padded, codes + whole * Words::bytes,
                     static_cast<size_t>(w.value_bytes - (from + whole) * Words::bytes));
    fp32_block<Words, scales_per_block, rows>(padded, x + whole * rows * 64, scales.scales + whole * scales_per_block,
                                              local);
  }
  for (int m = 0; m < rows; ++m) sums[m] = local[m];
}

}  // namespace
