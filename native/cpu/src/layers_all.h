// The whole of the layer kernels for one instruction set, and their table. Included once by each layers_<set>.cpp,
// which defines LAYER_TABLE, the table's name.
#include "layers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#pragma GCC diagnostic ignored "-Wpsabi"  // vector arguments: every such function is inlined

namespace dspark {
namespace {
#include "layers_simd.h"
//
#include "layers_norm.h"
//
#include "layers_attention.h"
#include "layers_mamba.h"
#include "layers_route.h"

const float* widen_tensor(const Tensor& from, int64_t count, float* into) {
  return widen(from.data, from.type, 0, count, into);
}
}  // namespace

const LayerKernels LAYER_TABLE = {rms_norm,       activate,     add,          mamba_steps,  mamba_conv,
                                  mamba_walk,     mamba_norm,   attend_partial, attend_start, attend_merge,
                                  attend_finish,  route_scores, widen_tensor, head_norm_rope};
}  // namespace dspark
