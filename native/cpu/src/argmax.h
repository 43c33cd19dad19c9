// The first of the largest numbers of each row; a number that is none is never it, unless there is no other.
#pragma once

#include "kernels.h"

namespace dspark {

struct Argmax {
  const void* x;  // [rows, size], float32 or bfloat16
  DsparkType type;
  int64_t rows, size;
  int32_t* picks;  // [rows]
};
void argmax(const Argmax& job);

}  // namespace dspark
