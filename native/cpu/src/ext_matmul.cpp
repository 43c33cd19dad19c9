// Matrix products as MLX primitives.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_matmul(nb::module_&) {}
