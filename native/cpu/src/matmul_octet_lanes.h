// What the product kernels share: eight output columns at a time, their sums kept in lanes until the columns' inputs
// are used up, a chunk of blocks at a time so that the prepared rows stay in the first-level cache.
//
// A result is the sum of 8 lanes (plus, for affine weights, 8 lanes of scale biases times input sums), each lane
// accumulated over the blocks in order. Chunks, tiles and threads only decide when that happens, so they leave no trace
// in the bits. Included after one of the lanes_*.h files.
#pragma once

#include "matmul_kernels.h"

namespace {

using dspark::Layout;
using dspark::Result;
using dspark::Tile;
using dspark::Weights;
using dspark::max_tile_rows;

constexpr int octet = 8;

// Blocks of 64 a chunk: about 16 KB of prepared rows, a multiple of 8.
constexpr int chunk_blocks(int rows) { return rows == 1 ? 128 : 128 / rows < 16 ? 16 : 128 / rows / 8 * 8; }

struct ChunkScales {
  alignas(32) float scales[4 * chunk_blocks(1)];
  alignas(32) float biases[2 * chunk_blocks(1)];
};

struct Octet {
  Floats sums[octet][max_tile_rows];
  Floats bias_sums[octet][max_tile_rows];
};

template <DsparkType type>
inline Floats load_some(const uint8_t* p, int64_t count) {
  if (count >= 8) return load_as<type>(p);
  uint8_t padded[8 * 4] = {};
  if (count > 0) __builtin_memcpy(padded, p, static_cast<size_t>(count) * dspark_type_size(type));
  return load_as<type>(padded);
}

// Scales (or biases) of blocks [from, from + count) as floats, zeros up to a multiple of 8.
template <int scales_per_block, DsparkType type>
inline void load_row(const Weights& w, const uint8_t* row, int64_t from, int count, float* out) {
  constexpr int64_t size = type == DSPARK_F32 ? 4 : 2;
  const int64_t held = w.in / w.group;
  for (int i = 0; i < count * scales_per_block; i += 8) {
    const int64_t place = from * scales_per_block + i;
    if (w.group == 128) {
      float few[8];
      store(few, load_some<type>(row + place / 2 * size, held - place / 2 < 4 ? held - place / 2 : 4));
      store(out + i, four_twice(few));
    } else {
      store(out + i, load_some<type>(row + place * size, held - place));
    }
  }
}

template <int scales_per_block>
inline void load_row(const Weights& w, const uint8_t* row, int64_t from, int count, float* out) {
  if (w.type == DSPARK_F32) return load_row<scales_per_block, DSPARK_F32>(w, row, from, count, out);
  if (w.type == DSPARK_F16) return load_row<scales_per_block, DSPARK_F16>(w, row, from, count, out);
  load_row<scales_per_block, DSPARK_BF16>(w, row, from, count, out);
}

// `unit` is what the kernel's codes are multiples of.
inline void load_nvfp4_row(const Weights& w, int64_t column, int64_t from, int count, float unit, float* out) {
  const uint8_t* row = w.scales + column * w.scale_bytes + 4 * from;
  const int64_t held = w.in / 16 - 4 * from;
  for (int i = 0; i < 4 * count; i += 8) {
    uint8_t padded[8] = {};
    const uint8_t* p = row + i;
    if (held - i < 8) {
      __builtin_memcpy(padded, p, static_cast<size_t>(held - i));
      p = padded;
    }
    store(out + i, mul(load_e4m3(p), splat(unit)));
  }
}

template <int scales_per_block>
inline void load_scales(const Weights& w, int64_t column, int64_t from, int count, float nvfp4_unit, ChunkScales& out) {
  if constexpr (scales_per_block == 4) {
    load_nvfp4_row(w, column, from, count, nvfp4_unit, out.scales);
  } else {
    load_row<scales_per_block>(w, w.scales + column * w.scale_bytes, from, count, out.scales);
    load_row<scales_per_block>(w, w.biases + column * w.scale_bytes, from, count, out.biases);
  }
}

// Lane i of bias_sums takes scales i, i + 8, ... of the row.
template <int scales_per_block, int rows>
inline void add_biases(const Layout& layout, const Tile& tile, const ChunkScales& scales, int64_t from, int count,
                       Floats* bias_sums) {
  const float* inputs = tile.sums + from * scales_per_block;
  for (int i = 0; i < count * scales_per_block; i += 8) {
    const Floats bias = load(scales.biases + i);
    for (int m = 0; m < rows; ++m) bias_sums[m] = fma(bias, load(inputs + m * layout.sums + i), bias_sums[m]);
  }
}

inline int whole_blocks(const Weights& w, int64_t from, int count, int size) {
  const int64_t whole = w.in / size - from;
  return static_cast<int>(whole < count ? whole : count);
}

// The columns of an octet follow each other in memory when a chunk spans whole rows; otherwise the same chunk of the
// next column comes next.
inline void prefetch_ahead(const uint8_t* codes, const Weights& w, int64_t distance) {
  (void)w;
  prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(codes) + static_cast<uintptr_t>(distance)));
}

template <DsparkType type>
inline void put(const Result& result, int64_t row, int64_t column, int count, Floats y) {
  constexpr int size = type == DSPARK_F32 ? 4 : 2;
  uint8_t* to = static_cast<uint8_t*>(result.data) + (row * result.out + column) * size;
  if (count == octet) return store_as<type>(to, y);
  uint8_t whole[octet * size];
  store_as<type>(whole, y);
  __builtin_memcpy(to, whole, static_cast<size_t>(count) * size);
}

// Sums the lanes and stores the results of `count` columns.
inline void finish(const Weights& w, const Tile& tile, int64_t column, int count, const Result& result, Octet& sums) {
  for (int m = 0; m < tile.rows; ++m) {
    for (int c = 0; c < octet; ++c) sums.sums[c][m] = add(sums.sums[c][m], sums.bias_sums[c][m]);
    Floats y = sum_each(&sums.sums[0][m], max_tile_rows);
    if (tile.nonfinite[m]) {
      float whole[octet];
      store(whole, y);
      dspark::add_nonfinite(w, tile.input[m], tile.input_type, column, count, whole);
      y = load(whole);
    }
    y = mul(y, splat(w.alpha));
    if (result.relu2) {
      y = max(splat(0.0f), y);
      y = mul(y, y);
    }
    if (result.type == DSPARK_F32) {
      put<DSPARK_F32>(result, tile.output[m], column, count, y);
    } else if (result.type == DSPARK_F16) {
      put<DSPARK_F16>(result, tile.output[m], column, count, y);
    } else {
      put<DSPARK_BF16>(result, tile.output[m], column, count, y);
    }
  }
}

}  // namespace
