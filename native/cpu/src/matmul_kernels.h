// Between matmul.cpp, which plans and splits a product, and the kernels, which are compiled once per instruction set.
#pragma once

#include "matmul.h"

namespace dspark {

inline constexpr int max_tile_rows = 8;

// One [out, in] matrix. Inputs are taken in blocks: of 64 (quantised) or 16 (dense); the last may be shorter.
struct Weights {
  DsparkFormat format;
  DsparkType type;
  int group;
  DsparkActivation activation;
  int64_t out;
  int64_t in;
  int64_t blocks;
  const uint8_t* values;
  const uint8_t* scales;
  const uint8_t* biases;
  int64_t value_bytes;  // of one output row
  int64_t scale_bytes;
  float alpha;
};

// How prepared rows lie in memory. `steps` and `sums` are padded to multiples of 8 with zeros.
struct Layout {
  int64_t blocks;
  int scales_per_block;  // 1, 2 or 4: a group of 128 counts as two of 64
  int64_t value_bytes;   // of one row: int16 or float, blocks * (64 or 16) of them
  int64_t steps;         // of one row: the power-of-two step of each block (I16 only)
  int64_t sums;          // of one row: the inputs' sum for each scale, what the biases multiply (affine only)
};

// Up to max_tile_rows rows prepared for one matrix: values [blocks, rows, 64 or 16], steps [rows, ..], sums [rows, ..].
// `rest_*` (I16 only, the same but values [rows, blocks, 64]) is what a row's integers leave of its inputs where a large
// one makes the step too coarse for the others: blocks [rest_first, rest_last), none if rest_last is 0.
struct Tile {
  int rows;
  DsparkType input_type;
  void* values;
  float* steps;
  float* sums;
  void* rest_values;
  float* rest_steps;
  float* rest_sums;
  int64_t rest_first[max_tile_rows];
  int64_t rest_last[max_tile_rows];
  const void* input[max_tile_rows];
  bool nonfinite[max_tile_rows];  // some block holds NaN or infinity: it is prepared as zeros and added later
  int64_t output[max_tile_rows];  // row of the result
};

struct Result {
  void* data;  // [.., out]
  DsparkType type;
  int64_t out;
  bool relu2;  // store relu(y)^2
};

struct MatmulKernels {
  // The most rows a tile may have for quantised weights on I16 activations, and for everything else.
  int i16_rows;
  int float_rows;
  // Prepares row `m` of `tile` from tile.input[m] and sets tile.nonfinite[m].
  void (*prepare)(const Weights& w, const Layout& layout, Tile& tile, int m);
  // Results of output columns [first, last) for all rows of the tiles; `first` is a multiple of 8.
  void (*columns)(const Weights& w, const Layout& layout, const Tile* tiles, int64_t tile_count, int64_t first,
                  int64_t last, const Result& result);
  // y[i] = sum over s of weights[s] * parts[s * stride + i], for i in [first, last).
  void (*weighted_sum)(const float* parts, int64_t stride, const float* weights, int64_t slots, void* y,
                       DsparkType type, int64_t first, int64_t last);
};

extern const MatmulKernels matmul_portable, matmul_avx2, matmul_avx512;

// y[c] += the product of the blocks of `x` that hold NaN or infinity with row column + c of the matrix, for c < count;
// in plain float32, in order. Slow, and compiled once, so every instruction set has its bits.
void add_nonfinite(const Weights& w, const void* x, DsparkType type, int64_t column, int count, float* y);

}  // namespace dspark
