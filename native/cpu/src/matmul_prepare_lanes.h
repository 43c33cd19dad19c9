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

// 64 inputs as integers of at most 15 bits times a power-of-two step.
inline void quantize_block(const float* x, int exponent, Integers* q, float* step) {
  const int clamped = exponent < 15 ? 15 : exponent;  // keeps the step a normal number
  *step = power_of_two(clamped - 141);
  const Floats inverse = splat(power_of_two(141 - clamped)), most = splat(32767.0f), least = splat(-32767.0f);
  for (int i = 0; i < 8; ++i) q[i] = round_to_integers(max(min(mul(load(x + 8 * i), inverse), most), least));
}

inline void prepare_i16(const Weights& w, const Layout& layout, Tile& tile, int m) {
  float x[64];
  Integers q[8];
  float* steps = tile.steps + m * layout.steps;
  float* sums = tile.sums + m * layout.sums;
  int16_t* values = static_cast<int16_t*>(tile.values) + 64 * m;
  for (int64_t b = 0; b < layout.blocks; ++b, values += 64 * tile.rows) {
    int exponent;
    load_inputs(tile.input[m], tile.input_type, w.in, b, 64, x);
    tile.nonfinite[m] |= clear_if_nonfinite(x, &exponent);
    quantize_block(x, exponent, q, steps + b);
    const Integers low = add(add(q[0], q[1]), add(q[2], q[3])), high = add(add(q[4], q[5]), add(q[6], q[7]));
    if (w.format == DSPARK_AFFINE8) {
      store_by_byte(values, q);
    } else {
      store_by_nibble(values, q);
    }
    if (w.format == DSPARK_NVFP4) continue;
    if (layout.scales_per_block == 1) {
      sums[b] = steps[b] * static_cast<float>(sum(add(low, high)));
    } else {
      sums[2 * b] = steps[b] * static_cast<float>(sum(low));
      sums[2 * b + 1] = steps[b] * static_cast<float>(sum(high));
    }
  }
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
  for (int64_t b = layout.blocks; b < layout.steps; ++b) tile.steps[m * layout.steps + b] = 0.0f;
  for (int64_t b = layout.blocks * layout.scales_per_block; b < layout.sums; ++b) tile.sums[m * layout.sums + b] = 0.0f;
  if (w.format == DSPARK_DENSE) return prepare_dense(w, layout, tile, m);
  if (w.activation == DSPARK_I16) return prepare_i16(w, layout, tile, m);
  prepare_fp32(w, layout, tile, m);
}

}  // namespace
