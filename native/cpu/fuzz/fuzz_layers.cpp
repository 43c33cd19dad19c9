// Random shapes and numbers (NaN, infinities, subnormals and any bit pattern among them) through every layer kernel, in
// buffers of exactly the size they need, for the sanitizers to watch. Each case runs with every instruction set and
// thread count and must give the same bits. Usage: fuzz_layers [cases] [seed]; prints a checksum that other machines
// with the same arguments should print too.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "dispatch.h"
#include "layers.h"
#include "pool.h"

using namespace dspark;

namespace {

std::mt19937 generator;

int between(int least, int most) {
  return least + static_cast<int>(generator() % static_cast<unsigned>(most - least + 1));
}
bool chance(int one_in) { return between(1, one_in) == 1; }

float number(int kind) {
  const uint32_t bits = generator();
  if (kind == 0 || (kind == 1 && bits % 64)) return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-30f;
  float any;
  std::memcpy(&any, &bits, sizeof any);
  return any;
}

using Memory = std::unique_ptr<char[]>;

struct Buffers {  // inputs live as long as the case
  std::vector<Memory> held;
  int kind = between(0, 3) % 3;  // tame, tame with strangers, any bits

  Tensor tensor(int64_t count, DsparkType type) {
    char* data = bytes(count * dspark_type_size(type));
    for (int64_t i = 0; i < count; ++i) {
      const float x = number(kind);
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      const uint16_t half = static_cast<uint16_t>(type == DSPARK_BF16 ? bits >> 16
                                                  : kind              ? bits
                                                                      : (bits >> 16 & 0x8000) | (bits & 0x3bff));
      if (type == DSPARK_F32)
        std::memcpy(data + 4 * i, &x, 4);
      else
        std::memcpy(data + 2 * i, &half, 2);
    }
    return {data, type};
  }

  float* floats(int64_t count) { return static_cast<float*>(const_cast<void*>(tensor(count, DSPARK_F32).data)); }

  char* bytes(size_t count) {
    held.emplace_back(new char[count]());
    return held.back().get();
  }
};

struct Output {
  char* data;
  size_t count;
  DsparkType type;
};

DsparkType any_type() { return static_cast<DsparkType>(between(0, 2)); }

uint64_t checksum = 1469598103934665603u;

void mix(uint64_t value) { checksum = (checksum ^ value) * 1099511628211u; }

// The bits of an output with all NaN as one.
std::vector<uint32_t> pattern(const Output& out) {
  std::vector<uint32_t> bits(out.count);
  for (size_t i = 0; i < out.count; ++i) {
    if (out.type == DSPARK_F32) {
      std::memcpy(&bits[i], out.data + 4 * i, 4);
      if ((bits[i] & 0x7fffffff) > 0x7f800000) bits[i] = 0x7fc00000;
    } else {
      uint16_t half;
      std::memcpy(&half, out.data + 2 * i, 2);
      const uint16_t infinity = out.type == DSPARK_BF16 ? 0x7f80 : 0x7c00;
      bits[i] = (half & 0x7fff) > infinity ? 0x7fff : half;
    }
  }
  return bits;
}

// Runs the case in every setting, with scratch of its own, and compares.
void compare(const char* name, const std::vector<Output>& outputs, size_t (*scratch)(const void*), const void* job,
             const std::function<void(void*)>& run) {
  std::vector<std::vector<uint32_t>> first;
  for (const char* simd : {"portable", "avx2"}) {
    if (!set_simd(simd)) continue;
    for (int threads : {1, 3}) {
      set_threads(threads);
      for (const Output& out : outputs) std::memset(out.data, 0xff, out.count * dspark_type_size(out.type));
      const Memory memory(new char[scratch ? scratch(job) : 1]);
      run(memory.get());
      std::vector<std::vector<uint32_t>> bits;
      for (const Output& out : outputs) bits.push_back(pattern(out));
      if (first.empty()) first = bits;
      if (bits != first) {
        std::printf("%s: %s code with %d threads differs\n", name, simd, threads);
        std::exit(1);
      }
    }
  }
  for (const auto& bits : first)
    for (uint32_t b : bits) mix(b);
}

MutableTensor output(Buffers& b, std::vector<Output>& outputs, size_t count, DsparkType type) {
  outputs.push_back({b.bytes(count * dspark_type_size(type)), count, type});
  return {outputs.back().data, type};
}

void fuzz_rows() {
  Buffers b;
  std::vector<Output> outputs;
  const DsparkType type = any_type();
  if (chance(2)) {
    RmsNorm job{};
    job.rows = between(1, 40), job.size = between(1, 300), job.eps = 1e-5f;
    job.x = b.tensor(job.rows * job.size, type);
    if (chance(2)) job.weight = b.tensor(job.size, any_type());
    job.y = output(b, outputs, job.rows * job.size, type);
    compare("rms_norm", outputs, nullptr, nullptr, [&](void*) { rms_norm(job); });
  } else {
    Activation job{};
    job.count = between(1, 20000);
    job.x = b.tensor(job.count, type);
    if (chance(2)) job.gated = b.tensor(job.count, type);
    job.y = output(b, outputs, job.count, type);
    compare("activate", outputs, nullptr, nullptr, [&](void*) { activate(job); });
  }
}

void fuzz_mamba() {
  Buffers b;
  std::vector<Output> outputs;
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
  compare(
      "mamba", outputs, [](const void* j) { return mamba_scratch_bytes(*static_cast<const Mamba*>(j)); }, &job,
      [&](void* memory) { mamba(job, memory); });
}

void fuzz_attend() {
  Buffers b;
  std::vector<Output> outputs;
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
    compare(
        "attend", outputs, [](const void* j) { return attend_scratch_bytes(*static_cast<const Attend*>(j)); }, &job,
        [&](void* memory) { attend(job, memory); });
  }
}

void fuzz_route() {
  Buffers b;
  std::vector<Output> outputs;
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
  compare(
      "route", outputs, [](const void* j) { return route_scratch_bytes(*static_cast<const Route*>(j)); }, &job,
      [&](void* memory) { route(job, memory); });
}

void fuzz_heads() {
  Buffers b;
  std::vector<Output> outputs;
  const DsparkType type = any_type();
  if (chance(2)) {
    HeadNormRope job{};
    job.rows = between(1, 12), job.heads = between(1, 5), job.dim = 2 * between(1, rope_max_dim / 2);
    job.eps = 1e-6f, job.theta = 10000, job.position = between(0, 1000000), job.rotate = chance(2);
    const size_t count = static_cast<size_t>(job.rows) * job.heads * job.dim;
    job.x = b.tensor(count, type);
    if (chance(2)) job.weight = b.tensor(job.dim, any_type());
    job.y = output(b, outputs, count, type);
    compare("head_norm_rope", outputs, nullptr, nullptr, [&](void*) { head_norm_rope(job); });
  } else {
    Append job{};
    const int dim = between(1, 40);
    job.count = between(1, 9), job.kv_heads = between(1, 4), job.offset = between(0, 30);
    job.capacity = job.offset + job.count + between(0, 5), job.row_bytes = dim * dspark_type_size(type);
    job.rows = static_cast<const char*>(b.tensor(job.count * job.kv_heads * dim, type).data);
    job.cache = static_cast<char*>(output(b, outputs, job.kv_heads * job.capacity * dim, type).data);
    compare("append", outputs, nullptr, nullptr, [&](void*) { append(job); });
  }
}

}  // namespace

int main(int count, char** words) {
  const int cases = count > 1 ? std::atoi(words[1]) : 1000;
  generator.seed(count > 2 ? std::atoi(words[2]) : 1);
  for (int i = 0; i < cases; ++i) {
    for (void (*fuzz)() : {fuzz_rows, fuzz_mamba, fuzz_attend, fuzz_route, fuzz_heads}) fuzz();
  }
  std::printf("%d cases of each kernel, checksum %016llx\n", cases, static_cast<unsigned long long>(checksum));
}
