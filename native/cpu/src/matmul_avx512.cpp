// The product kernels for AVX-512 with VNNI.
#include "lanes_avx2.h"
// lanes first
#include "matmul_lanes.h"

namespace dspark {

const MatmulKernels matmul_avx512 = {i16_rows, float_rows, prepare, columns, weighted_sum};

}  // namespace dspark
