// What a drafter is put together from: its layers and context rows, table rows and the likeliest of a row, in buffers of
// exactly the size they need, with every instruction set and thread count. Usage: fuzz_draft [cases] [seed].
#include "argmax.h"
#include "draft.h"
#include "embed.h"
#include "fuzz_matrix.h"

namespace {

void fuzz_argmax() {
  Buffers b;
  Outputs outputs;
  Argmax job{};
  job.rows = between(1, 40), job.size = between(1, chance(3) ? 5000 : 70);
  job.type = chance(2) ? DSPARK_F32 : DSPARK_BF16, job.x = b.tensor(job.rows * job.size, job.type).data;
  job.picks = static_cast<int32_t*>(output(b, outputs, static_cast<size_t>(job.rows), DSPARK_F32).data);
  compare("argmax", outputs, nullptr, [&](void*) { argmax(job); });
  for (int64_t i = 0; i < job.rows; ++i)
    if (job.picks[i] < 0 || job.picks[i] >= job.size) differs("argmax", "a pick out of range");
}

void fuzz_embed() {
  Buffers b;
  Outputs outputs;
  DsparkFormat format = any_format();
  if (format == DSPARK_NVFP4) format = DSPARK_AFFINE4;
  const int group = any_group(format), vocab = between(1, 40);
  Embed job{};
  job.table = matrix(b, format, group, 1, vocab, unit_of(format, group) * between(1, 4));
  if (job.table.type == DSPARK_F16) return;
  job.count = between(0, 9);
  int32_t* ids = static_cast<int32_t*>(static_cast<void*>(b.bytes(static_cast<size_t>(job.count) * 4, 4)));
  for (int64_t i = 0; i < job.count; ++i) ids[i] = between(0, vocab - 1);
  job.ids = ids, job.y = output(b, outputs, static_cast<size_t>(job.count * job.table.in), job.table.type).data;
  bool fine = true;
  compare("embed", outputs, nullptr, [&](void*) { fine = fine && embed(job); });
  if (!fine) differs("embed", "ids in range refused");
  if (job.count == 0) return;
  ids[between(0, static_cast<int>(job.count) - 1)] = chance(2) ? -1 : chance(2) ? vocab : INT32_MAX;
  if (embed(job)) differs("embed", "an id out of range accepted");
}

struct Stack {
  DraftForm form;
  std::vector<DraftLayer> layers;
};

Stack any_stack(Buffers& b) {
  const DsparkFormat format = any_format();
  const int group = any_group(format), unit = std::max(2, unit_of(format, group));
  const auto width = [&] { return unit * between(1, std::max(1, 70 / unit)); };
  Stack s{};
  const int kv_heads = between(1, 2), heads = kv_heads * between(1, 3), dim = unit * between(1, std::max(1, 32 / unit));
  s.form = {width(), heads, kv_heads, dim, between(1, 40), 1e-6f, 0.2f, 1e4, any_type()};
  const int64_t size = s.form.size, inner = width(), wide = heads * dim, kv = kv_heads * dim;
  for (int i = between(1, 3); i > 0; --i) {
    const auto m = [&](int64_t out, int64_t in) { return matrix(b, format, group, 1, out, in); };
    const auto v = [&](int64_t count) { return b.tensor(count, any_type()); };
    s.layers.push_back({v(size), v(size), v(dim), v(dim), v(heads), m(wide, size), m(kv, size), m(kv, size),
                        m(size, wide), m(inner, size), m(inner, size), m(size, inner)});
  }
  return s;
}

void fuzz_block() {
  Buffers b;
  Outputs outputs;
  const Stack s = any_stack(b);
  const int64_t planes = static_cast<int64_t>(s.layers.size()) * 2 * s.form.kv_heads;
  DraftBlock job{s.form, &s.layers, {}, nullptr, nullptr};
  for (int i = between(1, 3); i > 0; --i) {
    DraftSpan span{};
    span.capacity = between(0, 60), span.begin = between(0, span.capacity), span.end = between(span.begin, span.capacity);
    span.rows = between(1, 8), span.position = between(0, 100000);
    span.context = static_cast<const char*>(b.tensor(planes * span.capacity * s.form.dim, s.form.type).data);
    job.spans.push_back(span);
  }
  const int64_t count = static_cast<int64_t>(job.rows()) * s.form.size;
  job.x = b.tensor(count, s.form.type).data;
  job.y = output(b, outputs, static_cast<size_t>(count), s.form.type).data;
  compare("draft block", outputs, [&] { return draft_block_scratch_bytes(job); },
          [&](void* memory) { draft_block(job, memory); });
}

void fuzz_context() {
  Buffers b;
  Outputs outputs;
  const Stack s = any_stack(b);
  DraftContext job{s.form, &s.layers, nullptr, nullptr, 0, between(1, 20), between(0, 9), between(0, 100000)};
  job.capacity = job.at + job.count + between(0, 5);
  job.x = b.tensor(static_cast<int64_t>(job.count) * s.form.size, s.form.type).data;
  const int64_t planes = static_cast<int64_t>(s.layers.size()) * 2 * s.form.kv_heads;
  job.context = static_cast<char*>(
      output(b, outputs, static_cast<size_t>(planes * job.capacity * s.form.dim), s.form.type).data);
  compare("draft context", outputs, [&] { return draft_context_scratch_bytes(job); },
          [&](void* memory) { draft_context(job, memory); });
}

}  // namespace

int main(int count, char** words) {
  return fuzz_main(count, words, {fuzz_argmax, fuzz_embed, fuzz_block, fuzz_context});
}
