// Preparing activations for the kernels. Included after one of the lanes_*.h files.
#pragma once

#include "matmul_kernels.h"

namespace {

using dspark::Layout;
using dspark::Tile;
using dspark::Weights;

constexpr int32_t infinity_bits = 0x7f800000;

template <DsparkType type>
inline void load_block(const uint8_t* x, int count, int size, float* out) {
  constexpr int bytes = type == DSPARK_F32 ? 4 : 2;
  if (count == size) {
    for (int i = 0; i < size; i += 8) store(out + i, load_as<type>(x + i * bytes));
    return;
  }
  uint8_t padded[64 * bytes] = {};
  __builtin_memcpy(padded, x, static_cast<size_t>(count) * bytes);
  for (int i = 0; i < size; i += 8) store(out + i, load_as<type>(padded + i * bytes));
}

// Inputs [block * size, ..) of a row, zeros past its end.
inline void load_inputs(const void* row, DsparkType type, int64_t in, int64_t block, int size, float* out) {
  const int64_t first = block * size;
  const int count = static_cast<int>(in - first < size ? in - first : size);
  const uint8_t* x = static_cast<const uint8_t*>(row) + first * static_cast<int64_t>(dspark_type_size(type));
  if (type == DSPARK_F32) return load_block<DSPARK_F32>(x, count, size, out);
  if (type == DSPARK_F16) return load_block<DSPARK_F16>(x, count, size, out);
  load_block<DSPARK_BF16>(x, count, size, out);
}

inline float power_of_two(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// Zeroes the 64 inputs if they are not all finite; says whether it did, and the largest one's exponent field.
inline bool clear_if_nonfinite(float* x, int* exponent) {
  Integers size = size_bits(load(x));
  for (int i = 8; i < 64; i += 8) size = max(size, size_bits(load(x + i)));
  const int32_t top = largest(size);
  *exponent = top >> 23;
  if (top < infinity_bits) return false;
  for (int i = 0; i < 64; ++i) x[i] = 0.0f;
  *exponent = 0;
  return true;
}

// 64 inputs as integers of at most 15 bits times a power-of-two step; `x` becomes what they leave, in steps.
inline float quantize_block(float* x, int exponent, Integers* q) {
  const int clamped = exponent < 15 ? 15 : exponent;  // keeps the step a normal number
  const Floats inverse = splat(power_of_two(141 - clamped)), most = splat(32767.0f), least = splat(-32767.0f);
  for (int i = 0; i < 8; ++i) {
    const Floats scaled = mul(load(x + 8 * i), inverse);
    q[i] = round_to_integers(max(min(scaled, most), least));
    store(x + 8 * i, sub(scaled, to_floats(q[i])));
  }
  return power_of_two(clamped - 141);
}

// Does a large input hide the others? More than half of the inputs that are not zero have integers below 2^8.
inline bool is_coarse(const float* left, const Integers* q) {
  int nonzero = 0, small = 0, inexact = 0;
  for (int i = 0; i < 8; ++i) {
    const Counts counts = count_small(q[i], load(left + 8 * i), 256);
    nonzero += counts.nonzero;
    small += counts.small;
    inexact += counts.inexact;
  }
  return 2 * small > nonzero && inexact > 0;
}

// Where one row's blocks go.
struct I16Row {
  int16_t* values;
  int64_t value_stride;  // between blocks
  float* steps;
  float* sums;
};

inline void store_block(const Weights& w, const Layout& layout, const I16Row& row, int64_t b, const Integers* q,
                        float step) {
  int16_t* values = row.values + b * row.value_stride;
  w.format == DSPARK_AFFINE8 ? store_by_byte(values, q) : store_by_nibble(values, q);
  row.steps[b] = step;
  if (w.format == DSPARK_NVFP4) return;
  const Integers low = add(add(q[0], q[1]), add(q[2], q[3])), high = add(add(q[4], q[5]), add(q[6], q[7]));
  if (layout.scales_per_block == 1) {
    row.sums[b] = step * static_cast<float>(sum(add(low, high)));
  } else {
    row.sums[2 * b] = step * static_cast<float>(sum(low));
    row.sums[2 * b + 1] = step * static_cast<float>(sum(high));
  }
}

// What coarse blocks left over: a second row of integers, 2^15 times finer, zero where not needed. It starts at the
// first such block, rounded down to a multiple of 8.
inline void store_rest(const Weights& w, const Layout& layout, const I16Row& row, int64_t b, float* left, float step,
                       Tile& tile, int m) {
  const Integers zeros[8] = {};
  if (tile.rest_last[m] == 0) tile.rest_first[m] = b / 8 * 8;
  for (int64_t i = tile.rest_last[m] == 0 ? tile.rest_first[m] : tile.rest_last[m]; i < b; ++i) {
    store_block(w, layout, row, i, zeros, 0.0f);
  }
  Integers q[8];
  const Floats finer = splat(0x1p15f), most = splat(32767.0f), least = splat(-32767.0f);
  for (int i = 0; i < 8; ++i) q[i] = round_to_integers(max(min(mul(load(left + 8 * i), finer), most), least));
  store_block(w, layout, row, b, q, step * 0x1p-15f);
  tile.rest_last[m] = b + 1;
}

inline void clear_padding(const Layout& layout, float* steps, float* sums) {
  for (int64_t b = layout.blocks; b < layout.steps; ++b) steps[b] = 0.0f;
  for (int64_t b = layout.blocks * layout.scales_per_block; b < layout.sums; ++b) sums[b] = 0.0f;
}

// Steps and sums behind the last block of the rest are read as part of a vector; they must be zeros.
inline void end_rest(const Layout& layout, const I16Row& row, int64_t last) {
  const int64_t end = (last + 7) / 8 * 8, per_block = layout.scales_per_block;
  for (int64_t b = last; b < (end < layout.steps ? end : layout.steps); ++b) row.steps[b] = 0.0f;
  for (int64_t b = last * per_block; b < (end * per_block < layout.sums ? end * per_block : layout.sums); ++b) {
    row.sums[b] = 0.0f;
  }
}

inline void prepare_i16(const Weights& w, const Layout& layout, Tile& tile, int m) {
  const I16Row row{static_cast<int16_t*>(tile.values) + 64 * m, 64 * tile.rows, tile.steps + m * layout.steps,
                   tile.sums + m * layout.sums};
  const I16Row rest{static_cast<int16_t*>(tile.rest_values) + m * layout.blocks * 64, 64,
                    tile.rest_steps + m * layout.steps, tile.rest_sums + m * layout.sums};
  float x[64];
  Integers q[8];
  tile.rest_first[m] = tile.rest_last[m] = 0;
  for (int64_t b = 0; b < layout.blocks; ++b) {
    int exponent;
    load_inputs(tile.input[m], tile.input_type, w.in, b, 64, x);
    tile.nonfinite[m] |= clear_if_nonfinite(x, &exponent);
    const float step = quantize_block(x, exponent, q);
    store_block(w, layout, row, b, q, step);
    if (exponent > 30 && is_coarse(x, q)) store_rest(w, layout, rest, b, x, step, tile, m);
  }
  clear_padding(layout, row.steps, row.sums);
  if (tile.rest_last[m] > 0) end_rest(layout, rest, tile.rest_last[m]);
}

// Where the kernel for float activations finds input i of a block. For 4-bit codes lane l of vector j is nibble j of
// word l; for 8-bit codes it is byte j % 4 of word l, words read as `join_integers` does.
inline int float_place(DsparkFormat format, int i) {
  if (format != DSPARK_AFFINE8) return i % 8 * 8 + i / 8;
  return (i % 32 / 16 * 4 + i % 4) * 8 + i / 32 * 4 + i % 16 / 4;
}

// Affine 4-bit codes are used in place, nibble j of a word as code * 16^j, so inputs carry the inverse (but the last).
inline float float_factor(DsparkFormat format, int i) {
  return format == DSPARK_AFFINE4 && i % 8 < 7 ? power_of_two(-4 * (i % 8)) : 1.0f;
}

inline float sum_of(const float* x, int count) {
  Floats lanes[8] = {load(x)};
  for (int i = 1; i < 8; ++i) lanes[i] = splat(0.0f);
  for (int i = 8; i < count; i += 8) lanes[0] = add(lanes[0], load(x + i));
  float all[8];
  store(all, sum_each(lanes, 1));
  return all[0];
}

inline void prepare_fp32(const Weights& w, const Layout& layout, Tile& tile, int m) {
  float x[64];
  float* sums = tile.sums + m * layout.sums;
  float* values = static_cast<float*>(tile.values) + 64 * m;
  for (int64_t b = 0; b < layout.blocks; ++b, values += 64 * tile.rows) {
    int exponent;
    load_inputs(tile.input[m], tile.input_type, w.in, b, 64, x);
    tile.nonfinite[m] |= clear_if_nonfinite(x, &exponent);
    for (int i = 0; i < 64; ++i) values[float_place(w.format, i)] = x[i] * float_factor(w.format, i);
    if (w.format == DSPARK_NVFP4) continue;
    for (int s = 0; s < layout.scales_per_block; ++s) {
      const int count = 64 / layout.scales_per_block;
      sums[b * layout.scales_per_block + s] = sum_of(x + s * count, count);
    }
  }
  clear_padding(layout, tile.steps, sums);
}

// Float values; bfloat16 weights meet even and odd inputs apart.
inline void prepare_dense(const Weights& w, const Layout& layout, Tile& tile, int m) {
  float x[16];
  float* values = static_cast<float*>(tile.values) + 16 * m;
  for (int64_t b = 0; b < layout.blocks; ++b, values += 16 * tile.rows) {
    if (w.type != DSPARK_BF16) {
      load_inputs(tile.input[m], tile.input_type, w.in, b, 16, values);
      continue;
    }
    load_inputs(tile.input[m], tile.input_type, w.in, b, 16, x);
    for (int i = 0; i < 16; ++i) values[i % 2 * 8 + i / 2] = x[i];
  }
}

[[maybe_unused]] void prepare(const Weights& w, const Layout& layout, Tile& tile, int m) {
  tile.nonfinite[m] = false;
  tile.rest_last[m] = 0;
  if (w.format == DSPARK_DENSE) return prepare_dense(w, layout, tile, m);
  if (w.activation == DSPARK_I16) return prepare_i16(w, layout, tile, m);
  prepare_fp32(w, layout, tile, m);
}

}  // namespace
