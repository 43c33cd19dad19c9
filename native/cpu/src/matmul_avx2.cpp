// The product kernels for AVX2, FMA and F16C.
#include "lanes_avx2.h"
// lanes first
#include "matmul_lanes.h"

namespace dspark {

const MatmulKernels matmul_avx2 = {i16_rows, float_rows, prepare, columns, weighted_sum};

}  // namespace dspark
