// The Python module: settings, and what the ext_*.cpp files bind.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_matmul(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_mamba(nb::module_& m);
void bind_markov(nb::module_& m);
void bind_draft(nb::module_& m);

namespace {

void set_simd(const std::string& name) {
  if (!dspark::set_simd(name.c_str())) {
    throw std::invalid_argument("simd must be 'auto', 'portable' or, on a CPU that has it, 'avx2' or 'avx512'; is '" +
                                name + "'");
  }
}

std::vector<std::string> simd_built() {
  std::vector<std::string> names;
  for (dspark::Simd level : {dspark::Simd::portable, dspark::Simd::avx2, dspark::Simd::avx512}) {
    if (dspark::simd_built(level)) names.push_back(dspark::simd_name(level));
  }
  return names;
}

// Sums i * i over `tasks` tasks through the pool: a probe for tests. With `nested`, each task runs a loop of its own.
long long pool_probe(int tasks, bool nested) {
  std::atomic<long long> sum{0};
  dspark::parallel_for(tasks, 1e9, [&](int i) {
    if (!nested) {
      sum += static_cast<long long>(i) * i;
    } else {
      dspark::parallel_for(i, 1e9, [&](int) { sum += i; });
    }
  });
  return sum;
}

}  // namespace

NB_MODULE(_ext, m) {
  nb::set_leak_warnings(false);
  m.def("set_simd", &set_simd, "name"_a,
        "Use 'auto', 'avx512', 'avx2' or 'portable' code from now on, for tests and benchmarks.");
  m.def("set_threads", &dspark::set_threads, "count"_a,
        "Threads a kernel may use; 0 returns to what the process may use.");
  m.def("_simd", [] { return std::string(dspark::simd_name(dspark::simd())); });
  m.def("_simd_built", &simd_built);
  m.def("_threads", &dspark::threads);
  m.def("_allowed_threads", &dspark::allowed_threads);
  m.def("_pool_probe", &pool_probe, "tasks"_a, "nested"_a = false, nb::call_guard<nb::gil_scoped_release>());
  bind_matmul(m);
  bind_layers(m);
  bind_mamba(m);
  bind_markov(m);
  bind_draft(m);
}
