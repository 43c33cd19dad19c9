// Mamba-2 mixers and their replay as MLX primitives.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <tuple>

#include "ext_layer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dspark {
namespace {

// Inputs: projected, window, state, conv_weight, a, dt_bias, d, norm; conv_bias where there is one.
struct MambaLayer : Layer<Mamba> {
  using Layer::Layer;
  const char* name() const override { return "DsparkMamba"; }
  void eval_cpu(const Arrays& in, Arrays& out) override {
    job_.projected = tensor(in[0]), job_.window = tensor(in[1]), job_.conv_weight = tensor(in[3]);
    job_.state = rows<float>(in[2]), job_.a = rows<float>(in[4]), job_.dt_bias = rows<float>(in[5]);
    job_.d = rows<float>(in[6]), job_.norm = tensor(in[7]);
    if (in.size() > 8) job_.conv_bias = tensor(in[8]);
    job_.window_out = make(out[0]);
    job_.state_out = make<float>(out[1]);
    job_.y = output(out[2]);
    void* memory = scratch(mamba_scratch_bytes(job_));
    encoder().dispatch([job = job_, memory] { mamba(job, memory); });
  }
};

// Several blocks walked again; of each, inputs: projected, window, state, conv_weight, a, dt_bias, conv_bias where there
// is one; outputs: window, state.
class MambaReplay : public CpuPrimitive {
 public:
  MambaReplay(mx::Stream stream, std::vector<Mamba> jobs, std::vector<bool> biased)
      : CpuPrimitive(stream), jobs_(std::move(jobs)), biased_(std::move(biased)) {}

  const char* name() const override { return "DsparkMambaReplay"; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    std::vector<MambaTask> work;
    size_t at = 0;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      Mamba job = jobs_[i];
      const auto tensor = [&](size_t k) { return Tensor{rows(in[at + k]), type_of(in[at + k])}; };
      job.projected = tensor(0), job.window = tensor(1), job.conv_weight = tensor(3);
      job.state = rows<float>(in[at + 2]), job.a = rows<float>(in[at + 4]), job.dt_bias = rows<float>(in[at + 5]);
      if (biased_[i]) job.conv_bias = tensor(6);
      at += biased_[i] ? 7 : 6;
      job.window_out = make(out[2 * i]);
      job.state_out = make<float>(out[2 * i + 1]);
      work.push_back({job, scratch(mamba_scratch_bytes(job))});
    }
    encoder().dispatch([work = std::move(work)] { mamba_all(work.data(), static_cast<int>(work.size())); });
  }

 private:
  std::vector<Mamba> jobs_;
  std::vector<bool> biased_;
};

struct MambaInputs {  // what both calls take
  const mx::array &projected, &window, &state, &conv_weight;
  const Optional& conv_bias;
  const mx::array &a, &dt_bias;
  float dt_min, dt_max;
};

Mamba check_mamba(const MambaInputs& in) {
  require_ndim(in.state, 4, "state", "[groups, heads of a group, channels, state size]");
  require_ndim(in.projected, 2, "projected", "[T, inner + conv + heads]");
  require_ndim(in.conv_weight, 2, "conv_weight", "[taps, conv]");
  Mamba job{};
  job.groups = in.state.shape(0), job.heads = in.state.shape(1);
  job.channels = in.state.shape(2), job.state_size = in.state.shape(3);
  job.tokens = in.projected.shape(0), job.taps = in.conv_weight.shape(0);
  job.dt_min = in.dt_min, job.dt_max = in.dt_max;
  const int conv = job.conv_size();
  if (job.taps < 2 || job.taps > mamba_max_taps)
    refuse("conv_weight must have 2 to " + text(mamba_max_taps) + " taps, is " + describe(in.conv_weight));
  require_float32(in.state, in.state.shape(), "state");
  require_float(in.projected, "projected");
  require_shape(in.projected, {job.tokens, job.width()}, "projected (for this state)");
  require_shape(in.window, {job.taps - 1, conv}, "window");
  require_same_type(in.window, in.projected, "window and projected");
  require_weight(in.conv_weight, {job.taps, conv}, "conv_weight");
  if (in.conv_bias) require_weight(*in.conv_bias, {conv}, "conv_bias");
  require_float32(in.a, {job.groups, job.heads}, "a");
  require_float32(in.dt_bias, {job.all_heads()}, "dt_bias");
  if (!(in.dt_min <= in.dt_max)) refuse("dt_min must not be above dt_max");
  return job;
}

std::tuple<mx::array, mx::array, mx::array> make_mamba(const mx::array& projected, const mx::array& window,
                                                       const mx::array& state, const mx::array& conv_weight,
                                                       const Optional& conv_bias, const mx::array& a,
                                                       const mx::array& d, const mx::array& dt_bias,
                                                       const mx::array& norm, float eps, float dt_min, float dt_max) {
  Mamba job = check_mamba({projected, window, state, conv_weight, conv_bias, a, dt_bias, dt_min, dt_max});
  require_float32(d, {job.groups, job.heads}, "d");
  require_weight(norm, {job.inner()}, "norm");
  job.eps = eps;
  Arrays inputs{projected, window, state, conv_weight, a, dt_bias, d, norm};
  if (conv_bias) inputs.push_back(*conv_bias);
  Arrays out = mx::array::make_arrays({window.shape(), state.shape(), {job.tokens, job.inner()}},
                                      {window.dtype(), mx::float32, projected.dtype()},
                                      std::make_shared<MambaLayer>(cpu_stream(), job), inputs);
  return {out[2], out[0], out[1]};
}

// projected, window, state, conv_weight, conv_bias or None, a, dt_bias
using Block = std::tuple<mx::array, mx::array, mx::array, mx::array, Optional, mx::array, mx::array>;

std::vector<std::pair<mx::array, mx::array>> make_mamba_replay(const std::vector<Block>& blocks,
                                                               const std::vector<int>& keep, float dt_min,
                                                               float dt_max) {
  if (keep.size() != blocks.size()) refuse("keep must have one number a block");
  std::vector<std::pair<mx::array, mx::array>> after;
  std::vector<Mamba> jobs;
  std::vector<bool> biased;
  std::vector<size_t> walked;
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> types;
  Arrays inputs;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& [projected, window, state, conv_weight, conv_bias, a, dt_bias] = blocks[i];
    Mamba job = check_mamba({projected, window, state, conv_weight, conv_bias, a, dt_bias, dt_min, dt_max});
    require_range(keep[i], 0, job.tokens, "keep", "0", "the tokens in projected");
    after.emplace_back(window, state);
    if (keep[i] == 0) continue;
    job.tokens = keep[i];
    jobs.push_back(job), biased.push_back(conv_bias.has_value()), walked.push_back(i);
    for (const mx::array* array : {&projected, &window, &state, &conv_weight, &a, &dt_bias}) inputs.push_back(*array);
    if (conv_bias) inputs.push_back(*conv_bias);
    shapes.push_back(window.shape()), shapes.push_back(state.shape());
    types.push_back(window.dtype()), types.push_back(mx::float32);
  }
  if (jobs.empty()) return after;
  auto primitive = std::make_shared<MambaReplay>(cpu_stream(), std::move(jobs), std::move(biased));
  Arrays out = mx::array::make_arrays(std::move(shapes), types, primitive, inputs);
  for (size_t i = 0; i < walked.size(); ++i) after[walked[i]] = {out[2 * i], out[2 * i + 1]};
  return after;
}

}  // namespace
}  // namespace dspark

void bind_mamba(nb::module_& m) {
  using namespace dspark;
  const float infinity = INFINITY;
  m.def(
      "mamba", &make_mamba, "projected"_a, "window"_a, "state"_a, "conv_weight"_a, "conv_bias"_a.none(), "a"_a, "d"_a,
      "dt_bias"_a, "norm"_a, nb::kw_only(), "eps"_a, "dt_min"_a = 0.f, "dt_max"_a = infinity,
      "One Mamba-2 mixer between its projections: conv, state walk, gated group norm. projected [T, inner + conv + "
      "heads] = z | x B C | dt, window [K-1, conv], state [G, R, P, N] float32, conv_weight [K, conv], a and d [G, R], "
      "dt_bias [G R], norm [inner] -> y [T, inner], window, state after the T tokens.");
  m.def("mamba_replay", &make_mamba_replay, "blocks"_a, nb::kw_only(), "keep"_a, "dt_min"_a = 0.f, "dt_max"_a = infinity,
        "Of each block (projected, window, state, conv_weight, conv_bias, a, dt_bias) the window and state that `mamba` "
        "leaves after its first keep[i] tokens, to the bit.");
}
