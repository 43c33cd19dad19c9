// What the files that wrap the layer kernels (ext_layers.cpp, ext_mamba.cpp) share: checks in words, and a primitive that
// holds a kernel's job.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common.h"
#include "layers.h"

namespace dspark {

using Optional = std::optional<mx::array>;
using Arrays = std::vector<mx::array>;

// Checks come before building messages: a graph is built anew for every token.
[[noreturn]] inline void refuse(const std::string& why) { throw std::invalid_argument(why); }

inline std::string text(int64_t number) { return std::to_string(number); }

inline void require_shape(const mx::array& a, const mx::Shape& shape, const char* name) {
  if (a.shape() == shape) return;
  std::string wanted;
  for (int size : shape) wanted += (wanted.empty() ? "" : ", ") + text(size);
  refuse(std::string(name) + " must be [" + wanted + "], is " + describe(a));
}

inline void require_float32(const mx::array& a, const mx::Shape& shape, const char* name) {
  if (a.dtype() != mx::float32) refuse(std::string(name) + " must be float32, is " + describe(a));
  require_shape(a, shape, name);
}

inline void require_weight(const mx::array& a, const mx::Shape& shape, const char* name) {
  require_float(a, name);
  require_shape(a, shape, name);
}

inline void require_ndim(const mx::array& a, size_t ndim, const char* name, const char* layout) {
  if (a.ndim() != ndim || a.size() == 0)
    refuse(std::string(name) + " must be " + layout + ", not empty, is " + describe(a));
}

inline void require_same_type(const mx::array& a, const mx::array& b, const char* names) {
  if (a.dtype() != b.dtype())
    refuse(std::string(names) + " must be of one type, are " + describe(a) + " and " + describe(b));
}

// name must be from least to most, is value.
inline void require_range(int64_t value, int64_t least, int64_t most, const char* name, const char* least_is,
                   const char* most_is) {
  if (value >= least && value <= most) return;
  refuse(std::string(name) + " must be from " + least_is + " to " + most_is + " (" + text(most) + "), is " +
         text(value));
}

// A primitive that fills in a kernel's job and runs it.
template <typename Job>
class Layer : public CpuPrimitive {
 public:
  Layer(mx::Stream stream, Job job) : CpuPrimitive(stream), job_(job) {}

 protected:
  Tensor tensor(const mx::array& in) { return {rows(in), type_of(in)}; }
  MutableTensor output(mx::array& out) { return {make(out), type_of(out)}; }

  Job job_;
};

template <typename P, typename Job>
mx::array one(mx::Shape shape, mx::Dtype dtype, Job job, Arrays inputs) {
  return mx::array(std::move(shape), dtype, std::make_shared<P>(cpu_stream(), job), std::move(inputs));
}

}  // namespace dspark
