// Rows of a table by token id, with the bits of mlx.core.dequantize where the table is packed.
#pragma once

#include "matmul.h"

namespace dspark {

struct Embed {
  DsparkMatrix table;  // dense or affine, of float32 or bfloat16 (affine: its scales)
  const int32_t* ids;
  int64_t count;
  void* y;  // [count, table.in], of table.type
};

// False, and y undefined, if an id is out of range.
bool embed(const Embed& job);

}  // namespace dspark
