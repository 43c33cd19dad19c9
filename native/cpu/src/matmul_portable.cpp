// The product kernels in plain C++.
#include "lanes_portable.h"
// lanes first
#include "matmul_lanes.h"

namespace dspark {

const MatmulKernels matmul_portable = {i16_rows, float_rows, prepare, columns, weighted_sum};

}  // namespace dspark
