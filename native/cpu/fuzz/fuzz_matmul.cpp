// Random matrices in every form, rows, experts and numbers through every product, in buffers of exactly the size they
// need, for the sanitizers to watch. Each case must give the same bits with every instruction set and thread count, and
// each row the bits it has alone. Usage: fuzz_matmul [cases] [seed].
#include <algorithm>
#include <string>

#include "fuzz_matrix.h"
#include "markov.h"

namespace {

// Inputs: fewer than a block, about one, more than the kernels hold at a time.
int any_inputs(int unit) {
  const int most = chance(12) ? 8192 : chance(3) ? 1100 : 200;
  return unit * between(1, std::max(1, most / unit));
}

DsparkActivation any_activation() { return chance(2) ? DSPARK_I16 : DSPARK_FP32; }

// Rows, none among them; many only of small matrices, whose multiplications a row are given.
int any_rows(int64_t multiplications, int most = 1100) {
  const int64_t affordable = std::max<int64_t>(9, 1000000 / multiplications);
  const int wanted = chance(20) ? between(most - 100, most) : chance(4) ? between(1, 70) : between(0, 9);
  return static_cast<int>(std::min<int64_t>(wanted, affordable));
}

// Rows now and then get an outlier, so that a block needs its second row of integers.
Tensor activations(Buffers& b, int64_t count, DsparkType type) {
  const Tensor x = b.tensor(count, type);
  if (type != DSPARK_F32) return x;
  float* values = static_cast<float*>(const_cast<void*>(x.data));
  for (int64_t i = 0; chance(2) && i < count; i += between(1, 300)) values[i] *= 3e3f;
  return x;
}

// Ids of 4 or 8 bytes: random, all the same, ascending, or those at the ends.
DsparkIds any_ids(Buffers& b, int64_t count, int experts) {
  const int size = chance(2) ? 4 : 8, pattern = between(0, 3), same = between(0, experts - 1);
  char* data = b.bytes(static_cast<size_t>(count) * static_cast<size_t>(size), static_cast<size_t>(size));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t ascending = i % experts, ends = chance(2) ? 0 : experts - 1;
    const int64_t id = pattern == 0 ? between(0, experts - 1) : pattern == 1 ? same : pattern == 2 ? ascending : ends;
    const int32_t narrow = static_cast<int32_t>(id);
    if (size == 4)
      std::memcpy(data + 4 * i, &narrow, 4);
    else
      std::memcpy(data + 8 * i, &id, 8);
  }
  return {data, size};
}

const void* at(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }

// The rows [first, first + rows) of a result, computed alone, must have the bits they had in the whole.
void same_alone(const char* name, const Output& whole, int64_t first, int64_t rows, int64_t row_size, size_t scratch,
                const std::function<void(void*, void*)>& run) {
  const size_t size = dspark_type_size(whole.type), count = static_cast<size_t>(rows * row_size);
  const std::unique_ptr<char[]> y(new char[count * size]), memory(new char[scratch]);
  run(y.get(), memory.get());
  const Output part{whole.data + static_cast<size_t>(first * row_size) * size, count, whole.type};
  if (pattern({y.get(), count, whole.type}) != pattern(part)) differs(name, "other rows beside");
}

void fuzz_product() {
  Buffers b;
  Outputs outputs;
  const DsparkFormat format = any_format();
  const int group = any_group(format);
  const int64_t in = any_inputs(unit_of(format, group)), out = between(1, chance(6) ? 300 : 40);
  const int64_t rows = any_rows(in * out);
  const DsparkMatrix w = matrix(b, format, group, 1, out, in);
  const DsparkType type = any_type();
  const DsparkActivation activation = any_activation();
  const Tensor x = activations(b, rows * in, type);
  void* y = output(b, outputs, static_cast<size_t>(rows * out), type).data;
  compare("product", outputs, [&] { return dspark_product_scratch_bytes(&w, rows, activation); },
          [&](void* memory) { dspark_product(x.data, type, rows, &w, y, activation, memory); });
  if (rows == 0) return;
  const int64_t first = between(0, static_cast<int>(rows) - 1), some = std::min<int64_t>(rows - first, between(1, 9));
  const int64_t row_bytes = in * static_cast<int64_t>(dspark_type_size(type));
  same_alone("product", outputs[0], first, some, out, dspark_product_scratch_bytes(&w, some, activation),
             [&](void* part, void* memory) {
               dspark_product(at(x.data, first * row_bytes), type, some, &w, part, activation, memory);
             });
}

void fuzz_gather() {
  Buffers b;
  Outputs outputs;
  const DsparkFormat format = any_format();
  const int group = any_group(format), experts = between(1, chance(4) ? 70 : 6);
  const int64_t in = std::max(any_inputs(unit_of(format, group)) / experts / unit_of(format, group), 1) *
                     unit_of(format, group);
  const int64_t out = between(1, 40), slots = between(1, 7), rows = any_rows(in * out * slots, 600);
  const DsparkMatrix w = matrix(b, format, group, experts, out, in);
  const DsparkType type = any_type();
  const DsparkActivation activation = any_activation();
  const bool own = slots > 1 && chance(2);
  const Tensor x = activations(b, rows * (own ? slots : 1) * in, type);
  const DsparkIds ids = any_ids(b, rows * slots, experts);
  void* y = output(b, outputs, static_cast<size_t>(rows * slots * out), type).data;
  bool fine = true;
  compare("gather", outputs, [&] { return dspark_gather_scratch_bytes(&w, rows, slots, activation); },
          [&](void* memory) {
            fine = fine && dspark_gather(x.data, type, rows, slots, own, &w, ids, y, activation, memory);
          });
  if (!fine) differs("gather", "ids in range refused");
  if (rows == 0) return;
  const int64_t first = between(0, static_cast<int>(rows) - 1);
  const int64_t row_bytes = (own ? slots : 1) * in * static_cast<int64_t>(dspark_type_size(type));
  const DsparkIds its{at(ids.data, first * slots * ids.size), ids.size};
  same_alone("gather", outputs[0], first, 1, slots * out, dspark_gather_scratch_bytes(&w, 1, slots, activation),
             [&](void* part, void* memory) {
               dspark_gather(at(x.data, first * row_bytes), type, 1, slots, own, &w, its, part, activation, memory);
             });
}

// Two layers with experts (`moe`) or without (`mlp`: ids null).
void fuzz_layers_of(bool routed) {
  Buffers b;
  Outputs outputs;
  const DsparkFormat format = any_format();
  const int group = any_group(format), unit = unit_of(format, group), experts = routed ? between(1, 9) : 1;
  const int64_t in = unit * between(1, std::max(1, 300 / unit)), hidden = unit * between(1, std::max(1, 300 / unit));
  const int64_t out = between(1, 60), slots = routed ? between(1, 6) : 1;
  const int64_t rows = any_rows(hidden * (in + out) * slots, 600);
  const DsparkMatrix up = matrix(b, format, group, experts, hidden, in);
  const DsparkMatrix down = matrix(b, format, group, experts, out, hidden);
  const DsparkType type = any_type();
  const DsparkActivation activation = any_activation();
  const Tensor x = activations(b, rows * in, type);
  const DsparkIds ids = routed ? any_ids(b, rows * slots, experts) : DsparkIds{nullptr, 4};
  const float* weights = routed ? b.floats(rows * slots) : nullptr;
  void* y = output(b, outputs, static_cast<size_t>(rows * out), type).data;
  const char* name = routed ? "moe" : "mlp";
  bool fine = true;
  compare(name, outputs, [&] { return dspark_experts_scratch_bytes(&up, &down, rows, slots, activation); },
          [&](void* memory) {
            fine = fine && dspark_experts(x.data, type, rows, slots, &up, &down, ids, weights, y, activation, memory);
          });
  if (!fine) differs(name, "ids in range refused");
  if (rows == 0) return;
  const int64_t first = between(0, static_cast<int>(rows) - 1);
  const DsparkIds its{routed ? at(ids.data, first * slots * ids.size) : nullptr, ids.size};
  const void* row = at(x.data, first * in * static_cast<int64_t>(dspark_type_size(type)));
  same_alone(name, outputs[0], first, 1, out, dspark_experts_scratch_bytes(&up, &down, 1, slots, activation),
             [&](void* part, void* memory) {
               dspark_experts(row, type, 1, slots, &up, &down, its, routed ? weights + first * slots : nullptr, part,
                              activation, memory);
             });
}

void fuzz_moe() { fuzz_layers_of(true); }
void fuzz_mlp() { fuzz_layers_of(false); }

void fuzz_markov() {
  Buffers b;
  Outputs outputs;
  MarkovWalk job{};
  job.rows = between(1, 8), job.vocab = between(1, 300), job.rank = between(1, 70);
  job.logits = b.floats(job.rows * job.vocab), job.in_type = chance(2) ? DSPARK_F32 : DSPARK_BF16;
  job.in = b.tensor(job.vocab * job.rank, job.in_type).data;
  job.out = matrix(b, DSPARK_DENSE, 0, 1, job.vocab, job.rank), job.first = between(0, static_cast<int>(job.vocab) - 1);
  job.picks = static_cast<int32_t*>(output(b, outputs, static_cast<size_t>(job.rows), DSPARK_F32).data);
  job.margins = static_cast<float*>(output(b, outputs, static_cast<size_t>(job.rows), DSPARK_F32).data);
  compare("markov", outputs, [&] { return markov_walk_scratch_bytes(job); },
          [&](void* memory) { markov_walk(job, memory); });
  for (int64_t i = 0; i < job.rows; ++i) {
    if (job.picks[i] < 0 || job.picks[i] >= job.vocab) differs("markov", "a pick out of range");
    if (job.margins[i] < 0) differs("markov", "a negative margin");
  }
}

// An id out of range is refused, wherever it stands and however far out it is.
void fuzz_bad_ids() {
  Buffers b;
  const int experts = between(1, 5), slots = between(1, 4), rows = between(1, 9);
  const DsparkMatrix up = matrix(b, DSPARK_AFFINE4, 64, experts, 64, 64);
  const DsparkMatrix down = matrix(b, DSPARK_AFFINE4, 64, experts, 8, 64);
  const DsparkIds ids = any_ids(b, rows * slots, experts);
  const int64_t wrong[] = {experts, -1, INT32_MAX, INT32_MIN, ids.size == 8 ? INT64_MAX : experts,
                           ids.size == 8 ? INT64_MIN : -1};
  const int64_t bad = wrong[between(0, 5)];
  const int64_t place = between(0, rows * slots - 1);
  std::memcpy(const_cast<char*>(static_cast<const char*>(ids.data)) + place * ids.size, &bad,
              static_cast<size_t>(ids.size));
  const float* x = b.floats(rows * 64);
  const float* weights = b.floats(rows * slots);
  float* y = b.floats(rows * slots * 64);
  const auto memory = [&](size_t bytes) { return b.bytes(bytes); };
  if (dspark_gather(x, DSPARK_F32, rows, slots, false, &up, ids, y, DSPARK_I16,
                    memory(dspark_gather_scratch_bytes(&up, rows, slots, DSPARK_I16))) ||
      dspark_experts(x, DSPARK_F32, rows, slots, &up, &down, ids, weights, y, DSPARK_I16,
                     memory(dspark_experts_scratch_bytes(&up, &down, rows, slots, DSPARK_I16)))) {
    differs("bad ids", "an id out of range accepted");
  }
}

}  // namespace

int main(int count, char** words) {
  return fuzz_main(count, words,
                   {fuzz_product, fuzz_product, fuzz_gather, fuzz_moe, fuzz_mlp, fuzz_markov, fuzz_bad_ids});
}
