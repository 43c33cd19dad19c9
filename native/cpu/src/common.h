// Helpers for the files that wrap kernels as MLX primitives (ext_*.cpp). Knows MLX; knows no kernel.
#pragma once

#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels.h"
#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"

namespace dspark {

namespace mx = mlx::core;

// ValueError in Python.
inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

inline std::string describe(const mx::array& a) {
  std::ostringstream text;
  text << "[";
  for (int i = 0; i < static_cast<int>(a.ndim()); ++i) text << (i ? ", " : "") << a.shape(i);
  text << "] " << a.dtype();
  return text.str();
}

inline bool is_float(const mx::array& a) {
  return a.dtype() == mx::float32 || a.dtype() == mx::bfloat16 || a.dtype() == mx::float16;
}

inline void require_float(const mx::array& a, std::string_view name) {
  if (!is_float(a)) require(false, std::string(name) + " must be float32, bfloat16 or float16, is " + describe(a));
}

inline DsparkType type_of(const mx::array& a) {
  if (a.dtype() == mx::float32) return DSPARK_F32;
  return a.dtype() == mx::bfloat16 ? DSPARK_BF16 : DSPARK_F16;
}

inline mx::Stream cpu_stream() { return mx::default_stream(mx::Device(mx::Device::cpu)); }

// A primitive that only runs on the CPU. A subclass implements eval_cpu: it makes the outputs with `make`, gets its
// inputs' data with `rows`, scratch memory with `scratch`, and dispatches one callable that runs the kernel.
class CpuPrimitive : public mx::Primitive {
 public:
  using Primitive::Primitive;

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU only");
  }

 protected:
  mx::cpu::CommandEncoder& encoder() { return mx::cpu::get_command_encoder(stream()); }

  // Gives an output its memory; the pointer is valid when the dispatched callable runs. Aligned to cache lines: MLX's
  // own allocations lie 8 bytes past a multiple of 16, where every other vector store crosses two lines.
  template <typename T = void>
  static T* make(mx::array& out) {
    constexpr size_t line = 64;
    mx::allocator::Data data = mx::allocator::malloc(out.nbytes() + line);
    const size_t past = reinterpret_cast<uintptr_t>(data.buffer().raw_ptr()) % line, size = out.size();
    bool column = size <= 1;
    for (int length : out.shape()) column = column || static_cast<size_t>(length) == size;
    const mx::array::Flags flags{true, true, column};
    out.set_data(std::move(data), size, out.strides(), flags, static_cast<int64_t>((line - past) % line));
    return out.data<T>();
  }

  // An input's elements in row order. Strided inputs are copied first, on the stream.
  template <typename T = void>
  const T* rows(const mx::array& in) {
    if (in.flags().row_contiguous || in.size() == 0) return in.data<T>();
    mx::array copy(in.shape(), in.dtype(), nullptr, {});
    char* to = static_cast<char*>(make(copy));
    const char* from = static_cast<const char*>(in.data<void>());
    encoder().add_temporary(copy);
    encoder().dispatch([from, to, shape = in.shape(), strides = in.strides(), size = in.itemsize()] {
      copy_strided(from, to, shape, strides, size, 0);
    });
    return reinterpret_cast<const T*>(to);
  }

  // Memory that lives until the work dispatched so far is done. Aligned to cache lines.
  void* scratch(size_t bytes) {
    const int count = static_cast<int>((bytes + 15) / 16);
    mx::array memory({count, 4}, mx::float32, nullptr, {});
    void* data = make(memory);
    encoder().add_temporary(memory);
    return data;
  }

 private:
  static char* copy_strided(const char* from, char* to, const mx::Shape& shape, const mx::Strides& strides, size_t size,
                            size_t axis) {
    if (axis == shape.size()) {
      std::memcpy(to, from, size);
      return to + size;
    }
    for (int i = 0; i < shape[axis]; ++i) {
      to = copy_strided(from + i * strides[axis] * static_cast<int64_t>(size), to, shape, strides, size, axis + 1);
    }
    return to;
  }
};

}  // namespace dspark
