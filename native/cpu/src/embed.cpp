#include "embed.h"

#include <cstring>

namespace dspark {
namespace {

float float_of(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float float_of(float value) { return value; }

// To the nearest, ties to even; NaN stays one.
void store(uint16_t* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *to = static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
}

void store(float* to, float value) { *to = value; }

template <typename T>
float rounded(float value) {
  T stored;
  store(&stored, value);
  return float_of(stored);
}

// code * scale, rounded to the scales' type, plus bias, rounded again: MLX's order.
template <typename T>
void unpack(const Embed& job, int64_t row, T* y) {
  const DsparkMatrix& w = job.table;
  const int bits = w.format == DSPARK_AFFINE4 ? 4 : 8, per_byte = 8 / bits;
  const int64_t groups = w.in / w.group;
  const uint8_t* codes = static_cast<const uint8_t*>(w.values) + row * w.in / per_byte;
  const T *scales = static_cast<const T*>(w.scales) + row * groups, *biases = static_cast<const T*>(w.biases) + row * groups;
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = float_of(scales[g]), bias = float_of(biases[g]);
    for (int64_t i = g * w.group; i < (g + 1) * w.group; ++i) {
      const int code = bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
      store(y + i, rounded<T>(static_cast<float>(code) * scale) + bias);
    }
  }
}

template <typename T>
bool embed_as(const Embed& job) {
  const DsparkMatrix& w = job.table;
  for (int64_t i = 0; i < job.count; ++i) {
    const int64_t row = job.ids[i];
    if (row < 0 || row >= w.out) return false;
    T* y = static_cast<T*>(job.y) + i * w.in;
    if (w.format == DSPARK_DENSE) {
      std::memcpy(y, static_cast<const T*>(w.values) + row * w.in, static_cast<size_t>(w.in) * sizeof(T));
    } else {
      unpack(job, row, y);
    }
  }
  return true;
}

}  // namespace

bool embed(const Embed& job) {
  return job.table.type == DSPARK_F32 ? embed_as<float>(job) : embed_as<uint16_t>(job);
}

}  // namespace dspark
