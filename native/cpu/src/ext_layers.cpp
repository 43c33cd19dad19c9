// Small layers as MLX primitives.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_layers(nb::module_&) {}
