// A block drafter's layers as MLX primitives. The stack holds the weights itself: as inputs of the graph they would cost
// more than the graph they spare.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "draft.h"
#include "ext_matrix.h"
#include "mlx/backend/common/utils.h"
#include "mlx/transforms.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dspark {
namespace {

using Arrays = std::vector<mx::array>;

// (first row in the context's window, one past its last, rows of its own, position of the first of them)
using Slots = std::tuple<int, int, int, int64_t>;

struct Weights {
  DraftForm form;
  std::vector<DraftLayer> layers;
  Arrays arrays;  // what the layers point into
};
using Shared = std::shared_ptr<const Weights>;

class BlockPrimitive : public CpuPrimitive {
 public:
  BlockPrimitive(mx::Stream stream, Shared weights, std::vector<DraftSpan> spans)
      : CpuPrimitive(stream), weights_(std::move(weights)), spans_(std::move(spans)) {}

  const char* name() const override { return "DsparkDraftBlock"; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    DraftBlock job{weights_->form, &weights_->layers, spans_, rows(in[0]), make(out[0])};
    for (size_t i = 0; i < spans_.size(); ++i) job.spans[i].context = rows<char>(in[i + 1]);
    void* memory = scratch(draft_block_scratch_bytes(job));
    encoder().dispatch([job = std::move(job), memory, held = weights_] { draft_block(job, memory); });
  }

 private:
  Shared weights_;
  std::vector<DraftSpan> spans_;
};

// In place where no one else holds the context.
class ContextPrimitive : public CpuPrimitive {
 public:
  ContextPrimitive(mx::Stream stream, Shared weights, int at, int64_t position)
      : CpuPrimitive(stream), weights_(std::move(weights)), at_(at), position_(position) {}

  const char* name() const override { return "DsparkDraftContext"; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    const char* old = rows<char>(in[1]);
    const bool aligned = reinterpret_cast<uintptr_t>(old) % 64 == 0;
    if (aligned && in[1].flags().row_contiguous && mx::is_donatable(in[1], out[0])) {
      out[0].copy_shared_buffer(in[1]);
    } else {
      make(out[0]);
    }
    const DraftContext job{weights_->form, &weights_->layers, rows(in[0]), out[0].data<char>(),
                           in[1].shape(3), in[0].shape(0), at_, position_};
    void* memory = scratch(draft_context_scratch_bytes(job));
    encoder().dispatch([job, old, memory, bytes = out[0].nbytes(), held = weights_] {
      if (old != job.context) std::memcpy(job.context, old, bytes);
      draft_context(job, memory);
    });
  }

 private:
  Shared weights_;
  int at_;
  int64_t position_;
};

class DraftStack {
 public:
  // A layer: input_norm, q, k, v, q_norm, k_norm, sinks, o, post_norm, gate, up, down; a matrix is an array or
  // (w, scales, biases, group_size, bits, mode).
  DraftStack(nb::sequence layers, int heads, int kv_heads, int head_dim, int window, float eps, float scale,
             double theta)
      : weights_(std::make_shared<Weights>()) {
    check(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
      return "heads (" + text(heads) + ") must be a multiple of kv_heads (" + text(kv_heads) + ")";
    });
    check(head_dim > 0 && head_dim % 2 == 0 && head_dim <= attend_max_dim, [&] {
      return "head_dim must be even and at most " + text(attend_max_dim) + ", is " + text(head_dim);
    });
    check(window > 0 && theta > 0, [] { return std::string("window and theta must be positive"); });
    check(nb::len(layers) > 0, [] { return std::string("there must be a layer"); });
    const nb::tuple first = nb::cast<nb::tuple>(layers[0]);
    check(nb::len(first) == 12, [] { return std::string("a layer has 12 weights"); });
    const int size = nb::cast<mx::array>(first[0]).shape(0);
    weights_->form = {size, heads, kv_heads, head_dim, window, eps, scale, theta, DSPARK_F32};
    for (nb::handle layer : layers) add_layer(nb::cast<nb::tuple>(layer));
  }

  mx::array block(const mx::array& x, const Arrays& contexts, const std::vector<Slots>& slots) {
    check_rows(x);
    check(!slots.empty() && contexts.size() == slots.size(), [] { return std::string("one context a span, and one span"); });
    int total = 0;
    std::vector<DraftSpan> spans;
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto [begin, end, rows, position] = slots[i];
      check_context(contexts[i], x);
      check(0 <= begin && begin <= end && end <= contexts[i].shape(3) && rows > 0 && position >= 0,
            [&] { return "a span must lie in its context " + describe(contexts[i]); });
      spans.push_back({nullptr, contexts[i].shape(3), begin, end, rows, position});
      total += rows;
    }
    check(total == x.shape(0), [&] { return "spans must have x's rows " + describe(x) + ", have " + text(total); });
    Arrays inputs{x};
    inputs.insert(inputs.end(), contexts.begin(), contexts.end());
    return mx::array(x.shape(), x.dtype(), std::make_shared<BlockPrimitive>(cpu_stream(), ready(x), std::move(spans)),
                     std::move(inputs));
  }

  mx::array context(const mx::array& x, const mx::array& buffer, int at, int64_t position) {
    check_rows(x);
    check_context(buffer, x);
    check(at >= 0 && at + static_cast<int64_t>(x.shape(0)) <= buffer.shape(3) && position >= 0, [&] {
      return "at + rows must fit the capacity of " + describe(buffer) + ", are " + text(at) + " + " + text(x.shape(0));
    });
    return mx::array(buffer.shape(), buffer.dtype(),
                     std::make_shared<ContextPrimitive>(cpu_stream(), ready(x), at, position), {x, buffer});
  }

 private:
  void add_layer(const nb::tuple& given) {
    check(nb::len(given) == 12, [] { return std::string("a layer has 12 weights"); });
    const DraftForm& f = weights_->form;
    const int wide = f.heads * f.dim, kv = f.kv_heads * f.dim;
    DraftLayer layer{};
    const int inner = static_cast<int>(matrix("gate", given[9]).about.out);
    layer.input_norm = vector("input_norm", given[0], f.size);
    layer.q = keep(matrix("q", given[1]), wide, f.size), layer.k = keep(matrix("k", given[2]), kv, f.size);
    layer.v = keep(matrix("v", given[3]), kv, f.size);
    layer.q_norm = vector("q_norm", given[4], f.dim), layer.k_norm = vector("k_norm", given[5], f.dim);
    layer.sinks = vector("sinks", given[6], f.heads);
    layer.o = keep(matrix("o", given[7]), f.size, wide);
    layer.post_norm = vector("post_norm", given[8], f.size);
    layer.gate = keep(matrix("gate", given[9]), inner, f.size), layer.up = keep(matrix("up", given[10]), inner, f.size);
    layer.down = keep(matrix("down", given[11]), f.size, inner);
    weights_->layers.push_back(layer);
  }

  static Matrix matrix(const char* name, nb::handle given) {
    if (nb::isinstance<mx::array>(given)) return any_matrix(name, given, {0, 0, ""}, 2, 1.0);
    check(PySequence_Check(given.ptr()) && nb::len(given) == 6,
          [&] { return std::string(name) + " must be an array or (w, scales, biases, group_size, bits, mode)"; });
    const Quantization q{nb::cast<int>(given[3]), nb::cast<int>(given[4]), nb::cast<std::string>(given[5])};
    return any_matrix(name, nb::make_tuple(given[0], given[1], given[2]), q, 2, 1.0);
  }

  // Its memory, row-contiguous and there, for as long as the stack lives.
  const void* hold(const mx::array& given) {
    mx::array held = mx::contiguous(given, false, cpu_stream());
    mx::eval(held);
    weights_->arrays.push_back(held);
    return held.data<void>();
  }

  Tensor vector(const char* name, nb::handle given, int size) {
    const mx::array a = nb::cast<mx::array>(given);
    require_float(a, name);
    check(a.shape() == mx::Shape{size}, [&] { return std::string(name) + " must be [" + text(size) + "], is " + describe(a); });
    return {hold(a), type_of(a)};
  }

  DsparkMatrix keep(const Matrix& given, int64_t out, int64_t in) {
    check(given.about.out == out && given.about.in == in, [&] {
      return "a matrix must be [" + text(out) + ", " + text(in) + "], is [" + text(given.about.out) + ", " +
             text(given.about.in) + "]";
    });
    DsparkMatrix w = given.about;
    w.values = hold(given.arrays[0]);
    if (given.arrays.size() > 1) w.scales = hold(given.arrays[1]);
    if (given.arrays.size() > 2) w.biases = hold(given.arrays[2]);
    return w;
  }

  void check_rows(const mx::array& x) const {
    require_float(x, "x");
    check(x.ndim() == 2 && x.shape(0) > 0 && x.shape(1) == weights_->form.size,
          [&] { return "x must be [rows, " + text(weights_->form.size) + "], is " + describe(x); });
  }

  void check_context(const mx::array& buffer, const mx::array& x) const {
    const DraftForm& f = weights_->form;
    const int layers = static_cast<int>(weights_->layers.size());
    check(buffer.ndim() == 5 && buffer.dtype() == x.dtype() &&
              buffer.shape() == mx::Shape{layers, 2, f.kv_heads, buffer.shape(3), f.dim},
          [&] {
            return "a context must be [" + text(layers) + ", 2, " + text(f.kv_heads) + ", capacity, " + text(f.dim) +
                   "] of x's type, is " + describe(buffer);
          });
  }

  // The weights for activations of x's type.
  Shared ready(const mx::array& x) {
    if (type_of(x) != weights_->form.type) {
      weights_ = std::make_shared<Weights>(*weights_);
      weights_->form.type = type_of(x);
    }
    return weights_;
  }

  std::shared_ptr<Weights> weights_;
};

}  // namespace
}  // namespace dspark

void bind_draft(nb::module_& m) {
  using dspark::DraftStack;
  nb::class_<DraftStack>(m, "DraftStack", "The layers of a block drafter, in one primitive; see ops/draft.py.")
      .def(nb::init<nb::sequence, int, int, int, int, float, float, double>(), "layers"_a, nb::kw_only(), "heads"_a,
           "kv_heads"_a, "head_dim"_a, "window"_a, "eps"_a, "scale"_a, "theta"_a)
      .def("block", &DraftStack::block, "x"_a, "contexts"_a, "spans"_a,
           "x [rows, size] after all layers. A span is (begin, end, rows, position): rows [begin, end) of its context are "
           "seen, its own rows start at `position`.")
      .def("context", &DraftStack::context, "x"_a, "buffer"_a, "at"_a, "position"_a,
           "buffer [layers, 2, kv heads, capacity, D] with keys and values of x [rows, size] put at `at`; in place where "
           "no one else holds it.");
}
