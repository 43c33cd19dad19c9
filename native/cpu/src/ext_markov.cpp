// The walk of a block of drafts, and picking the likeliest tokens, as MLX primitives.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include "argmax.h"
#include "common.h"
#include "markov.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dspark {
namespace {

class Walk : public CpuPrimitive {
 public:
  Walk(mx::Stream stream, int first) : CpuPrimitive(stream), first_(first) {}

  const char* name() const override { return "DsparkMarkovWalk"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    const mx::array &logits = in[0], &from = in[1], &to = in[2];
    MarkovWalk job{rows<float>(logits), logits.shape(0), logits.shape(1), from.shape(1), rows(from), type_of(from), {},
                   first_, make<int32_t>(out[0]), make<float>(out[1])};
    job.out = {DSPARK_DENSE, type_of(to), 0, 1, job.vocab, job.rank, rows(to), nullptr, nullptr, 1.0f};
    void* memory = scratch(markov_walk_scratch_bytes(job));
    encoder().dispatch([job, memory] { markov_walk(job, memory); });
  }

 private:
  int first_;
};

std::pair<mx::array, mx::array> walk(const mx::array& logits, int first, const mx::array& from, const mx::array& to) {
  if (logits.ndim() != 2 || logits.dtype() != mx::float32 || logits.size() == 0) {
    require(false, "logits must be float32 [rows, vocab], not empty, are " + describe(logits));
  }
  const int vocab = logits.shape(1);
  if (from.ndim() != 2 || from.shape(0) != vocab || from.shape(1) == 0 ||
      (from.dtype() != mx::float32 && from.dtype() != mx::bfloat16)) {
    require(false, "markov_in must be float32 or bfloat16 [vocab, rank], is " + describe(from));
  }
  if (!is_float(to) || to.shape() != from.shape()) {
    require(false, "markov_out must be floats of markov_in's shape, is " + describe(to));
  }
  if (first < 0 || first >= vocab) {
    require(false, "first must be in [0, " + std::to_string(vocab) + "), is " + std::to_string(first));
  }
  const mx::Shape one_a_row{logits.shape(0)};
  const std::vector<mx::array> out = mx::array::make_arrays(
      {one_a_row, one_a_row}, {mx::int32, mx::float32}, std::make_shared<Walk>(cpu_stream(), first), {logits, from, to});
  return {out[0], out[1]};
}

class Likeliest : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  const char* name() const override { return "DsparkLikeliest"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    const Argmax job{rows(in[0]), type_of(in[0]), in[0].shape(0), in[0].shape(1), make<int32_t>(out[0])};
    encoder().dispatch([job] { argmax(job); });
  }
};

mx::array likeliest(const mx::array& x) {
  if (x.ndim() != 2 || x.shape(1) == 0 || (x.dtype() != mx::float32 && x.dtype() != mx::bfloat16)) {
    require(false, "x must be float32 or bfloat16 [rows, vocab], is " + describe(x));
  }
  const mx::Shape shape{x.shape(0)};
  if (x.size() == 0) return mx::zeros(shape, mx::int32, cpu_stream());
  return mx::array(shape, mx::int32, std::make_shared<Likeliest>(cpu_stream()), {x});
}

}  // namespace
}  // namespace dspark

void bind_markov(nb::module_& m) {
  m.def("markov_walk", &dspark::walk, "logits"_a, "first"_a, "markov_in"_a, "markov_out"_a,
        "Greedy picks [rows] of logits [rows, vocab], each row biased by markov_out markov_in[pick before it], and the "
        "lead [rows] of each pick over the next likeliest.");
  m.def("likeliest", &dspark::likeliest, "x"_a, "The first largest number's place (int32) in each row of [rows, vocab].");
}
