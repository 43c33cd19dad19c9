// Dense weights against float activations. Included after one of the lanes_*.h files.
//
// Each lane is a chain of fused multiply-adds in order: lane l takes inputs l and l + 8 of each 16, or, against
// bfloat16 weights, inputs 2 l and 2 l + 1, which saves widening them.
#pragma once

#include "matmul_octet_lanes.h"

namespace {

constexpr int dense_block = 16;

constexpr int dense_chunk(int rows) { return 256 / rows; }

template <DsparkType type>
inline Floats load_half(const uint8_t* p, int half) {
  if constexpr (type == DSPARK_BF16) return half == 0 ? load_bf16_even(p) : load_bf16_odd(p);
  return load_as<type>(p + half * 8 * static_cast<int>(dspark_type_size(type)));
}

template <DsparkType type, int rows, int columns>
inline void dense_step(const uint8_t* const* weights, int64_t offset, const float* x, Floats (*sums)[columns]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Floats v[columns];
    for (int c = 0; c < columns; ++c) v[c] = load_half<type>(weights[c] + offset, half);
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
      const Floats input = load(x + m * dense_block + 8 * half);
      for (int c = 0; c < columns; ++c) sums[m][c] = fma(v[c], input, sums[m][c]);
    }
  }
}

template <DsparkType type, int rows, int columns>
void dense_columns(const Weights& w, const Tile& tile, int64_t column, int64_t from, int count,
                   Floats (*sums)[max_tile_rows]) {
  constexpr int64_t bytes = dense_block * static_cast<int64_t>(dspark_type_size(type));
  const uint8_t* weights[columns];
  for (int c = 0; c < columns; ++c) weights[c] = w.values + (column + c) * w.value_bytes + from * bytes;
  Floats local[rows][columns];
  for (int m = 0; m < rows; ++m) {
    for (int c = 0; c < columns; ++c) local[m][c] = sums[c][m];
  }
  const float* x = static_cast<const float*>(tile.values) + from * rows * dense_block;
  const int whole = whole_blocks(w, from, count, dense_block);
  for (int b = 0; b < whole; ++b) {
    for (int c = 0; c < columns; ++c) prefetch_ahead(weights[c] + b * bytes, w, 1024);
    dense_step<type, rows, columns>(weights, b * bytes, x + b * rows * dense_block, local);
  }
  if (whole < count) {
    uint8_t padded[columns][bytes] = {};
    const uint8_t* ends[columns];
    for (int c = 0; c < columns; ++c) {
      __builtin_memcpy(padded[c], weights[c] + whole * bytes, static_cast<size_t>(w.value_bytes - (from + whole) * bytes));
      ends[c] = padded[c];
    }
    dense_step<type, rows, columns>(ends, 0, x + whole * rows * dense_block, local);
  }
  for (int m = 0; m < rows; ++m) {
    for (int c = 0; c < columns; ++c) sums[c][m] = local[m][c];
  }
}

// Columns a step: enough independent chains to hide the latency of a multiply-add, few enough to stay in registers.
constexpr int dense_width(int rows) { return rows <= 3 ? 4 : 2; }

template <DsparkType type, int rows>
void dense_octet(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int count, Octet& octet_sums) {
  constexpr int columns = dense_width(rows);
  for (int64_t from = 0; from < layout.blocks; from += dense_chunk(rows)) {
    const int64_t left = layout.blocks - from;
    const int blocks = static_cast<int>(left < dense_chunk(rows) ? left : dense_chunk(rows));
    int c = 0;
    for (; c + columns <= count; c += columns) {
      dense_columns<type, rows, columns>(w, tile, column + c, from, blocks, octet_sums.sums + c);
    }
    for (; c < count; ++c) dense_columns<type, rows, 1>(w, tile, column + c, from, blocks, octet_sums.sums + c);
  }
}

}  // namespace
