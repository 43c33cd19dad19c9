// Matrix products as MLX primitives: checks what Python passes and hands it to matmul.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "embed.h"
#include "ext_matrix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dspark {
namespace {

DsparkActivation activation_of(const std::string& name) {
  check(name == "i16" || name == "fp32", [&] { return "activation is i16 or fp32, not '" + name + "'"; });
  return name == "i16" ? DSPARK_I16 : DSPARK_FP32;
}

void check_input(const mx::array& x, int64_t in, const char* shape) {
  require_float(x, "x");
  check(x.ndim() >= 1 && x.shape(-1) == in,
          [&] { return std::string("x must be ") + shape + " with " + text(in) + " inputs, is " + describe(x); });
}

// Ids as the kernels read them: 4 or 8 bytes.
mx::array checked_ids(const mx::array& ids, mx::Stream stream) {
  check(mx::issubdtype(ids.dtype(), mx::integer) && ids.ndim() == 2,
          [&] { return "ids must be integers [rows, slots], are " + describe(ids); });
  return ids.itemsize() >= 4 ? ids : mx::astype(ids, mx::int32, stream);
}

class MatmulPrimitive : public CpuPrimitive {
 protected:
  using CpuPrimitive::CpuPrimitive;

  // The matrix with its pointers set, from the inputs at `first`.
  DsparkMatrix held(DsparkMatrix about, const std::vector<mx::array>& inputs, size_t first) {
    about.values = rows(inputs[first]);
    if (about.format != DSPARK_DENSE) about.scales = rows(inputs[first + 1]);
    if (about.format == DSPARK_AFFINE4 || about.format == DSPARK_AFFINE8) about.biases = rows(inputs[first + 2]);
    return about;
  }

  static void check_ids(bool in_range, int64_t experts) {
    if (!in_range) throw std::out_of_range("ids must be in [0, " + std::to_string(experts) + ")");
  }
};

class Product : public MatmulPrimitive {
 public:
  Product(mx::Stream stream, const DsparkMatrix& w, DsparkActivation activation)
      : MatmulPrimitive(stream), w_(w), activation_(activation) {}

  const char* name() const override { return "DsparkProduct"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    const void* x = rows(in[0]);
    const DsparkMatrix w = held(w_, in, 1);
    const int64_t count = in[0].size() / w.in;
    void* y = make(out[0]);
    void* memory = scratch(dspark_product_scratch_bytes(&w, count, activation_));
    encoder().dispatch([=, type = type_of(in[0]), activation = activation_] {
      dspark_product(x, type, count, &w, y, activation, memory);
    });
  }

 private:
  DsparkMatrix w_;
  DsparkActivation activation_;
};

class Gather : public MatmulPrimitive {
 public:
  Gather(mx::Stream stream, const DsparkMatrix& w, DsparkActivation activation)
      : MatmulPrimitive(stream), w_(w), activation_(activation) {}

  const char* name() const override { return "DsparkGather"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    const void* x = rows(in[0]);
    const DsparkIds ids{rows(in[1]), static_cast<int32_t>(in[1].itemsize())};
    const DsparkMatrix w = held(w_, in, 2);
    const int64_t count = in[1].shape(0), slots = in[1].shape(1);
    const bool own_inputs = slots > 1 && in[0].shape(1) == slots;
    void* y = make(out[0]);
    void* memory = scratch(dspark_gather_scratch_bytes(&w, count, slots, activation_));
    encoder().dispatch([=, type = type_of(in[0]), activation = activation_] {
      check_ids(dspark_gather(x, type, count, slots, own_inputs, &w, ids, y, activation, memory), w.experts);
    });
  }

 private:
  DsparkMatrix w_;
  DsparkActivation activation_;
};

class Experts : public MatmulPrimitive {
 public:
  Experts(mx::Stream stream, const Matrix& up, const Matrix& down, bool routed, DsparkActivation activation)
      : MatmulPrimitive(stream), up_(up.about), down_(down.about), up_arrays_(up.arrays.size()), routed_(routed),
        activation_(activation) {}

  const char* name() const override { return routed_ ? "DsparkExperts" : "DsparkMlp"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    const void* x = rows(in[0]);
    const DsparkMatrix up = held(up_, in, 1), down = held(down_, in, 1 + up_arrays_);
    const int64_t count = in[0].size() / up.in;
    DsparkIds ids{nullptr, 4};
    const float* weights = nullptr;
    int64_t slots = 1;
    if (routed_) {
      const mx::array& given = in[in.size() - 2];
      ids = {rows(given), static_cast<int32_t>(given.itemsize())};
      weights = rows<float>(in.back());
      slots = given.shape(1);
    }
    void* y = make(out[0]);
    void* memory = scratch(dspark_experts_scratch_bytes(&up, &down, count, slots, activation_));
    encoder().dispatch([=, type = type_of(in[0]), activation = activation_] {
      check_ids(dspark_experts(x, type, count, slots, &up, &down, ids, weights, y, activation, memory), up.experts);
    });
  }

 private:
  DsparkMatrix up_, down_;
  size_t up_arrays_;
  bool routed_;
  DsparkActivation activation_;
};

mx::array product(const mx::array& x, const Matrix& w, DsparkActivation activation) {
  check_input(x, w.about.in, "[.., in]");
  const mx::Stream stream = cpu_stream();
  mx::Shape shape = x.shape();
  shape.back() = static_cast<int>(w.about.out);
  if (x.size() == 0) return mx::zeros(shape, x.dtype(), stream);
  std::vector<mx::array> inputs{x};
  inputs.insert(inputs.end(), w.arrays.begin(), w.arrays.end());
  return mx::array(shape, x.dtype(), std::make_shared<Product>(stream, w.about, activation), std::move(inputs));
}

mx::array gather(const mx::array& x, const Matrix& w, const mx::array& given_ids, DsparkActivation activation) {
  check_input(x, w.about.in, "[rows, 1 or slots, in]");
  const mx::Stream stream = cpu_stream();
  const mx::array ids = checked_ids(given_ids, stream);
  check(x.ndim() == 3 && x.shape(0) == ids.shape(0) && (x.shape(1) == 1 || x.shape(1) == ids.shape(1)),
          [&] { return "x must be [rows, 1 or slots, in] for ids " + describe(ids) + ", is " + describe(x); });
  const mx::Shape shape{ids.shape(0), ids.shape(1), static_cast<int>(w.about.out)};
  if (ids.size() == 0) return mx::zeros(shape, x.dtype(), stream);
  std::vector<mx::array> inputs{x, ids};
  inputs.insert(inputs.end(), w.arrays.begin(), w.arrays.end());
  return mx::array(shape, x.dtype(), std::make_shared<Gather>(stream, w.about, activation), std::move(inputs));
}

void check_pair(const DsparkMatrix& up, const DsparkMatrix& down) {
  check(up.experts == down.experts && up.out == down.in, [&] {
    return "down must take the outputs of up: up has " + text(up.experts) + " experts of " + text(up.out) +
           " outputs, down " + text(down.experts) + " of " + text(down.in) + " inputs";
  });
}

mx::array two_layers(const mx::array& x, const Matrix& up, const Matrix& down, const std::vector<mx::array>& routing,
                     DsparkActivation activation) {
  check_pair(up.about, down.about);
  const mx::Stream stream = cpu_stream();
  mx::Shape shape = x.shape();
  shape.back() = static_cast<int>(down.about.out);
  if (x.size() == 0) return mx::zeros(shape, x.dtype(), stream);
  std::vector<mx::array> inputs{x};
  for (const auto* arrays : {&up.arrays, &down.arrays, &routing}) {
    inputs.insert(inputs.end(), arrays->begin(), arrays->end());
  }
  auto primitive = std::make_shared<Experts>(stream, up, down, !routing.empty(), activation);
  return mx::array(shape, x.dtype(), std::move(primitive), std::move(inputs));
}

mx::array qmm(const mx::array& x, const mx::array& w, const mx::array& scales, const Optional& biases, int group_size,
              int bits, const std::string& mode, const std::string& activation, double alpha) {
  return product(x, quantized_matrix("w", w, scales, biases, {group_size, bits, mode}, 2, alpha),
                 activation_of(activation));
}

mx::array gather_qmm(const mx::array& x, const mx::array& w, const mx::array& scales, const Optional& biases,
                     const mx::array& ids, int group_size, int bits, const std::string& mode,
                     const std::string& activation, double alpha) {
  return gather(x, quantized_matrix("w", w, scales, biases, {group_size, bits, mode}, 3, alpha), ids,
                activation_of(activation));
}

mx::array mm(const mx::array& x, const mx::array& w) { return product(x, dense_matrix("w", w, 2, 1.0), DSPARK_FP32); }

mx::array gather_mm(const mx::array& x, const mx::array& w, const mx::array& ids) {
  return gather(x, dense_matrix("w", w, 3, 1.0), ids, DSPARK_FP32);
}

mx::array moe(const mx::array& x, const mx::array& ids, const mx::array& weights, nb::handle up, nb::handle down,
              int group_size, int bits, const std::string& mode, const std::string& activation, double up_alpha,
              double down_alpha) {
  const Quantization q{group_size, bits, mode};
  const Matrix first = any_matrix("up", up, q, 3, up_alpha), second = any_matrix("down", down, q, 3, down_alpha);
  check_input(x, first.about.in, "[rows, in]");
  const mx::Stream stream = cpu_stream();
  const mx::array checked = checked_ids(ids, stream);
  check(x.ndim() == 2 && x.shape(0) == ids.shape(0),
          [&] { return "x must be [rows, in] for ids " + describe(ids) + ", is " + describe(x); });
  check(ids.shape(1) > 0, [&] { return "ids must name at least one expert a row, are " + describe(ids); });
  check(weights.shape() == ids.shape(),
          [&] { return "weights must have the shape of ids " + describe(ids) + ", are " + describe(weights); });
  const mx::array floats = weights.dtype() == mx::float32 ? weights : mx::astype(weights, mx::float32, stream);
  return two_layers(x, first, second, {checked, floats}, activation_of(activation));
}

mx::array mlp(const mx::array& x, nb::handle up, nb::handle down, int group_size, int bits, const std::string& mode,
              const std::string& activation, double up_alpha, double down_alpha) {
  const Quantization q{group_size, bits, mode};
  const Matrix first = any_matrix("up", up, q, 2, up_alpha), second = any_matrix("down", down, q, 2, down_alpha);
  check_input(x, first.about.in, "[.., in]");
  return two_layers(x, first, second, {}, activation_of(activation));
}

class Rows : public MatmulPrimitive {
 public:
  Rows(mx::Stream stream, const DsparkMatrix& table) : MatmulPrimitive(stream), table_(table) {}

  const char* name() const override { return "DsparkEmbed"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    const Embed job{held(table_, in, 1), rows<int32_t>(in[0]), static_cast<int64_t>(in[0].size()), make(out[0])};
    encoder().dispatch([job] {
      if (!embed(job)) throw std::out_of_range("ids must be in [0, " + std::to_string(job.table.out) + ")");
    });
  }

 private:
  DsparkMatrix table_;
};

mx::array embed_rows(const mx::array& ids, nb::handle given, int group_size, int bits, const std::string& mode) {
  const Matrix table = any_matrix("table", given, {group_size, bits, mode}, 2, 1.0);
  check(table.about.format != DSPARK_NVFP4 && table.about.type != DSPARK_F16,
        [] { return std::string("table must be dense or affine, of float32 or bfloat16"); });
  check(mx::issubdtype(ids.dtype(), mx::integer) && ids.ndim() == 1,
        [&] { return "ids must be integers [T], are " + describe(ids); });
  const mx::Stream stream = cpu_stream();
  const mx::Dtype dtype = table.arrays[table.arrays.size() > 1 ? 1 : 0].dtype();
  const mx::Shape shape{ids.shape(0), static_cast<int>(table.about.in)};
  if (ids.size() == 0) return mx::zeros(shape, dtype, stream);
  std::vector<mx::array> inputs{ids.dtype() == mx::int32 ? ids : mx::astype(ids, mx::int32, stream)};
  inputs.insert(inputs.end(), table.arrays.begin(), table.arrays.end());
  return mx::array(shape, dtype, std::make_shared<Rows>(stream, table.about), std::move(inputs));
}

}  // namespace
}  // namespace dspark

void bind_matmul(nb::module_& m) {
  using namespace dspark;
  m.def("qmm", &qmm, "x"_a, "w"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "group_size"_a = 64,
        "bits"_a = 4, "mode"_a = "affine", "activation"_a = "i16", "alpha"_a = 1.0);
  m.def("gather_qmm", &gather_qmm, "x"_a, "w"_a, "scales"_a, "biases"_a.none(), "ids"_a, nb::kw_only(),
        "group_size"_a = 64, "bits"_a = 4, "mode"_a = "affine", "activation"_a = "i16", "alpha"_a = 1.0);
  m.def("mm", &mm, "x"_a, "w"_a);
  m.def("gather_mm", &gather_mm, "x"_a, "w"_a, "ids"_a);
  m.def("moe", &moe, "x"_a, "ids"_a, "weights"_a, "up"_a, "down"_a, nb::kw_only(), "group_size"_a = 64, "bits"_a = 4,
        "mode"_a = "affine", "activation"_a = "i16", "up_alpha"_a = 1.0, "down_alpha"_a = 1.0);
  m.def("mlp", &mlp, "x"_a, "up"_a, "down"_a, nb::kw_only(), "group_size"_a = 64, "bits"_a = 4, "mode"_a = "affine",
        "activation"_a = "i16", "up_alpha"_a = 1.0, "down_alpha"_a = 1.0);
  m.def("embed", &embed_rows, "ids"_a, "table"_a, nb::kw_only(), "group_size"_a = 64, "bits"_a = 4, "mode"_a = "affine",
        "Rows [T, width] of a table [vocab, width] by id, in the dtype of the table or of its scales.");
}
