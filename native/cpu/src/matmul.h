// Products of rows with stored matrices, y = x W^T, as C functions: one matrix, matrices chosen per row (experts), and
// two-layer squared-ReLU MLPs of either. matmul.cpp implements them; ext_matmul.cpp makes MLX primitives of them.
//
// What holds for all of them:
// - A row's bits depend on that row, the matrix and the options alone: not on the other rows or how many there are,
//   not on threads, not on the instruction set.
// - Activations are used as DSPARK_I16 (quantised matrices only) or as float32. I16: each 64 consecutive inputs share
//   a power-of-two step, the largest of them filling 15 bits, and products of codes with them are summed exactly as
//   integers, scaled and accumulated in float32. An input's error is at most 2^-15 of the largest of its 64.
// - NaN and infinite inputs make exactly the results of their own row NaN or infinite, as float32 arithmetic would.
// - No memory is allocated. `scratch` has at least the bytes that the matching function asked for.
#pragma once

#include "kernels.h"

extern "C" {

enum DsparkFormat : int32_t {
  DSPARK_DENSE = 0,    // values of `type`, [out, in]
  DSPARK_AFFINE4 = 1,  // 4-bit codes, low nibble first; value = code * scale + bias; group 32, 64 or 128
  DSPARK_AFFINE8 = 2,  // 8-bit codes, the same
  DSPARK_NVFP4 = 3     // E2M1 codes, E4M3 scales of groups of 16, no biases
};

enum DsparkActivation : int32_t { DSPARK_I16 = 0, DSPARK_FP32 = 1 };

struct DsparkMatrix {
  DsparkFormat format;
  DsparkType type;  // dense: of the values; affine: of scales and biases; NVFP4: not used
  int32_t group;    // inputs a scale; dense: not used
  int64_t experts;  // 1, or how many [out, in] matrices follow each other
  int64_t out;
  int64_t in;          // a multiple of the group
  const void* values;  // codes or values
  const void* scales;  // [experts, out, in / group]
  const void* biases;  // the same
  float alpha;         // multiplies the float32 results
};

struct DsparkIds {
  const void* data;  // [rows, slots], integers
  int32_t size;      // bytes of one: 4 or 8
};

// y [rows, out] = x [rows, in] W^T. x and y are of type `type`.
size_t dspark_product_scratch_bytes(const DsparkMatrix* w, int64_t rows, DsparkActivation activation);
void dspark_product(const void* x, DsparkType type, int64_t rows, const DsparkMatrix* w, void* y,
                    DsparkActivation activation, void* scratch);

// y [rows, slots, out]: each slot's result of its own expert ids[row, slot], from x [rows, in] or, with `own_inputs`,
// from x [rows, slots, in]. Each expert's matrix is read once. False, and y undefined, if an id is out of range.
size_t dspark_gather_scratch_bytes(const DsparkMatrix* w, int64_t rows, int64_t slots, DsparkActivation activation);
bool dspark_gather(const void* x, DsparkType type, int64_t rows, int64_t slots, bool own_inputs, const DsparkMatrix* w,
                   DsparkIds ids, void* y, DsparkActivation activation, void* scratch);

// y [rows, out] = sum over slots s, in their order, of weights[row, s] * down_e(relu(up_e(x))^2), e = ids[row, s], in
// float32 throughout. With ids.data null it is the MLP of expert 0 and `weights` is not read; slots must be 1.
size_t dspark_experts_scratch_bytes(const DsparkMatrix* up, const DsparkMatrix* down, int64_t rows, int64_t slots,
                                    DsparkActivation activation);
bool dspark_experts(const void* x, DsparkType type, int64_t rows, int64_t slots, const DsparkMatrix* up,
                    const DsparkMatrix* down, DsparkIds ids, const float* weights, void* y, DsparkActivation activation,
                    void* scratch);

}  // extern "C"
