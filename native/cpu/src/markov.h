// A chain of greedy picks: row i of some logits gets a bias that depends on the pick before it, and the likeliest token
// is picked.
#pragma once

#include "matmul.h"

namespace dspark {

// picks[i] = argmax(logits[i] + out in[previous]), previous = `first` or picks[i - 1]; margins[i] is that sum less the
// next largest. The first of equals wins, by nothing.
struct MarkovWalk {
  const float* logits;  // [rows, vocab]
  int64_t rows, vocab, rank;
  const void* in;     // [vocab, rank]
  DsparkType in_type;  // float32 or bfloat16
  DsparkMatrix out;    // dense, [vocab, rank]
  int32_t first;       // in [0, vocab)
  int32_t* picks;      // [rows]
  float* margins;      // [rows]
};
size_t markov_walk_scratch_bytes(const MarkovWalk& job);
void markov_walk(const MarkovWalk& job, void* scratch);

}  // namespace dspark
