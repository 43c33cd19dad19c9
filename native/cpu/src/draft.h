// A block drafter's layers over packed rows and the context rows they attend to, put together from the other kernels.
// What they compute is said by mlx_dspark/ops/draft.py; every step rounds to the activations' type, as its ops do.
#pragma once

#include <vector>

#include "layers.h"
#include "matmul.h"

namespace dspark {

struct DraftLayer {
  Tensor input_norm, post_norm, q_norm, k_norm, sinks;
  DsparkMatrix q, k, v, o, gate, up, down;
};

struct DraftForm {
  int size, heads, kv_heads, dim, window;
  float eps, scale;
  double theta;
  DsparkType type;  // of the activations and the context
};

// One sequence's slots: `rows` of the packed ones, row 0 at `position`, behind rows [begin, end) of its context.
struct DraftSpan {
  const char* context;  // [layers, 2 (keys, values), kv_heads, capacity, dim]
  int capacity, begin, end, rows;
  int64_t position;
};

// y [rows, size]: the packed rows x [rows, size] after all layers.
struct DraftBlock {
  DraftForm form;
  const std::vector<DraftLayer>* layers;
  std::vector<DraftSpan> spans;
  const void* x;
  void* y;

  int rows() const {
    int count = 0;
    for (const DraftSpan& span : spans) count += span.rows;
    return count;
  }
};
size_t draft_block_scratch_bytes(const DraftBlock& job);
void draft_block(const DraftBlock& job, void* scratch);

// Keys and values of each layer for rows x [count, size], the first at `position`, put into the context from `at` on.
struct DraftContext {
  DraftForm form;
  const std::vector<DraftLayer>* layers;
  const void* x;
  char* context;
  int capacity, count, at;
  int64_t position;
};
size_t draft_context_scratch_bytes(const DraftContext& job);
void draft_context(const DraftContext& job, void* scratch);

}  // namespace dspark
