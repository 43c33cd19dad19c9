// The small layers as MLX primitives: shapes checked when called, kernels run when evaluated on the CPU stream.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "ext_layer.h"
#include "mlx/backend/common/utils.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dspark {
namespace {

struct RmsNormLayer : Layer<RmsNorm> {
  using Layer::Layer;
  const char* name() const override { return "DsparkRmsNorm"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    job_.x = tensor(in[0]);
    if (in.size() > 1) job_.weight = tensor(in[1]);
    job_.y = output(out[0]);
    encoder().dispatch([job = job_] { rms_norm(job); });
  }
};

mx::array make_rms_norm(const mx::array& x, const Optional& weight, float eps) {
  require_float(x, "x");
  if (x.ndim() == 0 || x.size() == 0) refuse("x must be [..., D], not empty, is " + describe(x));
  RmsNorm job{};
  job.size = x.shape(-1), job.rows = static_cast<int64_t>(x.size()) / job.size, job.eps = eps;
  Arrays inputs{x};
  if (weight) {
    require_weight(*weight, {job.size}, "weight");
    inputs.push_back(*weight);
  }
  return one<RmsNormLayer>(x.shape(), x.dtype(), job, std::move(inputs));
}

struct ActivationLayer : Layer<Activation> {
  using Layer::Layer;
  const char* name() const override { return "DsparkActivation"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    job_.x = tensor(in[0]);
    if (in.size() > 1) job_.gated = tensor(in[1]);
    job_.y = output(out[0]);
    encoder().dispatch([job = job_] { activate(job); });
  }
};

mx::array make_relu2(const mx::array& x) {
  require_float(x, "x");
  Activation job{};
  job.count = static_cast<int64_t>(x.size());
  return one<ActivationLayer>(x.shape(), x.dtype(), job, {x});
}

mx::array make_swiglu(const mx::array& gate, const mx::array& up) {
  require_float(gate, "gate");
  require_shape(up, gate.shape(), "up");
  require_same_type(gate, up, "gate and up");
  Activation job{};
  job.count = static_cast<int64_t>(gate.size());
  return one<ActivationLayer>(gate.shape(), gate.dtype(), job, {gate, up});
}

struct AttendLayer : Layer<Attend> {
  using Layer::Layer;
  const char* name() const override { return "DsparkAttend"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    job_.q = tensor(in[0]);
    job_.keys = cache(in[1], job_.key_head_stride, job_.key_row_stride);
    job_.values = cache(in[2], job_.value_head_stride, job_.value_row_stride);
    if (in.size() > 3) job_.sinks = tensor(in[3]);
    job_.out = output(out[0]);
    job_.split = attend_should_split(job_);
    void* memory = scratch(attend_scratch_bytes(job_));
    encoder().dispatch([job = job_, memory] { attend(job, memory); });
  }

 private:
  Tensor cache(const mx::array& in, int64_t& head_stride, int64_t& row_stride) {
    if (in.shape(3) > 1 && in.strides(3) != 1) {
      head_stride = static_cast<int64_t>(in.shape(2)) * in.shape(3), row_stride = in.shape(3);
      return tensor(in);
    }
    head_stride = in.strides(1), row_stride = in.strides(2);
    return {in.data<void>(), type_of(in)};
  }
};

mx::array make_attend(const mx::array& q, const mx::array& keys, const mx::array& values, int length, float scale,
                      int window, const Optional& sinks) {
  require_ndim(q, 3, "q", "[T, heads, D]");
  require_ndim(keys, 4, "keys", "[1, kv heads, capacity, D]");
  require_float(q, "q");
  require_float(keys, "keys");
  Attend job{};
  job.rows = q.shape(0), job.heads = q.shape(1), job.dim = q.shape(2), job.kv_heads = keys.shape(1);
  job.length = length, job.window = window, job.scale = scale;
  if (keys.shape(0) != 1 || keys.shape(3) != job.dim)
    refuse("keys must be [1, kv heads, capacity, " + text(job.dim) + "], is " + describe(keys));
  require_shape(values, keys.shape(), "values");
  require_same_type(keys, values, "keys and values");
  if (job.heads % job.kv_heads != 0)
    refuse("q's heads (" + text(job.heads) + ") must be a multiple of the kv heads (" + text(job.kv_heads) + ")");
  if (job.dim > attend_max_dim) refuse("D must be at most " + text(attend_max_dim) + ", is " + text(job.dim));
  require_range(length, job.rows, keys.shape(2), "length", "T", "the capacity");
  if (window < 0) refuse("window must be 0 (none) or positive, is " + text(window));
  Arrays inputs{q, keys, values};
  if (sinks) {
    require_weight(*sinks, {job.heads}, "sinks");
    inputs.push_back(*sinks);
  }
  return one<AttendLayer>(q.shape(), q.dtype(), job, std::move(inputs));
}

struct RouteLayer : Layer<Route> {
  using Layer::Layer;
  const char* name() const override { return "DsparkRoute"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    job_.x = tensor(in[0]), job_.gate = rows<float>(in[1]), job_.correction = rows<float>(in[2]);
    job_.ids = make<uint32_t>(out[0]), job_.weights = make<float>(out[1]);
    void* memory = scratch(route_scratch_bytes(job_));
    encoder().dispatch([job = job_, memory] { route(job, memory); });
  }
};

std::pair<mx::array, mx::array> make_route(const mx::array& x, const mx::array& gate, const mx::array& correction,
                                           int top, float scale, bool normalize, int groups, int top_groups) {
  require_ndim(x, 2, "x", "[T, H]");
  require_float(x, "x");
  require_ndim(gate, 2, "gate", "[experts, H]");
  Route job{};
  job.rows = x.shape(0), job.size = x.shape(1), job.experts = gate.shape(0), job.top = top;
  job.groups = groups, job.top_groups = top_groups, job.scale = scale, job.normalize = normalize;
  require_float32(gate, {job.experts, job.size}, "gate");
  require_float32(correction, {job.experts}, "correction");
  require_range(top, 1, job.experts, "top", "1", "the experts");
  if (groups < 1 || job.experts % groups != 0 || (groups > 1 && job.experts / groups < 2))
    refuse("groups must divide the experts (" + text(job.experts) + ") into groups of two or more, is " + text(groups));
  require_range(top_groups, 1, groups, "top_groups", "1", "groups");
  Arrays out = mx::array::make_arrays({{job.rows, top}, {job.rows, top}}, {mx::uint32, mx::float32},
                                      std::make_shared<RouteLayer>(cpu_stream(), job), {x, gate, correction});
  return {out[0], out[1]};
}

struct HeadNormRopeLayer : Layer<HeadNormRope> {
  using Layer::Layer;
  const char* name() const override { return "DsparkHeadNormRope"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    job_.x = tensor(in[0]);
    if (in.size() > 1) job_.weight = tensor(in[1]);
    job_.y = output(out[0]);
    encoder().dispatch([job = job_] { head_norm_rope(job); });
  }
};

mx::array make_qk_norm_rope(const mx::array& x, const Optional& weight, float eps, double theta, int64_t position,
                            bool rotate) {
  require_ndim(x, 3, "x", "[T, heads, D]");
  require_float(x, "x");
  HeadNormRope job{};
  job.rows = x.shape(0), job.heads = x.shape(1), job.dim = x.shape(2);
  job.eps = eps, job.theta = theta, job.position = position, job.rotate = rotate;
  if (job.dim % 2 != 0 || job.dim > rope_max_dim)
    refuse("D must be even and at most " + text(rope_max_dim) + ", is " + text(job.dim));
  if (position < 0) refuse("position must not be negative, is " + text(position));
  if (!(theta > 0)) refuse("theta must be positive, is " + std::to_string(theta));
  Arrays inputs{x};
  if (weight) {
    require_weight(*weight, {job.dim}, "weight");
    inputs.push_back(*weight);
  }
  return one<HeadNormRopeLayer>(x.shape(), x.dtype(), job, std::move(inputs));
}

// One buffer a primitive: MLX never hands on the memory of an input where there are several outputs.
struct AppendLayer : Layer<Append> {
  using Layer::Layer;
  const char* name() const override { return "DsparkAppend"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    const char* old = rows<char>(in[0]);
    const bool aligned = reinterpret_cast<uintptr_t>(old) % 64 == 0;
    if (aligned && in[0].flags().row_contiguous && mx::is_donatable(in[0], out[0])) {
      out[0].copy_shared_buffer(in[0]);
    } else {
      make(out[0]);
    }
    job_.cache = out[0].data<char>();
    job_.rows = rows<char>(in[1]);
    encoder().dispatch([job = job_, old, bytes = out[0].nbytes()] {
      if (old != job.cache) std::memcpy(job.cache, old, bytes);
      append(job);
    });
  }
};

mx::array make_kv_append(const mx::array& buffer, const mx::array& fresh, int offset) {
  require_ndim(buffer, 4, "buffer", "[1, kv heads, capacity, D]");
  require_ndim(fresh, 3, "rows", "[T, kv heads, D]");
  require_float(buffer, "buffer");
  if (buffer.shape(0) != 1) refuse("buffer must be [1, kv heads, capacity, D], is " + describe(buffer));
  require_shape(fresh, {fresh.shape(0), buffer.shape(1), buffer.shape(3)}, "rows");
  require_same_type(buffer, fresh, "buffer and rows");
  if (offset < 0 || offset + static_cast<int64_t>(fresh.shape(0)) > buffer.shape(2))
    refuse("offset + T must fit the capacity: " + text(offset) + " + " + text(fresh.shape(0)) + " > " +
           text(buffer.shape(2)));
  Append job{};
  job.count = fresh.shape(0), job.kv_heads = buffer.shape(1), job.capacity = buffer.shape(2), job.offset = offset;
  job.row_bytes = buffer.shape(3) * buffer.itemsize();
  return one<AppendLayer>(buffer.shape(), buffer.dtype(), job, {buffer, fresh});
}

}  // namespace
}  // namespace dspark

void bind_layers(nb::module_& m) {
  using namespace dspark;
  m.def("rms_norm", &make_rms_norm, "x"_a, "weight"_a.none(), "eps"_a,
        "x / sqrt(mean(x^2) + eps) * weight over the last axis; x [..., D], weight [D] or None.");
  m.def("swiglu", &make_swiglu, "gate"_a, "up"_a, "silu(gate) * up, elementwise.");
  m.def("relu2", &make_relu2, "x"_a, "max(x, 0)^2, elementwise.");
  m.def(
      "attend", &make_attend, "q"_a, "keys"_a, "values"_a, nb::kw_only(), "length"_a, "scale"_a, "window"_a = 0,
      "sinks"_a.none() = nb::none(),
      "Causal attention of the newest T of `length` positions: q [T, Hq, D], keys and values [1, Hkv, capacity, D] -> "
      "[T, Hq, D]. Each row sees the last `window` positions (0: all); sinks [Hq] join the softmax.");
  m.def("route", &make_route, "x"_a, "gate"_a, "correction"_a, nb::kw_only(), "top"_a, "scale"_a = 1.f,
        "normalize"_a = true, "groups"_a = 1, "top_groups"_a = 1,
        "Expert ids (uint32) and float32 weights [T, top], best first, for x [T, H], gate [E, H], correction [E].");
  m.def("qk_norm_rope", &make_qk_norm_rope, "x"_a, "weight"_a.none(), nb::kw_only(), "eps"_a, "theta"_a, "position"_a,
        "rotate"_a = true,
        "Per-head RMS norm (weight [D] or None: none), then rope by halves at positions position, position + 1, ...; "
        "x [T, H, D].");
  m.def("kv_append", &make_kv_append, "buffer"_a, "rows"_a, nb::kw_only(), "offset"_a,
        "buffer [1, Hkv, capacity, D] with rows [T, Hkv, D] put at `offset`; in place where no one else holds it.");
}
