#include "draft.h"

#include <algorithm>
#include <cstring>

#include "arena.h"

namespace dspark {
namespace {

DsparkActivation activation_of(const DsparkMatrix& w) { return w.format == DSPARK_DENSE ? DSPARK_FP32 : DSPARK_I16; }

// Buffers for `rows` rows; products share one piece of scratch, each using all it needs of it.
struct Memory {
  DraftForm form;
  int rows;
  char *x, *h, *q, *k, *v, *keys, *values, *gate, *up;
  void *product, *attention;
  size_t bytes;

  char* take(Arena& arena, int64_t elements) {
    return arena.take<char>(elements * static_cast<int64_t>(dspark_type_size(form.type)));
  }

  void take_products(Arena& arena, const std::vector<DraftLayer>& layers) {
    size_t most = 0;
    for (const DraftLayer& l : layers)
      for (const DsparkMatrix* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
        most = std::max(most, dspark_product_scratch_bytes(w, rows, activation_of(*w)));
    product = arena.take<char>(static_cast<int64_t>(most));
  }

  explicit Memory(const DraftContext& job, void* block) : form(job.form), rows(job.count) {
    Arena arena(block);
    const int64_t kv = static_cast<int64_t>(form.kv_heads) * form.dim;
    k = take(arena, rows * kv), v = take(arena, rows * kv);
    take_products(arena, *job.layers);
    bytes = arena.bytes();
  }

  explicit Memory(const DraftBlock& job, void* block) : form(job.form), rows(job.rows()) {
    Arena arena(block);
    const int64_t wide = static_cast<int64_t>(form.heads) * form.dim, kv = static_cast<int64_t>(form.kv_heads) * form.dim;
    const int64_t count = rows;
    x = take(arena, count * form.size), h = take(arena, count * std::max<int64_t>(form.size, wide));
    q = take(arena, count * std::max<int64_t>(form.size, wide)), k = take(arena, count * kv), v = take(arena, count * kv);
    int64_t inner = 0;
    for (const DraftLayer& l : *job.layers) inner = std::max(inner, l.gate.out);
    gate = take(arena, count * inner), up = take(arena, count * inner);
    int64_t longest = 0;
    size_t most = 0;
    for (const DraftSpan& span : job.spans) {
      longest = std::max<int64_t>(longest, span.end - span.begin + span.rows);
      most = std::max(most, attend_scratch_bytes(attention_of(span)));
    }
    keys = take(arena, longest * kv), values = take(arena, longest * kv);
    attention = arena.take<char>(static_cast<int64_t>(most));
    take_products(arena, *job.layers);
    bytes = arena.bytes();
  }

  // The attention of one span over gathered keys, without its data.
  Attend attention_of(const DraftSpan& span) const {
    Attend job{};
    job.rows = span.rows, job.heads = form.heads, job.kv_heads = form.kv_heads, job.dim = form.dim;
    job.length = span.end - span.begin + span.rows, job.window = form.window;
    job.scale = form.scale;
    job.key_head_stride = job.value_head_stride = static_cast<int64_t>(job.length) * form.dim;
    job.key_row_stride = job.value_row_stride = form.dim;
    job.split = attend_should_split(job);
    return job;
  }

  Tensor read(const char* data) const { return {data, form.type}; }
  MutableTensor write(char* data) const { return {data, form.type}; }
  char* row(char* data, int64_t index, int64_t width) const {
    return data + index * width * static_cast<int64_t>(dspark_type_size(form.type));
  }

  void multiply(const char* from, const DsparkMatrix& w, char* to) const {
    dspark_product(from, form.type, rows, &w, to, activation_of(w), product);
  }

  void norm(const char* from, const Tensor& weight, char* to) const {
    rms_norm({read(from), weight, write(to), rows, form.size, form.eps});
  }

  // `heads` heads of `count` rows, normed and turned in place.
  void turn(char* data, const Tensor& weight, int count, int heads, int64_t position) const {
    head_norm_rope({read(data), weight, write(data), count, heads, form.dim, form.eps, form.theta, position, true});
  }
};

// The window's rows of a context plane [kv_heads, capacity, dim], then the span's own rows, together a head.
void gather(const Memory& m, const DraftSpan& span, const char* plane, const char* own, char* to) {
  const size_t row = m.form.dim * dspark_type_size(m.form.type);
  const int seen = span.end - span.begin;
  for (int head = 0; head < m.form.kv_heads; ++head)
    std::memcpy(to + static_cast<int64_t>(head) * (seen + span.rows) * static_cast<int64_t>(row),
                plane + (static_cast<int64_t>(head) * span.capacity + span.begin) * static_cast<int64_t>(row), seen * row);
  append({own, to, span.rows, m.form.kv_heads, seen + span.rows, seen, row});
}

void attend_span(const Memory& m, const DraftLayer& layer, const DraftSpan& span, int index, int first) {
  const int64_t kv = static_cast<int64_t>(m.form.kv_heads) * m.form.dim, wide = static_cast<int64_t>(m.form.heads) * m.form.dim;
  char *q = m.row(m.q, first, wide), *k = m.row(m.k, first, kv);
  m.turn(q, layer.q_norm, span.rows, m.form.heads, span.position);
  m.turn(k, layer.k_norm, span.rows, m.form.kv_heads, span.position);
  const int64_t plane = kv * span.capacity * static_cast<int64_t>(dspark_type_size(m.form.type));
  gather(m, span, span.context + 2 * index * plane, k, m.keys);
  gather(m, span, span.context + (2 * index + 1) * plane, m.row(m.v, first, kv), m.values);
  Attend job = m.attention_of(span);
  job.q = m.read(q), job.keys = m.read(m.keys), job.values = m.read(m.values), job.sinks = layer.sinks;
  job.out = m.write(m.row(m.h, first, wide));
  attend(job, m.attention);
}

void run_layer(const Memory& m, const DraftBlock& job, int index, const char* x, char* y) {
  const DraftLayer& layer = (*job.layers)[static_cast<size_t>(index)];
  m.norm(x, layer.input_norm, m.h);
  m.multiply(m.h, layer.q, m.q);
  m.multiply(m.h, layer.k, m.k);
  m.multiply(m.h, layer.v, m.v);
  int first = 0;
  for (const DraftSpan& span : job.spans) {
    attend_span(m, layer, span, index, first);
    first += span.rows;
  }
  m.multiply(m.h, layer.o, m.q);
  const int64_t count = static_cast<int64_t>(m.rows) * m.form.size;
  add({m.read(x), m.read(m.q), m.write(y), count});
  m.norm(y, layer.post_norm, m.h);
  m.multiply(m.h, layer.gate, m.gate);
  m.multiply(m.h, layer.up, m.up);
  activate({m.read(m.gate), m.read(m.up), m.write(m.gate), static_cast<int64_t>(m.rows) * layer.gate.out});
  m.multiply(m.gate, layer.down, m.h);
  add({m.read(y), m.read(m.h), m.write(y), count});
}

}  // namespace

size_t draft_block_scratch_bytes(const DraftBlock& job) { return Memory(job, nullptr).bytes; }

void draft_block(const DraftBlock& job, void* scratch) {
  const Memory m(job, scratch);
  const int count = static_cast<int>(job.layers->size());
  const char* x = static_cast<const char*>(job.x);
  for (int i = 0; i < count; ++i) {
    char* y = i + 1 == count ? static_cast<char*>(job.y) : m.x;
    run_layer(m, job, i, x, y);
    x = y;
  }
}

size_t draft_context_scratch_bytes(const DraftContext& job) { return Memory(job, nullptr).bytes; }

void draft_context(const DraftContext& job, void* scratch) {
  const Memory m(job, scratch);
  const DraftForm& form = job.form;
  const size_t row = form.dim * dspark_type_size(form.type);
  char* plane = job.context;
  for (const DraftLayer& layer : *job.layers) {
    m.multiply(static_cast<const char*>(job.x), layer.k, m.k);
    m.multiply(static_cast<const char*>(job.x), layer.v, m.v);
    m.turn(m.k, layer.k_norm, job.count, form.kv_heads, job.position);
    for (const char* fresh : {m.k, m.v}) {
      append({fresh, plane, job.count, form.kv_heads, job.capacity, job.at, row});
      plane += static_cast<int64_t>(form.kv_heads) * job.capacity * static_cast<int64_t>(row);
    }
  }
}

}  // namespace dspark
