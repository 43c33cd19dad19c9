// Splits the layer kernels' work into tasks for the pool and picks the instruction set. The estimates of nanoseconds
// only decide whether a loop is worth waking threads for.
#include "layers.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "dispatch.h"
#include "pool.h"

namespace dspark {
namespace {

const LayerKernels& kernels() {
#if defined(__x86_64__)
  if (simd() != Simd::portable) return layers_avx2;
#endif
  return layers_portable;
}

int pieces(int64_t count, int64_t size) { return static_cast<int>((count + size - 1) / size); }

// f(begin, end) over [0, count) in ranges of `size`.
template <typename F>
void over_ranges(int64_t count, int64_t size, double nanoseconds, F f) {
  parallel_for(pieces(count, size), nanoseconds, [&](int i) { f(i * size, std::min<int64_t>(count, (i + 1) * size)); });
}

// Hands out parts of a scratch buffer; with a null buffer it only counts.
struct Carver {
  char* at;
  size_t used = 0;

  template <typename T>
  T* take(size_t count) {
    T* part = at ? reinterpret_cast<T*>(at + used) : nullptr;
    used += (count * sizeof(T) + 63) / 64 * 64;
    return part;
  }
};

struct MambaScratch {
  std::atomic<int>* unfinished;  // walks left, a group
  float *dt, *decay, *u, *y;
  size_t bytes;

  MambaScratch(const Mamba& job, void* memory) {
    Carver carve{static_cast<char*>(memory)};
    const size_t count = std::min(job.tokens, mamba_span);
    unfinished = carve.take<std::atomic<int>>(job.groups);
    dt = carve.take<float>(count * job.all_heads());
    decay = carve.take<float>(count * job.all_heads());
    u = carve.take<float>(count * job.conv_size());
    y = carve.take<float>(count * job.inner());
    bytes = carve.used;
  }
};

void mamba_window(const Mamba& job) {
  const size_t item = dspark_type_size(job.projected.type), row = job.conv_size() * item;
  for (int r = 0; r < job.taps - 1; ++r) {
    const int from = job.tokens + r;  // a row of the window followed by the conv inputs
    const char* source = from < job.taps - 1
                             ? static_cast<const char*>(job.window.data) + from * row
                             : static_cast<const char*>(job.projected.data) +
                                   (static_cast<size_t>(from - job.taps + 1) * job.width() + job.inner()) * item;
    std::memcpy(static_cast<char*>(job.window_out) + r * row, source, row);
  }
}

double mamba_nanoseconds(const Mamba& job, int count) {
  return (0.1 * job.state_size + 2) * job.all_heads() * job.channels * count;
}

void mamba_over_span(const Mamba& job, int first, int count, const MambaScratch& s) {
  const LayerKernels& k = kernels();
  const bool reads = job.y.data != nullptr;
  k.mamba_steps(job, first, count, s.dt, s.decay);
  const int convolved = reads ? job.conv_size() : job.conv_size() - job.groups * job.state_size;
  over_ranges(convolved, 128, 1.0 * count * convolved,
              [&](int64_t begin, int64_t end) { k.mamba_conv(job, first, count, begin, end, s.u); });

  const int heads = job.all_heads();
  const int wanted = std::max(1, pieces(2 * threads(), heads));
  const int rows = std::max(4, pieces(pieces(job.channels, wanted), 4) * 4), parts = pieces(job.channels, rows);
  for (int g = 0; g < job.groups; ++g) s.unfinished[g].store(job.heads * parts, std::memory_order_relaxed);
  parallel_for(heads * parts, mamba_nanoseconds(job, count), [&](int task) {
    const int head = task / parts, channel = task % parts * rows, group = head / job.heads;
    k.mamba_walk(job, first, count, head, channel, std::min(job.channels, channel + rows), s.u, s.dt, s.decay, s.y);
    if (reads && s.unfinished[group].fetch_sub(1, std::memory_order_acq_rel) == 1)
      k.mamba_norm(job, first, count, group, s.y);
  });
}

// Where the softmaxes of one attention go: a running one a chunk of query rows, and a partial one a chunk (or, split,
// a chunk and span).
struct AttendPlan {
  int row_count, chunk_rows, chunks, first_span, spans, size;
  float *running, *partial;
  size_t bytes;

  AttendPlan(const Attend& job, void* memory) {
    row_count = job.rows * job.group();
    chunks = pieces(row_count, attend_chunk);
    chunk_rows = pieces(row_count, chunks);
    const int oldest = job.length - job.rows + 1;
    first_span = job.window > 0 && oldest > job.window ? (oldest - job.window) / attend_span : 0;
    spans = pieces(job.length, attend_span) - first_span;
    size = (job.dim + 7) / 8 * 8 + 2;
    Carver carve{static_cast<char*>(memory)};
    const size_t one = static_cast<size_t>(chunk_rows) * size * chunks * job.kv_heads;
    running = carve.take<float>(one);
    partial = carve.take<float>(job.split ? one * spans : one);
    bytes = carve.used;
  }
};

bool chunk_sees(const Attend& job, int row, int end, int span) {
  const int first = job.length - job.rows + row / job.group(), last = job.length - job.rows + (end - 1) / job.group();
  return span * attend_span <= last && (job.window <= 0 || (span + 1) * attend_span > first + 1 - job.window);
}

// The ranks' best, ties to the lower index; `taken` ranks as nothing. NaN loses to every number.
int best_left(const float* ranks, const bool* taken, int count) {
  int best = -1;
  for (int i = 0; i < count; ++i) {
    if (taken[i]) continue;
    if (best < 0 || ranks[i] > ranks[best] || (std::isnan(ranks[best]) && !std::isnan(ranks[i]))) best = i;
  }
  return best;
}

void keep_best_groups(const Route& job, float* ranks, float* best_two, bool* kept) {
  const int size = job.experts / job.groups;
  for (int g = 0; g < job.groups; ++g) {
    float first = -std::numeric_limits<float>::infinity(), second = first;
    for (int i = 0; i < size; ++i) {
      const float rank = ranks[g * size + i];
      if (rank > first) {
        second = first;
        first = rank;
      } else if (rank > second) {
        second = rank;
      }
    }
    best_two[g] = first + second;
    kept[g] = false;
  }
  for (int i = 0; i < job.top_groups; ++i) kept[best_left(best_two, kept, job.groups)] = true;
  for (int e = 0; e < job.experts; ++e)
    if (!kept[e / size]) ranks[e] = 0;
}

void choose(const Route& job, int row, const float* scores, float* ranks, bool* taken) {
  for (int e = 0; e < job.experts; ++e) ranks[e] = scores[e] + job.correction[e];
  if (job.groups > 1) keep_best_groups(job, ranks, ranks + job.experts, taken);
  std::fill_n(taken, job.experts, false);
  uint32_t* ids = job.ids + static_cast<size_t>(row) * job.top;
  float* weights = job.weights + static_cast<size_t>(row) * job.top;
  float total = 0;
  for (int i = 0; i < job.top; ++i) {
    const int expert = best_left(ranks, taken, job.experts);
    taken[expert] = true;
    ids[i] = static_cast<uint32_t>(expert);
    weights[i] = scores[expert];
    total += scores[expert];
  }
  const bool divide = job.normalize && job.top > 1;
  for (int i = 0; i < job.top; ++i) {
    if (divide) weights[i] /= total + 1e-20f;
    weights[i] *= job.scale;
  }
}

struct RouteScratch {
  float *x, *scores, *ranks;
  bool* taken;
  size_t bytes;

  RouteScratch(const Route& job, void* memory) {
    Carver carve{static_cast<char*>(memory)};
    x = carve.take<float>(job.x.type == DSPARK_F32 ? 0 : static_cast<size_t>(job.rows) * job.size);
    scores = carve.take<float>(static_cast<size_t>(job.rows) * job.experts);
    ranks = carve.take<float>(2 * job.experts);
    taken = carve.take<bool>(job.experts);
    bytes = carve.used;
  }
};

}  // namespace

void rms_norm(const RmsNorm& job) {
  const int64_t rows = std::max(1, 8192 / std::max(job.size, 1));
  over_ranges(job.rows, rows, 0.3 * job.rows * job.size,
              [&](int64_t begin, int64_t end) { kernels().rms_norm(job, begin, end); });
}

void activate(const Activation& job) {
  over_ranges(job.count, 8192, (job.gated.data ? 0.6 : 0.15) * job.count,
              [&](int64_t begin, int64_t end) { kernels().activate(job, begin, end); });
}

void add(const Sum& job) {
  over_ranges(job.count, 8192, 0.15 * job.count, [&](int64_t begin, int64_t end) { kernels().add(job, begin, end); });
}

size_t mamba_scratch_bytes(const Mamba& job) { return MambaScratch(job, nullptr).bytes; }

void mamba(const Mamba& job, void* scratch) {
  const MambaScratch parts(job, scratch);
  for (int g = 0; g < job.groups; ++g) new (parts.unfinished + g) std::atomic<int>(0);
  for (int first = 0; first < job.tokens; first += mamba_span)
    mamba_over_span(job, first, std::min(mamba_span, job.tokens - first), parts);
  mamba_window(job);
}

void mamba_all(const MambaTask* tasks, int count) {
  if (count < 2 * threads()) {
    for (int i = 0; i < count; ++i) mamba(tasks[i].job, tasks[i].scratch);
    return;
  }
  double work = 0;
  for (int i = 0; i < count; ++i) work += mamba_nanoseconds(tasks[i].job, tasks[i].job.tokens);
  parallel_for(count, work, [&](int i) { mamba(tasks[i].job, tasks[i].scratch); });
}

bool attend_should_split(const Attend& job) {
  const int chunks = pieces(static_cast<int64_t>(job.rows) * job.group(), attend_chunk) * job.kv_heads;
  return threads() > 1 && chunks < 4 * threads() && job.length > attend_span;
}

size_t attend_scratch_bytes(const Attend& job) { return AttendPlan(job, nullptr).bytes; }

void attend(const Attend& job, void* scratch) {
  const AttendPlan plan(job, scratch);
  const LayerKernels& k = kernels();
  const size_t one = static_cast<size_t>(plan.chunk_rows) * plan.size;
  const int tasks = plan.chunks * job.kv_heads;
  const int seen = job.window > 0 ? std::min(job.length, job.window + job.rows) : job.length;
  const double work = 0.1 * plan.row_count * job.kv_heads * seen * job.dim;
  const auto begin = [&](int task) { return task % plan.chunks * plan.chunk_rows; };
  const auto end = [&](int task) { return std::min(plan.row_count, begin(task) + plan.chunk_rows); };
  const auto part = [&](int task, int s) {
    return plan.partial + one * (job.split ? static_cast<size_t>(task) * plan.spans + s : task);
  };
  const auto partial = [&](int task, int s) {
    k.attend_partial(job, task / plan.chunks, begin(task), end(task), plan.first_span + s, part(task, s));
  };
  if (job.split)
    parallel_for(tasks * plan.spans, work, [&](int i) {
      const int task = i / plan.spans, s = i % plan.spans;
      if (chunk_sees(job, begin(task), end(task), plan.first_span + s)) partial(task, s);
    });
  parallel_for(tasks, job.split ? 0.3 * tasks * one * plan.spans : work, [&](int task) {
    float* running = plan.running + one * task;
    k.attend_start(job, task / plan.chunks, begin(task), end(task), running);
    for (int s = 0; s < plan.spans; ++s) {
      if (!chunk_sees(job, begin(task), end(task), plan.first_span + s)) continue;
      if (!job.split) partial(task, s);
      k.attend_merge(job, end(task) - begin(task), part(task, s), running);
    }
    k.attend_finish(job, task / plan.chunks, begin(task), end(task), running);
  });
}

size_t route_scratch_bytes(const Route& job) { return RouteScratch(job, nullptr).bytes; }

void route(const Route& job, void* scratch) {
  const RouteScratch parts(job, scratch);
  const LayerKernels& k = kernels();
  const float* x = k.widen(job.x, static_cast<int64_t>(job.rows) * job.size, parts.x);
  over_ranges(job.experts, 16, 0.1 * job.rows * job.experts * job.size,
              [&](int64_t begin, int64_t end) { k.route_scores(job, x, begin, end, parts.scores); });
  for (int row = 0; row < job.rows; ++row)
    choose(job, row, parts.scores + static_cast<size_t>(row) * job.experts, parts.ranks, parts.taken);
}

void head_norm_rope(const HeadNormRope& job) {
  double frequencies[rope_max_dim / 2];
  const double step = std::pow(job.theta, -2.0 / job.dim);
  double frequency = 1;
  for (int i = 0; i < job.dim / 2; ++i, frequency *= step) frequencies[i] = frequency;
  over_ranges(job.rows, 4, 0.6 * job.rows * job.heads * job.dim,
              [&](int64_t begin, int64_t end) { kernels().head_norm_rope(job, frequencies, begin, end); });
}

void append(const Append& job) {
  for (int64_t t = 0; t < job.count; ++t)
    for (int64_t h = 0; h < job.kv_heads; ++h)
      std::memcpy(job.cache + (h * job.capacity + job.offset + t) * job.row_bytes,
                  job.rows + (t * job.kv_heads + h) * job.row_bytes, job.row_bytes);
}

}  // namespace dspark
