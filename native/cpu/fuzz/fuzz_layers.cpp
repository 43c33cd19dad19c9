// Random shapes and numbers through every layer kernel, in buffers of exactly the size they need, for the sanitizers to
// watch. Each case must give the same bits with every instruction set and thread count.
// Usage: fuzz_layers [cases] [seed].
#include "fuzz.h"

namespace {

void fuzz_rows() {
  Buffers b;
  Outputs outputs;
  const DsparkType type = any_type();
  if (chance(2)) {
    RmsNorm job{};
    job.rows = between(1, 40), job.size = between(1, 300), job.eps = 1e-5f;
    job.x = b.tensor(job.rows * job.size, type);
    if (chance(2)) job.weight = b.tensor(job.size, any_type());
    job.y = output(b, outputs, job.rows * job.size, type);
    compare("rms_norm", outputs, nullptr, [&](void*) { rms_norm(job); });
  } else {
    Activation job{};
    job.count = between(1, 20000);
    job.x = b.tensor(job.count, type);
    if (chance(2)) job.gated = b.tensor(job.count, type);
    job.y = output(b, outputs, job.count, type);
    compare("activate", outputs, nullptr, [&](void*) { activate(job); });
  }
}

void fuzz_mamba() {
  Buffers b;
  Outputs outputs;
  const DsparkType type = any_type();
  Mamba job{};
  job.groups = between(1, 3), job.heads = between(1, 4), job.channels = between(1, 20), job.state_size = between(1, 40);
  job.taps = chance(2) ? 4 : between(2, mamba_max_taps), job.tokens = between(1, chance(4) ? 150 : 9);
  job.eps = 1e-5f, job.dt_min = chance(2) ? 0 : 0.01f, job.dt_max = chance(2) ? INFINITY : 0.5f;
  const int heads = job.all_heads(), conv = job.conv_size();
  const size_t states = static_cast<size_t>(job.inner()) * job.state_size;
  job.projected = b.tensor(static_cast<int64_t>(job.tokens) * job.width(), type);
  job.window = b.tensor((job.taps - 1) * conv, type);
  job.conv_weight = b.tensor(job.taps * conv, any_type());
  if (chance(2)) job.conv_bias = b.tensor(conv, any_type());
  job.norm = b.tensor(job.inner(), any_type());
  job.state = b.floats(states), job.a = b.floats(heads), job.d = b.floats(heads), job.dt_bias = b.floats(heads);
  job.window_out = output(b, outputs, (job.taps - 1) * conv, type).data;
  job.state_out = static_cast<float*>(output(b, outputs, states, DSPARK_F32).data);
  if (chance(3))
    job.d = nullptr;
  else
    job.y = output(b, outputs, static_cast<size_t>(job.tokens) * job.inner(), type);
  compare("mamba", outputs, [&] { return mamba_scratch_bytes(job); }, [&](void* memory) { mamba(job, memory); });
}

void fuzz_attend() {
  Buffers b;
  Outputs outputs;
  const DsparkType type = any_type(), kv = any_type();
  Attend job{};
  job.kv_heads = between(1, 3), job.heads = job.kv_heads * between(1, 5),
  job.dim = chance(3) ? between(1, 256) : between(1, 70);
  job.rows = between(1, chance(4) ? 90 : 8), job.length = job.rows + between(0, chance(3) ? 1300 : 140);
  job.window = chance(2) ? 0 : between(1, job.length + 20), job.scale = 0.2f;
  job.q = b.tensor(static_cast<int64_t>(job.rows) * job.heads * job.dim, type);
  job.key_row_stride = job.dim + between(0, 3), job.value_row_stride = job.dim + between(0, 3);
  job.key_head_stride = job.key_row_stride * (job.length + between(0, 2));
  job.value_head_stride = job.value_row_stride * (job.length + between(0, 2));
  const auto cache = [&](int64_t head, int64_t row) {
    return b.tensor((job.kv_heads - 1) * head + (job.length - 1) * row + job.dim, kv);
  };
  job.keys = cache(job.key_head_stride, job.key_row_stride),
  job.values = cache(job.value_head_stride, job.value_row_stride);
  if (chance(2)) job.sinks = b.tensor(job.heads, any_type());
  job.out = output(b, outputs, static_cast<size_t>(job.rows) * job.heads * job.dim, type);
  for (bool split : {false, true}) {
    job.split = split;
    compare("attend", outputs, [&] { return attend_scratch_bytes(job); }, [&](void* memory) { attend(job, memory); });
  }
}

void fuzz_route() {
  Buffers b;
  Outputs outputs;
  Route job{};
  job.groups = between(1, 4), job.experts = job.groups * between(job.groups == 1 ? 1 : 2, 30),
  job.top = between(1, job.experts);
  job.top_groups = between(1, job.groups), job.rows = between(1, 12), job.size = between(1, 150);
  job.scale = 2.5f, job.normalize = chance(2);
  job.x = b.tensor(job.rows * job.size, any_type());
  job.gate = b.floats(job.experts * job.size), job.correction = b.floats(job.experts);
  const size_t chosen = static_cast<size_t>(job.rows) * job.top;
  job.ids = static_cast<uint32_t*>(output(b, outputs, chosen, DSPARK_F32).data);
  job.weights = static_cast<float*>(output(b, outputs, chosen, DSPARK_F32).data);
  compare("route", outputs, [&] { return route_scratch_bytes(job); }, [&](void* memory) { route(job, memory); });
}

void fuzz_heads() {
  Buffers b;
  Outputs outputs;
  const DsparkType type = any_type();
  if (chance(2)) {
    HeadNormRope job{};
    job.rows = between(1, 12), job.heads = between(1, 5), job.dim = 2 * between(1, rope_max_dim / 2);
    job.eps = 1e-6f, job.theta = 10000, job.position = between(0, 1000000), job.rotate = chance(2);
    const size_t count = static_cast<size_t>(job.rows) * job.heads * job.dim;
    job.x = b.tensor(count, type);
    if (chance(2)) job.weight = b.tensor(job.dim, any_type());
    job.y = output(b, outputs, count, type);
    compare("head_norm_rope", outputs, nullptr, [&](void*) { head_norm_rope(job); });
  } else {
    Append job{};
    const int dim = between(1, 40);
    job.count = between(1, 9), job.kv_heads = between(1, 4), job.offset = between(0, 30);
    job.capacity = job.offset + job.count + between(0, 5), job.row_bytes = dim * dspark_type_size(type);
    job.rows = static_cast<const char*>(b.tensor(job.count * job.kv_heads * dim, type).data);
    job.cache = static_cast<char*>(output(b, outputs, job.kv_heads * job.capacity * dim, type).data);
    compare("append", outputs, nullptr, [&](void*) { append(job); });
  }
}

}  // namespace

int main(int count, char** words) {
  return fuzz_main(count, words, {fuzz_rows, fuzz_mamba, fuzz_attend, fuzz_route, fuzz_heads});
}
