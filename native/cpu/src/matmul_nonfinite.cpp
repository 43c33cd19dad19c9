// The slow way through blocks of inputs that hold NaN or infinity.
#include "lanes_portable.h"
// lanes first
#include "matmul_kernels.h"
#include "matmul_prepare_lanes.h"

namespace dspark {
namespace {

float value_at(const uint8_t* row, DsparkType type, int64_t i) {
  if (type == DSPARK_F32) {
    float x;
    std::memcpy(&x, row + 4 * i, 4);
    return x;
  }
  uint16_t half;
  std::memcpy(&half, row + 2 * i, 2);
  return type == DSPARK_F16 ? from_f16(half) : from_bf16(half);
}

// Weight [column, i] in float32.
float weight_at(const Weights& w, int64_t column, int64_t i) {
  const uint8_t* row = w.values + column * w.value_bytes;
  const uint8_t* scales = w.scales + column * w.scale_bytes;
  const int nibble = w.format == DSPARK_AFFINE8 ? 0 : (row[i / 2] >> (4 * (i % 2))) & 15;
  if (w.format == DSPARK_NVFP4) return e2m1_value(nibble) * e4m3_value(scales[i / 16]);
  const int code = w.format == DSPARK_AFFINE4 ? nibble : row[i];
  const float scale = value_at(scales, w.type, i / w.group);
  return static_cast<float>(code) * scale + value_at(w.biases + column * w.scale_bytes, w.type, i / w.group);
}

}  // namespace

void add_nonfinite(const Weights& w, const void* x, DsparkType type, int64_t column, int count, float* y) {
  for (int64_t b = 0; b < w.blocks; ++b) {
    float inputs[64], cleared[64];
    load_inputs(x, type, w.in, b, 64, inputs);
    std::memcpy(cleared, inputs, sizeof(inputs));
    int exponent;
    if (!clear_if_nonfinite(cleared, &exponent)) continue;
    for (int c = 0; c < count; ++c) {
      for (int64_t i = 0; i < 64 && 64 * b + i < w.in; ++i) y[c] += inputs[i] * weight_at(w, column + c, 64 * b + i);
    }
  }
}

}  // namespace dspark
