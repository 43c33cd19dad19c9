// Random matrices in every form, for the fuzzers of products and of what is put together from them.
#pragma once

#include <algorithm>

#include "fuzz.h"
#include "matmul.h"

namespace {

DsparkFormat any_format() { return static_cast<DsparkFormat>(between(DSPARK_DENSE, DSPARK_NVFP4)); }

int any_group(DsparkFormat format) {
  if (format == DSPARK_DENSE) return 0;
  return format == DSPARK_NVFP4 ? 16 : 32 << between(0, 2);
}

// What inputs are a multiple of.
int unit_of(DsparkFormat format, int group) { return format == DSPARK_DENSE ? 1 : group; }

DsparkMatrix matrix(Buffers& b, DsparkFormat format, int group, int64_t experts, int64_t out, int64_t in) {
  DsparkMatrix w{format, any_type(), group, experts, out, in, nullptr, nullptr, nullptr, chance(2) ? 1.0f : 0.37f};
  const int64_t count = experts * out * in;
  if (format == DSPARK_DENSE) {
    w.values = b.tensor(count, w.type).data;
    return w;
  }
  w.values = b.random_bytes(static_cast<size_t>(format == DSPARK_AFFINE8 ? count : count / 2), 4);
  const int64_t groups = count / group;
  if (format == DSPARK_NVFP4) {
    w.scales = b.random_bytes(static_cast<size_t>(groups));
  } else {
    w.scales = b.tensor(groups, w.type).data;
    w.biases = b.tensor(groups, w.type).data;
  }
  return w;
}

}  // namespace
