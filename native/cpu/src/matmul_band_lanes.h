// What the product kernels share: a band of output columns at a time, their sums kept in lanes until the inputs are
// used up, and of those a chunk at a time so that the prepared rows stay in the first-level cache.
//
// A result is the sum of 8 lanes, each accumulated over the blocks in order; for affine weights the biases times the
// inputs' sums enter the lanes first, for a span of blocks at a time. Chunks, tiles and threads only decide when a lane
// goes on, so they leave no trace in the bits. Included after one of the lanes_*.h files.
#pragma once

#include "matmul_kernels.h"

namespace {

using dspark::Layout;
using dspark::Result;
using dspark::Tile;
using dspark::Weights;
using dspark::max_tile_rows;

constexpr int octet = 8;
constexpr int band = 16;  // columns

// Blocks of 64 a chunk, of which the prepared rows are about 16 KB; a multiple of 8.
constexpr int chunk_blocks(int rows) { return 128 / rows < 16 ? 16 : 128 / rows / 8 * 8; }

// Scales of a column held as floats at a time.
constexpr int span_scales = 64;

// f.operator()<0>(), f.operator()<1>(), ..: a loop whose index is a constant, so that arrays stay in registers.
template <int count, int index = 0, typename Call>
inline __attribute__((always_inline)) void unrolled(Call&& f) {
  if constexpr (index < count) {
    f.template operator()<index>();
    unrolled<count, index + 1>(f);
  }
}

// A band's sums: column c, row m at [c * rows + m].
constexpr int most_sums = band * max_tile_rows;

template <DsparkType type>
inline Floats load_some(const uint8_t* p, int64_t count) {
  if (count >= 8) return load_as<type>(p);
  uint8_t padded[8 * 4] = {};
  if (count > 0) __builtin_memcpy(padded, p, static_cast<size_t>(count) * dspark_type_size(type));
  return load_as<type>(padded);
}

// The first `count` of what lies at `p`, zeros in the other lanes; `readable` elements may be read there.
template <DsparkType type>
inline Floats load_first(const uint8_t* p, int64_t count, int64_t readable) {
  if (count < 8 && readable >= 8) return first_lanes(load_as<type>(p), count < 0 ? 0 : static_cast<int>(count));
  return load_some<type>(p, count);
}

// What will be needed `distance` bytes further on, if there is so much.
inline void prefetch_ahead(const uint8_t* p, int64_t distance) {
  prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(distance)));
}

using SpanScales = float[band][span_scales];

// Scales (or biases) of blocks [from, from + blocks) of some columns as floats, zeros up to a multiple of 8.
template <int per_block, DsparkType type>
inline void load_columns(const Weights& w, const uint8_t* all, int64_t column, int columns, int64_t from, int blocks,
                         SpanScales& out) {
  constexpr int64_t size = type == DSPARK_F32 ? 4 : 2;
  const int64_t first = from * per_block, held = w.in / w.group;
  const uint8_t* row = all + column * w.scale_bytes;
  int64_t readable = (w.out - column) * held;
  for (int c = 0; c < columns; ++c, row += w.scale_bytes, readable -= held) {
    for (int i = 0; i < blocks * per_block; i += 64 / size) {
      prefetch_ahead(row + (first + i) * size, band * w.scale_bytes);
    }
    for (int i = 0; i < blocks * per_block; i += 8) {
      const int64_t place = first + i;
      if (w.group == 128) {
        float few[8];
        store(few, load_some<type>(row + place / 2 * size, held - place / 2 < 4 ? held - place / 2 : 4));
        store(out[c] + i, four_twice(few));
      } else {
        store(out[c] + i, load_first<type>(row + place * size, held - place, readable - place));
      }
    }
  }
}

template <int per_block>
inline void load_columns(const Weights& w, const uint8_t* all, int64_t column, int columns, int64_t from, int blocks,
                         SpanScales& out) {
  if (w.type == DSPARK_F32) return load_columns<per_block, DSPARK_F32>(w, all, column, columns, from, blocks, out);
  if (w.type == DSPARK_F16) return load_columns<per_block, DSPARK_F16>(w, all, column, columns, from, blocks, out);
  load_columns<per_block, DSPARK_BF16>(w, all, column, columns, from, blocks, out);
}

// The same for NVFP4; `unit` is what the kernel's codes are multiples of.
inline void load_nvfp4_columns(const Weights& w, int64_t column, int columns, int64_t from, int blocks, float unit,
                               SpanScales& out) {
  const int64_t held = w.in / 16 - 4 * from;
  for (int c = 0; c < columns; ++c) {
    const uint8_t* row = w.scales + (column + c) * w.scale_bytes + 4 * from;
    for (int i = 0; i < 4 * blocks; i += 8) {
      uint8_t padded[8] = {};
      if (held - i < 8) __builtin_memcpy(padded, row + i, static_cast<size_t>(held - i));
      store(out[c] + i, mul(load_e4m3(held - i < 8 ? padded : row + i), splat(unit)));
    }
  }
}

// Lane i takes biases i, i + 8, ... of the span, times the inputs' sums. The first span (`starts`) starts the sums.
template <int per_block, int rows>
inline void add_biases(const Layout& layout, const Tile& tile, int columns, int64_t from, int blocks, bool starts,
                       const SpanScales& biases, Floats* sums) {
  const float* inputs = tile.sums + from * per_block;
  for (int c = 0; c < columns; ++c, sums += rows) {
    Floats local[rows];
    unrolled<rows>([&]<int m>() { local[m] = starts ? splat(0.0f) : sums[m]; });
    for (int i = 0; i < blocks * per_block; i += 8) {
      const Floats bias = load(biases[c] + i);
      unrolled<rows>([&]<int m>() { local[m] = fma(bias, load(inputs + m * layout.sums + i), local[m]); });
    }
    unrolled<rows>([&]<int m>() { sums[m] = local[m]; });
  }
}

// Some blocks of neighbouring columns, for a kernel's dot function.
struct Span {
  const uint8_t* codes;  // of the first column; the next is value_bytes further
  int64_t value_bytes;
  const float* scales;  // of the first block and column; the next column is span_scales further
  const void* x;        // [blocks, rows, 64]
  const float* steps;   // of row m at m * step_stride
  int64_t step_stride;
  int blocks;
  int64_t ahead;  // bytes from one column's codes to what is wanted soon
};

// dot for some columns, as many at a time as the kernel likes.
template <typename Kernel, int rows>
inline void dot_columns(Span span, int columns, Floats* sums) {
  constexpr int together = Kernel::columns(rows);
  int c = 0;
  for (; c + together <= columns; c += together) {
    Kernel::template dot<rows, together>(span, sums + c * rows);
    span.codes += together * span.value_bytes;
    span.scales += together * span_scales;
  }
  if constexpr (together > 1) {
    for (; c < columns; ++c) {
      Kernel::template dot<rows, 1>(span, sums + c * rows);
      span.codes += span.value_bytes;
      span.scales += span_scales;
    }
  }
}

// The last block, shorter than 64.
template <typename Kernel, int rows>
inline void dot_rest(const Span& span, int columns, int bytes, Floats* sums) {
  uint8_t padded[band][Kernel::bytes] = {};
  for (int c = 0; c < columns; ++c) __builtin_memcpy(padded[c], span.codes + c * span.value_bytes, static_cast<size_t>(bytes));
  Span rest = span;
  rest.codes = padded[0];
  rest.value_bytes = Kernel::bytes;
  rest.blocks = 1;
  rest.ahead = 0;
  dot_columns<Kernel, rows>(rest, columns, sums);
}

// Runs Kernel::dot over the columns of a band and blocks [begin, end); `begin` is a multiple of 8.
template <typename Kernel, int rows>
void quantized_band(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int columns,
                    int64_t begin, int64_t end, Floats* sums) {
  constexpr int per_block = Kernel::scales_per_block, spanned_blocks = span_scales / per_block;
  constexpr int chunk = chunk_blocks(Kernel::cache_rows(rows));
  constexpr int64_t row_size = 64 * static_cast<int64_t>(sizeof(typename Kernel::Input));
  alignas(32) SpanScales scales, biases;
  const int64_t whole = w.in / 64;
  if constexpr (per_block == 4) {
    for (int i = 0; i < columns * rows; ++i) sums[i] = splat(0.0f);
  }
  for (int64_t from = begin; from < end; from += spanned_blocks) {
    const int spanned = static_cast<int>(end - from < spanned_blocks ? end - from : spanned_blocks);
    if constexpr (per_block == 4) {
      load_nvfp4_columns(w, column, columns, from, spanned, Kernel::nvfp4_unit, scales);
    } else {
      load_columns<per_block>(w, w.scales, column, columns, from, spanned, scales);
      load_columns<per_block>(w, w.biases, column, columns, from, spanned, biases);
      add_biases<per_block, rows>(layout, tile, columns, from, spanned, from == begin, biases, sums);
    }
    for (int first = 0; first < spanned; first += chunk) {
      const int64_t at = from + first;
      const int blocks = spanned - first < chunk ? spanned - first : chunk;
      const int full = static_cast<int>(whole - at < blocks ? whole - at : blocks);
      const uint8_t* x = static_cast<const uint8_t*>(tile.values) + at * rows * row_size;
      Span span{w.values + column * w.value_bytes + at * Kernel::bytes, w.value_bytes, scales[0] + first * per_block, x,
                tile.steps + at, layout.steps, full, blocks == layout.blocks ? 3072 : w.value_bytes};
      dot_columns<Kernel, rows>(span, columns, sums);
      if (full == blocks) continue;
      span.codes += full * Kernel::bytes;
      span.scales += full * per_block;
      span.x = x + full * rows * row_size;
      span.steps += full;
      dot_rest<Kernel, rows>(span, columns, static_cast<int>(w.value_bytes - (at + full) * Kernel::bytes), sums);
    }
  }
}

// Adds what the integers of some rows left over.
template <typename Kernel>
void add_rests(const Weights& w, const Layout& layout, const Tile& tile, int64_t column, int columns, Floats* sums) {
  for (int m = 0; m < tile.rows; ++m) {
    if (tile.rest_last[m] == 0) continue;
    Tile rest{};
    rest.rows = 1;
    rest.values = static_cast<typename Kernel::Input*>(tile.rest_values) + m * layout.blocks * 64;
    rest.steps = tile.rest_steps + m * layout.steps;
    rest.sums = tile.rest_sums + m * layout.sums;
    Floats rest_sums[band];
    quantized_band<Kernel, 1>(w, layout, rest, column, columns, tile.rest_first[m], tile.rest_last[m], rest_sums);
    for (int c = 0; c < columns; ++c) sums[c * tile.rows + m] = add(sums[c * tile.rows + m], rest_sums[c]);
  }
}

// Sums the lanes and stores the results of up to eight columns.
template <DsparkType type>
inline void finish(const Weights& w, const Tile& tile, int64_t column, int count, const Result& result,
                   const Floats* sums) {
  constexpr int size = type == DSPARK_F32 ? 4 : 2;
  for (int m = 0; m < tile.rows; ++m) {
    Floats y = sum_each(sums + m, static_cast<size_t>(tile.rows));
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
    uint8_t* to = static_cast<uint8_t*>(result.data) + (tile.output[m] * result.out + column) * size;
    if (count == octet) {
      store_as<type>(to, y);
    } else {
      uint8_t whole[octet * size];
      store_as<type>(whole, y);
      __builtin_memcpy(to, whole, static_cast<size_t>(count) * size);
    }
  }
}

// The same for a band.
inline void finish_band(const Weights& w, const Tile& tile, int64_t column, int columns, const Result& result,
                        const Floats* sums) {
  for (int c = 0; c < columns; c += octet, sums += octet * tile.rows) {
    const int count = columns - c < octet ? columns - c : octet;
    if (result.type == DSPARK_F32) {
      finish<DSPARK_F32>(w, tile, column + c, count, result, sums);
    } else if (result.type == DSPARK_F16) {
      finish<DSPARK_F16>(w, tile, column + c, count, result, sums);
    } else {
      finish<DSPARK_BF16>(w, tile, column + c, count, result, sums);
    }
  }
}

}  // namespace
