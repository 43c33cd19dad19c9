// The product kernels of one instruction set, gathered in a table. Included after one of the lanes_*.h files.
#pragma once

#include "matmul_dense_lanes.h"
#include "matmul_fp32_lanes.h"
#include "matmul_i16_lanes.h"
#include "matmul_prepare_lanes.h"

namespace {

constexpr int i16_rows = registers >= 16 ? 8 : 4;
constexpr int float_rows = registers == 32 ? 8 : registers == 16 ? 6 : 4;

// Calls f.template operator()<rows>() with `rows` the number of rows wanted.
template <int rows, typename Call>
inline void with_rows(int wanted, Call&& f) {
  if (wanted == rows) return f.template operator()<rows>();
  if constexpr (rows > 1) with_rows<rows - 1>(wanted, f);
}

// Calls f.template operator()<Kernel>() with the matrix's kernel.
template <template <typename, int> class Kernel, typename Four, typename Eight, typename Nvfp4, typename Call>
inline void with_kernel(const Weights& w, Call&& f) {
  if (w.format == DSPARK_NVFP4) return f.template operator()<Kernel<Nvfp4, 4>>();
  if (w.format == DSPARK_AFFINE8) {
    return w.group == 32 ? f.template operator()<Kernel<Eight, 2>>() : f.template operator()<Kernel<Eight, 1>>();
  }
  return w.group == 32 ? f.template operator()<Kernel<Four, 2>>() : f.template operator()<Kernel<Four, 1>>();
}

void one_band(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int count,
              const Result& result) {
  Floats sums[most_sums];
  if (w.format == DSPARK_DENSE) {
    with_rows<float_rows>(tile.rows, [&]<int rows>() {
      if (w.type == DSPARK_F32) return dense_band<DSPARK_F32, rows>(w, layout, tile, column, count, sums);
      if (w.type == DSPARK_F16) return dense_band<DSPARK_F16, rows>(w, layout, tile, column, count, sums);
      dense_band<DSPARK_BF16, rows>(w, layout, tile, column, count, sums);
    });
  } else if (w.activation == DSPARK_I16) {
    with_rows<i16_rows>(tile.rows, [&]<int rows>() {
      with_kernel<I16Kernel, Affine4Codes, Affine8Codes, Nvfp4Codes>(
          w, [&]<typename Kernel>() { quantized_band<Kernel, rows>(w, layout, tile, column, count, 0, layout.blocks, sums); });
    });
    with_kernel<I16Kernel, Affine4Codes, Affine8Codes, Nvfp4Codes>(
        w, [&]<typename Kernel>() { add_rests<Kernel>(w, layout, tile, column, count, sums); });
  } else {
    with_rows<float_rows>(tile.rows, [&]<int rows>() {
      with_kernel<Fp32Kernel, Affine4Words, Affine8Words, Nvfp4Words>(
          w, [&]<typename Kernel>() { quantized_band<Kernel, rows>(w, layout, tile, column, count, 0, layout.blocks, sums); });
    });
  }
  finish_band(w, tile, column, count, result, sums);
}

void columns(const Weights& w, const Layout& layout, const Tile* tiles, int64_t tile_count, int64_t first, int64_t last,
             const Result& result) {
  // Few tiles stay in the cache while the weights pass once; of many, each passes the columns, which stay.
  const bool few = tile_count <= 4;
  for (int64_t outer = 0; outer < (few ? 1 : tile_count); ++outer) {
    for (int64_t column = first; column < last; column += band) {
      const int count = static_cast<int>(last - column < band ? last - column : band);
      for (int64_t t = few ? 0 : outer; t < (few ? tile_count : outer + 1); ++t) {
        one_band(w, layout, tiles[t], column, count, result);
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
