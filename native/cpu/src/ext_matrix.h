// Matrices as Python passes them to the primitives: checks, and what a primitive keeps of them.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "common.h"
#include "matmul.h"

namespace dspark {

namespace nb = nanobind;
using Optional = std::optional<mx::array>;

// ValueError with message() unless it holds; messages cost more than the checks, so they are made only then.
template <typename Message>
void check(bool holds, Message&& message) {
  if (!holds) throw std::invalid_argument(message());
}

inline std::string text(int64_t number) { return std::to_string(number); }

// How a matrix was quantised, as Python says it; bits 0 means dense.
struct Quantization {
  int group;
  int bits;
  std::string mode;
};

// A matrix as a primitive keeps it: what it is, and its arrays (values, scales, biases), which are inputs of the graph.
struct Matrix {
  DsparkMatrix about;
  std::vector<mx::array> arrays;
};

inline DsparkFormat format_of(const char* name, const Quantization& q) {
  if (q.mode == "nvfp4") {
    check(q.bits == 4 && q.group == 16, [&] { return std::string(name) + ": nvfp4 has bits 4 and group_size 16"; });
    return DSPARK_NVFP4;
  }
  check(q.mode == "affine", [&] { return std::string(name) + ": mode is affine or nvfp4, not '" + q.mode + "'"; });
  check(q.bits == 4 || q.bits == 8, [&] { return std::string(name) + ": bits is 4 or 8, not " + text(q.bits); });
  check(q.group == 32 || q.group == 64 || q.group == 128,
          [&] { return std::string(name) + ": group_size is 32, 64 or 128, not " + text(q.group); });
  return q.bits == 4 ? DSPARK_AFFINE4 : DSPARK_AFFINE8;
}

// `axes` is 2, or 3 where a matrix for each expert is stacked.
inline void check_axes(const char* name, const mx::array& w, int axes) {
  check(static_cast<int>(w.ndim()) == axes && w.size() > 0,
          [&] { return std::string(name) + " must have " + text(axes) + " axes, none empty; is " + describe(w); });
}

inline Matrix dense_matrix(const char* name, const mx::array& w, int axes, double alpha) {
  check_axes(name, w, axes);
  require_float(w, name);
  return {{DSPARK_DENSE, type_of(w), 0, axes == 3 ? w.shape(0) : 1, w.shape(-2), w.shape(-1), nullptr, nullptr,
           nullptr, static_cast<float>(alpha)},
          {w}};
}

// Scales or biases: one for each group of each row of w.
inline void check_groups(const char* name, const char* what, const mx::array& a, const mx::array& w, int groups) {
  bool same = a.ndim() == w.ndim() && a.shape(-1) == groups;
  for (int i = 0; same && i + 1 < static_cast<int>(w.ndim()); ++i) same = a.shape(i) == w.shape(i);
  check(same, [&] {
    return std::string(name) + " " + what + " must have w's shape with " + text(groups) + " groups last, w is " +
           describe(w) + ", they are " + describe(a);
  });
}

inline Matrix quantized_matrix(const char* name, const mx::array& w, const mx::array& scales, const Optional& biases,
                        const Quantization& q, int axes, double alpha) {
  const DsparkFormat format = format_of(name, q);
  check_axes(name, w, axes);
  check(w.dtype() == mx::uint32, [&] { return std::string(name) + " must be uint32 codes, is " + describe(w); });
  const int in = w.shape(-1) * (32 / q.bits);
  check(in % q.group == 0, [&] {
    return std::string(name) + ": " + text(in) + " inputs are not a multiple of group_size " + text(q.group);
  });
  check_groups(name, "scales", scales, w, in / q.group);
  Matrix matrix{{format, DSPARK_F32, q.group, axes == 3 ? w.shape(0) : 1, w.shape(-2), in, nullptr, nullptr, nullptr,
                 static_cast<float>(alpha)},
                {w, scales}};
  if (format == DSPARK_NVFP4) {
    check(scales.dtype() == mx::uint8,
            [&] { return std::string(name) + " scales must be uint8 (E4M3), are " + describe(scales); });
    check(!biases, [&] { return std::string(name) + ": nvfp4 has no biases"; });
    return matrix;
  }
  require_float(scales, "scales");
  check(biases.has_value(), [&] { return std::string(name) + ": affine codes need biases"; });
  check_groups(name, "biases", *biases, w, in / q.group);
  check(biases->dtype() == scales.dtype(),
          [&] { return std::string(name) + " biases must have the scales' dtype, are " + describe(*biases); });
  matrix.about.type = type_of(scales);
  matrix.arrays.push_back(*biases);
  return matrix;
}

// An array, or a sequence (w, scales) or (w, scales, biases).
inline Matrix any_matrix(const char* name, nb::handle given, const Quantization& q, int axes, double alpha) {
  if (nb::isinstance<mx::array>(given)) return dense_matrix(name, nb::cast<mx::array>(given), axes, alpha);
  check(PySequence_Check(given.ptr()) && (nb::len(given) == 2 || nb::len(given) == 3),
          [&] { return std::string(name) + " must be an array or a sequence (w, scales, biases)"; });
  const auto part = [&](int i) { return nb::cast<mx::array>(given[i]); };
  Optional biases;
  if (nb::len(given) == 3 && !nb::object(given[2]).is_none()) biases = part(2);
  return quantized_matrix(name, part(0), part(1), biases, q, axes, alpha);
}

}  // namespace dspark
