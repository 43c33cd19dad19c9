// The small layers between the matrix products: norms, Mamba-2, attention, routing, rope, activations, cache appends.
//
// All compute in float32 and keep one promise: the bits of an output row depend on that row's own inputs alone, not on
// how many rows came with it, on threads, or on the instruction set. Data is row-contiguous unless strides are given.
// `*_scratch_bytes` is the scratch memory that the function of the same name needs.
#pragma once

#include "kernels.h"

namespace dspark {

struct Tensor {  // elements of one of the three float types; null where optional and absent
  const void* data = nullptr;
  DsparkType type = DSPARK_F32;
};

struct MutableTensor {
  void* data = nullptr;
  DsparkType type = DSPARK_F32;
};

// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight; x [rows, size], weight [size] or null.
struct RmsNorm {
  Tensor x, weight;
  MutableTensor y;
  int64_t rows;
  int size;
  float eps;
};
void rms_norm(const RmsNorm& job);

// y = silu(x) * gated, or relu(x)^2 where `gated` is null.
struct Activation {
  Tensor x, gated;
  MutableTensor y;
  int64_t count;
};
void activate(const Activation& job);

// y = a + b.
struct Sum {
  Tensor a, b;
  MutableTensor y;
  int64_t count;
};
void add(const Sum& job);

// One Mamba-2 mixer between its projections. projected [tokens, inner + conv + heads] holds z | x, B, C | dt with
// inner = groups * heads * channels and conv = inner + 2 * groups * state_size; window [taps - 1, conv] are the conv
// inputs before it. `y` null: only the state and the window move, to the same bits.
struct Mamba {
  Tensor projected, window, conv_weight, conv_bias, norm;  // conv_weight [taps, conv], conv_bias [conv] or null
  const float* state;                                      // [groups, heads, channels, state_size]
  const float *a, *d, *dt_bias;                            // [groups * heads]
  MutableTensor y;                                         // [tokens, inner]
  void* window_out;
  float* state_out;
  int tokens, taps, groups, heads, channels, state_size;  // heads: of one group
  float eps, dt_min, dt_max;

  [[gnu::always_inline]] int all_heads() const { return groups * heads; }
  [[gnu::always_inline]] int inner() const { return groups * heads * channels; }
  [[gnu::always_inline]] int conv_size() const { return inner() + 2 * groups * state_size; }
  [[gnu::always_inline]] int width() const { return inner() + conv_size() + all_heads(); }
};
inline constexpr int mamba_max_taps = 16;
inline constexpr int mamba_span = 64;  // tokens that pass through conv, walk and norm together
size_t mamba_scratch_bytes(const Mamba& job);
void mamba(const Mamba& job, void* scratch);
// Independent ones, each with its scratch memory: side by side where there are enough of them.
struct MambaTask {
  Mamba job;
  void* scratch;
};
void mamba_all(const MambaTask* tasks, int count);

// Attention of the newest `rows` of `length` positions: q, out [rows, heads, dim]. A key row at position j of kv head h
// starts at element h * head_stride + j * row_stride. Row t sees the positions up to its own, the last `window` of
// them where window > 0; a sink is one more logit of the softmax, without a value.
struct Attend {
  Tensor q, keys, values, sinks;
  MutableTensor out;
  int64_t key_head_stride, key_row_stride, value_head_stride, value_row_stride;
  int rows, heads, kv_heads, dim, length, window;
  float scale;
  bool split;  // spans of keys are tasks of their own

  [[gnu::always_inline]] int group() const { return heads / kv_heads; }
};
inline constexpr int attend_max_dim = 256;
inline constexpr int attend_block = 64;  // keys between two rescalings of the running softmax
inline constexpr int attend_span = 512;  // keys of one partial softmax; spans merge in ascending order
inline constexpr int attend_chunk = 64;  // query rows of one kv head that share a reading of the keys
bool attend_should_split(const Attend& job);
size_t attend_scratch_bytes(const Attend& job);
void attend(const Attend& job, void* scratch);

// The `top` experts of each row by sigmoid(x gate^T) + correction, best first, ties to the lower index, and their
// weights. With groups > 1, experts outside the `top_groups` groups whose two best sum highest rank at zero.
struct Route {
  Tensor x;                        // [rows, size]
  const float *gate, *correction;  // [experts, size], [experts]
  uint32_t* ids;                   // [rows, top]
  float* weights;
  int rows, size, experts, top, groups, top_groups;
  float scale;
  bool normalize;
};
size_t route_scratch_bytes(const Route& job);
void route(const Route& job, void* scratch);

// Per head: RMS norm (weight null: none), then rotation of the pairs (i, i + dim / 2) by position * theta^(-2i / dim).
struct HeadNormRope {
  Tensor x, weight;  // [rows, heads, dim], [dim]
  MutableTensor y;
  int rows, heads, dim;
  float eps;
  double theta;
  int64_t position;  // of row 0
  bool rotate;
};
inline constexpr int rope_max_dim = 512;
void head_norm_rope(const HeadNormRope& job);

// Copies rows [count, kv_heads, row_bytes] into a cache [kv_heads, capacity, row_bytes], from position `offset` on.
struct Append {
  const char* rows;
  char* cache;
  int64_t count, kv_heads, capacity, offset;
  size_t row_bytes;
};
void append(const Append& job);

// The inner loops, once per instruction set. Ranges are half open.
struct LayerKernels {
  void (*rms_norm)(const RmsNorm&, int64_t row, int64_t end);
  void (*activate)(const Activation&, int64_t begin, int64_t end);
  void (*add)(const Sum&, int64_t begin, int64_t end);
  // Mamba: `first` is the first token of a span of `count`; scratch arrays are described in layers_mamba.h.
  void (*mamba_steps)(const Mamba&, int first, int count, float* dt, float* decay);
  void (*mamba_conv)(const Mamba&, int first, int count, int channel, int end, float* u);
  void (*mamba_walk)(const Mamba&, int first, int count, int head, int channel, int end, const float* u,
                     const float* dt, const float* decay, float* y);
  void (*mamba_norm)(const Mamba&, int first, int count, int group, const float* y);
  // Attention: rows [row, end) of kv head `head`, counted as token * group + head within the group.
  void (*attend_partial)(const Attend&, int head, int row, int end, int span, float* partial);
  void (*attend_start)(const Attend&, int head, int row, int end, float* running);
  void (*attend_merge)(const Attend&, int rows, const float* partial, float* running);
  void (*attend_finish)(const Attend&, int head, int row, int end, const float* running);
  void (*route_scores)(const Route&, const float* x, int expert, int end, float* scores);
  const float* (*widen)(const Tensor&, int64_t count, float* into);
  void (*head_norm_rope)(const HeadNormRope&, const double* frequencies, int row, int end);
};
extern const LayerKernels layers_portable;
#if defined(__x86_64__)
extern const LayerKernels layers_avx2;
#endif

}  // namespace dspark
