#include "markov.h"

#include <cstring>

#include "arena.h"

namespace dspark {
namespace {

struct Memory {
  float* row;   // [rank]
  float* bias;  // [vocab]
  void* product;
  size_t bytes;

  Memory(const MarkovWalk& job, void* block) {
    Arena arena(block);
    row = arena.take<float>(job.rank);
    bias = arena.take<float>(job.vocab);
    product = arena.take<uint8_t>(
        static_cast<int64_t>(dspark_product_scratch_bytes(&job.out, 1, DSPARK_FP32)));
    bytes = arena.bytes();
  }
};

void widen_row(const MarkovWalk& job, int64_t token, float* row) {
  if (job.in_type == DSPARK_F32) {
    std::memcpy(row, static_cast<const float*>(job.in) + token * job.rank, static_cast<size_t>(job.rank) * 4);
    return;
  }
  const uint16_t* halves = static_cast<const uint16_t*>(job.in) + token * job.rank;
  for (int64_t i = 0; i < job.rank; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    std::memcpy(row + i, &bits, 4);
  }
}

// Keeps the two largest of what it is shown; a number that is none is neither.
struct TwoLargest {
  float most = -__builtin_inff(), next = -__builtin_inff();

  void show(float value) {
    const float less = value > most ? most : value;
    next = less > next ? less : next;
    most = value > most ? value : most;
  }
};

// The first place of the largest sum, 0 if none compares larger than minus infinity, and its lead over the next.
int32_t likeliest(const float* logits, float* bias, int64_t vocab, float& margin) {
  constexpr int lanes = 16;
  TwoLargest lane[lanes], two;
  int64_t i = 0;
  for (; i + lanes <= vocab; i += lanes) {
    for (int j = 0; j < lanes; ++j) lane[j].show(bias[i + j] += logits[i + j]);
  }
  for (; i < vocab; ++i) two.show(bias[i] += logits[i]);
  for (const TwoLargest& l : lane) {
    two.show(l.most);
    two.show(l.next);
  }
  const float top = two.most;
  margin = top - two.next;
  for (i = 0; i < vocab; ++i) {
    if (bias[i] == top) return static_cast<int32_t>(i);
  }
  return 0;
}

}  // namespace

size_t markov_walk_scratch_bytes(const MarkovWalk& job) { return Memory(job, nullptr).bytes; }

void markov_walk(const MarkovWalk& job, void* scratch) {
  const Memory memory(job, scratch);
  int32_t previous = job.first;
  for (int64_t i = 0; i < job.rows; ++i) {
    widen_row(job, previous, memory.row);
    dspark_product(memory.row, DSPARK_F32, 1, &job.out, memory.bias, DSPARK_FP32, memory.product);
    previous = job.picks[i] = likeliest(job.logits + i * job.vocab, memory.bias, job.vocab, job.margins[i]);
  }
}

}  // namespace dspark
