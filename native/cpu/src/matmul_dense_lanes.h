// Dense weights against float activations. Included after one of the lanes_*.h files.
//
// Each of 16 lanes is a chain of fused multiply-adds in order, lane l of inputs l, l + 16, .. (against bfloat16 weights
// the even inputs come first: that saves widening them); lanes l and l + 8 are added at the end.
#pragma once

#include "matmul_band_lanes.h"

namespace {

constexpr int dense_block = 16;

constexpr int dense_chunk(int rows) { return 256 / rows; }

template <DsparkType type>
inline Wide load_weights(const uint8_t* p) {
  if constexpr (type == DSPARK_BF16) return join(load_bf16_even(p), load_bf16_odd(p));
  return join(load_as<type>(p), load_as<type>(p + 8 * static_cast<int>(dspark_type_size(type))));
}

// Sums of the low and of the high 8 lanes, [columns * rows]; after the last block `low` holds both.
struct DenseSums {
  Floats* low;
  Floats* high;
};

template <int rows, int columns>
struct DenseTile {
  Wide lanes[columns][rows];

  template <DsparkType type>
  __attribute__((always_inline)) void step(const uint8_t* weights, int64_t value_bytes, const float* x) {
    unrolled<columns>([&]<int c>() {
      const Wide v = load_weights<type>(weights + c * value_bytes);
      unrolled<rows>([&]<int m>() { lanes[c][m] = fma(v, load_wide(x + m * dense_block), lanes[c][m]); });
    });
  }
};

template <DsparkType type, int rows, int columns>
__attribute__((noinline)) void dense_columns(const Weights& w, const Tile& tile, int64_t column, int64_t from,
                                             int blocks, DenseSums sums) {
  constexpr int64_t bytes = dense_block * static_cast<int64_t>(dspark_type_size(type));
  DenseTile<rows, columns> work;
  unrolled<columns * rows>([&]<int i>() {
    const Floats zero = splat(0.0f);
    work.lanes[i / rows][i % rows] = from == 0 ? join(zero, zero) : join(sums.low[i], sums.high[i]);
  });
  const uint8_t* weights = w.values + column * w.value_bytes + from * bytes;
  const float* x = static_cast<const float*>(tile.values) + from * rows * dense_block;
  const int64_t ahead = blocks == w.blocks ? 3072 : w.value_bytes;
  const bool last = from + blocks == w.blocks;
  const int64_t left = w.in / dense_block - from;
  const int whole = static_cast<int>(left < blocks ? left : blocks);
  for (int b = 0; b < whole; ++b, weights += bytes, x += rows * dense_block) {
    unrolled<columns>([&]<int c>() { prefetch_ahead(weights + c * w.value_bytes, ahead); });
    work.template step<type>(weights, w.value_bytes, x);
  }
  if (whole < blocks) {
    uint8_t padded[columns][bytes] = {};
    const int64_t rest = w.value_bytes - (from + whole) * bytes;
    for (int c = 0; c < columns; ++c) __builtin_memcpy(padded[c], weights + c * w.value_bytes, static_cast<size_t>(rest));
    work.template step<type>(padded[0], bytes, x);
  }
  unrolled<columns * rows>([&]<int i>() {
    const Floats low = low_of(work.lanes[i / rows][i % rows]), high = high_of(work.lanes[i / rows][i % rows]);
    sums.low[i] = last ? add(low, high) : low;
    if (!last) sums.high[i] = high;
  });
}

// Columns a step: enough independent chains to hide the latency of a multiply-add, few enough to stay in registers.
constexpr int dense_width(int rows) {
  if (registers == 32) return rows == 1 ? 8 : rows == 2 ? 4 : 2;
  return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

template <DsparkType type, int rows>
void dense_band(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int columns, Floats* sums) {
  constexpr int together = dense_width(rows), chunk = dense_chunk(rows);
  Floats high[most_sums];
  for (int64_t from = 0; from < layout.blocks; from += chunk) {
    const int blocks = static_cast<int>(layout.blocks - from < chunk ? layout.blocks - from : chunk);
    int c = 0;
    for (; c + together <= columns; c += together) {
      dense_columns<type, rows, together>(w, tile, column + c, from, blocks, {sums + c * rows, high + c * rows});
    }
    if constexpr (together > 1) {
      for (; c < columns; ++c) {
        dense_columns<type, rows, 1>(w, tile, column + c, from, blocks, {sums + c * rows, high + c * rows});
      }
    }
  }
}

}  // namespace
