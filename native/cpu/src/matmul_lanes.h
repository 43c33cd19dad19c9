// The product kernels of one instruction set, gathered in a table. Included after one of the lanes_*.h files.
#pragma once

#include "matmul_dense_lanes.h"
#include "matmul_fp32_lanes.h"
#include "matmul_i16_lanes.h"
#include "matmul_prepare_lanes.h"

namespace {

constexpr int i16_rows = registers == 16 ? 8 : 4;
constexpr int float_rows = registers == 16 ? 6 : 4;

// Calls f.template operator()<rows>() with `rows` the number of rows wanted.
template <int rows, typename Call>
inline void with_rows(int wanted, Call&& f) {
  if (wanted == rows) return f.template operator()<rows>();
  if constexpr (rows > 1) with_rows<rows - 1>(wanted, f);
}

using Chunk = void (*)(const Weights&, const Layout&, const Tile&, int64_t column, int64_t from, int count,
                       Floats* sums, Floats* bias_sums);

inline void quantized_octet(Chunk chunk, int chunk_size, const Weights& w, const Layout& layout, const Tile& tile,
                            int64_t column, int count, Octet& sums) {
  for (int64_t from = 0; from < layout.blocks; from += chunk_size) {
    const int64_t left = layout.blocks - from;
    const int blocks = static_cast<int>(left < chunk_size ? left : chunk_size);
    for (int c = 0; c < count; ++c) {
      chunk(w, layout, tile, column + c, from, blocks, sums.sums[c], sums.bias_sums[c]);
    }
  }
}

template <int rows>
Chunk i16_chunk_of(const Weights& w) {
  if (w.format == DSPARK_NVFP4) return i16_chunk<Nvfp4Codes, 4, rows>;
  if (w.format == DSPARK_AFFINE8) return w.group == 32 ? i16_chunk<Affine8Codes, 2, rows> : i16_chunk<Affine8Codes, 1, rows>;
  return w.group == 32 ? i16_chunk<Affine4Codes, 2, rows> : i16_chunk<Affine4Codes, 1, rows>;
}

template <int rows>
Chunk fp32_chunk_of(const Weights& w) {
  if (w.format == DSPARK_NVFP4) return fp32_chunk<Nvfp4Words, 4, rows>;
  if (w.format == DSPARK_AFFINE8) return w.group == 32 ? fp32_chunk<Affine8Words, 2, rows> : fp32_chunk<Affine8Words, 1, rows>;
  return w.group == 32 ? fp32_chunk<Affine4Words, 2, rows> : fp32_chunk<Affine4Words, 1, rows>;
}

void one_octet(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int count,
               const Result& result) {
  Octet sums;
  for (int c = 0; c < octet; ++c) {
    for (int m = 0; m < tile.rows; ++m) sums.sums[c][m] = sums.bias_sums[c][m] = splat(0.0f);
  }
  if (w.format == DSPARK_DENSE) {
    with_rows<float_rows>(tile.rows, [&]<int rows>() {
      if (w.type == DSPARK_F32) return dense_octet<DSPARK_F32, rows>(w, layout, tile, column, count, sums);
      if (w.type == DSPARK_F16) return dense_octet<DSPARK_F16, rows>(w, layout, tile, column, count, sums);
      dense_octet<DSPARK_BF16, rows>(w, layout, tile, column, count, sums);
    });
  } else if (w.activation == DSPARK_I16) {
    with_rows<i16_rows>(tile.rows, [&]<int rows>() {
      quantized_octet(i16_chunk_of<rows>(w), chunk_blocks(rows), w, layout, tile, column, count, sums);
    });
  } else {
    with_rows<float_rows>(tile.rows, [&]<int rows>() {
      quantized_octet(fp32_chunk_of<rows>(w), chunk_blocks(2 * rows), w, layout, tile, column, count, sums);
    });
  }
  finish(w, tile, column, count, result, sums);
}

void columns(const Weights& w, const Layout& layout, const Tile* tiles, int64_t tile_count, int64_t first, int64_t last,
             const Result& result) {
  // Few tiles stay in the cache while the weights pass once; of many, each passes the columns, which stay.
  const bool few = tile_count <= 4;
  for (int64_t outer = 0; outer < (few ? 1 : tile_count); ++outer) {
    for (int64_t column = first; column < last; column += octet) {
      const int count = static_cast<int>(last - column < octet ? last - column : octet);
      for (int64_t t = few ? 0 : outer; t < (few ? tile_count : outer + 1); ++t) {
        one_octet(w, layout, tiles[t], column, count, result);
      }
    }
  }
}

template <DsparkType type>
inline void weighted_sum_as(const float* parts, int64_t stride, const float* weights, int64_t slots, void* y,
                            int64_t first, int64_t last) {
  constexpr int size = type == DSPARK_F32 ? 4 : 2;
  for (int64_t i = first; i < last; i += 8) {
    const int count = static_cast<int>(last - i < 8 ? last - i : 8);
    Floats total = splat(0.0f);
    for (int64_t s = 0; s < slots; ++s) {
      const uint8_t* part = reinterpret_cast<const uint8_t*>(parts + s * stride + i);
      total = fma(splat(weights[s]), load_some<DSPARK_F32>(part, count), total);
    }
    uint8_t whole[8 * size];
    store_as<type>(whole, total);
    __builtin_memcpy(static_cast<uint8_t*>(y) + i * size, whole, static_cast<size_t>(count) * size);
  }
}

void weighted_sum(const float* parts, int64_t stride, const float* weights, int64_t slots, void* y, DsparkType type,
                  int64_t first, int64_t last) {
  if (type == DSPARK_F32) return weighted_sum_as<DSPARK_F32>(parts, stride, weights, slots, y, first, last);
  if (type == DSPARK_F16) return weighted_sum_as<DSPARK_F16>(parts, stride, weights, slots, y, first, last);
  weighted_sum_as<DSPARK_BF16>(parts, stride, weights, slots, y, first, last);
}

}  // namespace
