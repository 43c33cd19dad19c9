// Plans products: sorts rows by expert, cuts them into tiles, and runs tiles times column blocks on the pool.
#include "matmul.h"

#include <algorithm>
#include <cstring>

#include "arena.h"
#include "dispatch.h"
#include "matmul_kernels.h"
#include "pool.h"

namespace dspark {
namespace {

// More rows are done in slabs of this many, which bounds the scratch memory.
constexpr int64_t product_slab = 1024, experts_slab = 512;

const MatmulKernels& kernels() {
#if defined(__x86_64__)
  if (simd() == Simd::avx512) return matmul_avx512;
  if (simd() == Simd::avx2) return matmul_avx2;
#endif
  return matmul_portable;
}

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t block_size(const DsparkMatrix& w) { return w.format == DSPARK_DENSE ? 16 : 64; }

int64_t row_bytes(const DsparkMatrix& w) {
  if (w.format == DSPARK_DENSE) return w.in * static_cast<int64_t>(dspark_type_size(w.type));
  return w.format == DSPARK_AFFINE8 ? w.in : w.in / 2;
}

int64_t scale_row_bytes(const DsparkMatrix& w) {
  if (w.format == DSPARK_DENSE) return 0;
  return w.in / w.group * (w.format == DSPARK_NVFP4 ? 1 : static_cast<int64_t>(dspark_type_size(w.type)));
}

Weights expert_of(const DsparkMatrix& w, int64_t expert, DsparkActivation activation) {
  const auto at = [&](const void* p, int64_t bytes) {
    return p == nullptr ? nullptr : static_cast<const uint8_t*>(p) + expert * w.out * bytes;
  };
  const int64_t values = row_bytes(w), scales = scale_row_bytes(w);
  return {w.format, w.type, w.group, activation, w.out, w.in, (w.in + block_size(w) - 1) / block_size(w),
          at(w.values, values), at(w.scales, scales), at(w.biases, scales), values, scales, w.alpha};
}

Layout layout_of(const DsparkMatrix& w, DsparkActivation activation) {
  const int64_t blocks = (w.in + block_size(w) - 1) / block_size(w);
  if (w.format == DSPARK_DENSE) return {blocks, 1, blocks * 16 * 4, 0, 0};
  const int per_block = w.format == DSPARK_NVFP4 ? 4 : w.group == 32 ? 2 : 1;
  const bool i16 = activation == DSPARK_I16;
  return {blocks, per_block, blocks * 64 * (i16 ? 2 : 4), i16 ? round_up(blocks, 8) : 0,
          w.format == DSPARK_NVFP4 ? 0 : round_up(blocks * per_block, 8)};
}

// Consecutive tiles that use one expert.
struct Job {
  int64_t expert;
  int64_t first_tile;
  int64_t tiles;
  int64_t rows;
  int64_t first_task;
  int64_t task_columns;
};

// Rows ("slots" where experts are chosen) in the order of their experts, and the tiles they are cut into.
struct Plan {
  Job* jobs;
  int64_t job_count;
  int64_t* order;  // order[i]: which slot is i-th by expert
  int64_t* starts;
  int64_t tile_count;
};

Plan take_plan(Arena& arena, int64_t slots, int64_t experts) {
  Plan plan{};
  plan.jobs = arena.take<Job>(std::min(slots, experts));
  plan.order = arena.take<int64_t>(slots);
  plan.starts = arena.take<int64_t>(experts + 1);
  return plan;
}

int64_t id_at(DsparkIds ids, int64_t i) {
  if (ids.size == 4) return static_cast<const int32_t*>(ids.data)[i];
  return static_cast<const int64_t*>(ids.data)[i];
}

// Counting sort by expert; false if an id is out of range.
bool sort_slots(Plan& plan, DsparkIds ids, int64_t first, int64_t slots, int64_t experts) {
  std::fill(plan.starts, plan.starts + experts + 1, 0);
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t id = ids.data == nullptr ? 0 : id_at(ids, first + i);
    if (id < 0 || id >= experts) return false;
    ++plan.starts[id + 1];
  }
  for (int64_t e = 0; e < experts; ++e) plan.starts[e + 1] += plan.starts[e];
  for (int64_t i = 0; i < slots; ++i) plan.order[plan.starts[ids.data == nullptr ? 0 : id_at(ids, first + i)]++] = i;
  return true;
}

void cut_jobs(Plan& plan, int64_t experts, int64_t tile_rows) {
  plan.job_count = plan.tile_count = 0;
  int64_t begin = 0;
  for (int64_t e = 0; e < experts; ++e) {  // sort_slots left starts[e] at the end of e's slots
    const int64_t rows = plan.starts[e] - begin;
    begin = plan.starts[e];
    if (rows == 0) continue;
    const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    plan.jobs[plan.job_count++] = {e, plan.tile_count, tiles, rows, 0, 0};
    plan.tile_count += tiles;
  }
}

// One matrix (or one an expert) applied to all planned rows.
struct Stage {
  const MatmulKernels* kernels;
  const DsparkMatrix* w;
  DsparkActivation activation;
  Layout layout;
  Tile* tiles;
  uint8_t* values;
  float* steps;
  float* sums;
  uint8_t* rest_values;
  float* rest_steps;
  float* rest_sums;
};

Stage take_stage(Arena& arena, const DsparkMatrix* w, DsparkActivation activation, int64_t slots) {
  const Layout layout = layout_of(*w, activation);
  Stage stage{};
  stage.kernels = &kernels();
  stage.w = w;
  stage.activation = activation;
  stage.layout = layout;
  stage.tiles = arena.take<Tile>(slots);
  stage.values = arena.take<uint8_t>(slots * layout.value_bytes);
  stage.steps = arena.take<float>(slots * layout.steps);
  stage.sums = arena.take<float>(slots * layout.sums);
  const int64_t rests = layout.steps > 0 ? slots : 0;  // of I16 only
  stage.rest_values = arena.take<uint8_t>(rests * layout.value_bytes);
  stage.rest_steps = arena.take<float>(rests * layout.steps);
  stage.rest_sums = arena.take<float>(rests * layout.sums);
  return stage;
}

bool uses_i16(const Stage& stage) { return stage.w->format != DSPARK_DENSE && stage.activation == DSPARK_I16; }

int most_rows(const Stage& stage) { return uses_i16(stage) ? stage.kernels->i16_rows : stage.kernels->float_rows; }

double slowness(const Stage& stage) { return stage.kernels == &matmul_portable ? 10 : 1; }

// Rough nanoseconds of one output column for `rows` rows of one tile.
double column_nanoseconds(const Stage& stage, int64_t rows) {
  const double block = stage.w->format == DSPARK_DENSE ? 0.5 + 0.35 * static_cast<double>(rows)
                                                       : 1.0 + (uses_i16(stage) ? 0.8 : 1.6) * static_cast<double>(rows);
  return slowness(stage) * static_cast<double>(stage.layout.blocks) * block;
}

struct Addresses {  // of slot i: where its input row is, and which row of the result is its own
  const void* input;
  int64_t output;
};

template <typename AddressOf>
void fill_tiles(const Plan& plan, const Stage& stage, DsparkType input_type, AddressOf&& address_of) {
  int64_t slot = 0;
  for (int64_t j = 0; j < plan.job_count; ++j) {
    const Job& job = plan.jobs[j];
    for (int64_t t = 0; t < job.tiles; ++t) {
      const int64_t rows = (job.rows * (t + 1)) / job.tiles - (job.rows * t) / job.tiles;
      Tile& tile = stage.tiles[job.first_tile + t];
      tile.rows = static_cast<int>(rows);
      tile.input_type = input_type;
      tile.values = stage.values + slot * stage.layout.value_bytes;
      tile.steps = stage.steps + slot * stage.layout.steps;
      tile.sums = stage.sums + slot * stage.layout.sums;
      tile.rest_values = stage.rest_values + slot * stage.layout.value_bytes;
      tile.rest_steps = stage.rest_steps + slot * stage.layout.steps;
      tile.rest_sums = stage.rest_sums + slot * stage.layout.sums;
      for (int64_t m = 0; m < rows; ++m, ++slot) {
        const Addresses address = address_of(slot, plan.order[slot]);
        tile.input[m] = address.input;
        tile.output[m] = address.output;
      }
    }
  }
}

void prepare_tiles(const Plan& plan, const Stage& stage) {
  const Weights w = expert_of(*stage.w, 0, stage.activation);
  const double row = 0.4 * static_cast<double>(stage.w->in) * slowness(stage);
  const double rows = static_cast<double>(plan.jobs[plan.job_count - 1].rows + plan.tile_count);
  parallel_for(static_cast<int>(plan.tile_count), row * rows, [&](int t) {
    for (int m = 0; m < stage.tiles[t].rows; ++m) stage.kernels->prepare(w, stage.layout, stage.tiles[t], m);
  });
}

// Columns a task: enough work to be worth handing out, few enough to share it, and for many tiles few enough that the
// weights stay in the second-level cache.
int64_t task_columns(const Stage& stage, const Job& job, double all_nanoseconds) {
  const double one = column_nanoseconds(stage, job.rows);
  const double wanted = std::max(8000.0, std::min(all_nanoseconds / (8 * threads()), 200000.0));
  int64_t columns = round_up(std::max<int64_t>(static_cast<int64_t>(wanted / one), 8), 8);
  if (job.tiles > 4) columns = std::min(columns, std::max<int64_t>(131072 / row_bytes(*stage.w) / 8 * 8, 8));
  return std::min(columns, round_up(stage.w->out, 8));
}

void run_columns(Plan& plan, const Stage& stage, const Result& result) {
  double nanoseconds = 0;
  for (int64_t j = 0; j < plan.job_count; ++j) {
    nanoseconds += column_nanoseconds(stage, plan.jobs[j].rows) * static_cast<double>(stage.w->out);
  }
  int64_t tasks = 0;
  for (int64_t j = 0; j < plan.job_count; ++j) {
    plan.jobs[j].task_columns = task_columns(stage, plan.jobs[j], nanoseconds);
    plan.jobs[j].first_task = tasks;
    tasks += (stage.w->out + plan.jobs[j].task_columns - 1) / plan.jobs[j].task_columns;
  }
  parallel_for(static_cast<int>(tasks), nanoseconds, [&](int task) {
    const Job* job = plan.jobs + plan.job_count - 1;
    while (job->first_task > task) --job;
    const int64_t first = (task - job->first_task) * job->task_columns;
    const int64_t last = std::min(first + job->task_columns, stage.w->out);
    const Weights w = expert_of(*stage.w, job->expert, stage.activation);
    stage.kernels->columns(w, stage.layout, stage.tiles + job->first_tile, job->tiles, first, last, result);
  });
}

const uint8_t* offset(const void* p, int64_t bytes) { return static_cast<const uint8_t*>(p) + bytes; }
uint8_t* offset(void* p, int64_t bytes) { return static_cast<uint8_t*>(p) + bytes; }

// What the single-matrix functions share: slots rows from `first_slot` on.
struct Gather {
  const void* x;
  DsparkType type;
  int64_t inputs_of_a_row;  // consecutive slots that read the same row of x
  const DsparkMatrix* w;
  DsparkIds ids;
  void* y;
  DsparkActivation activation;
};

bool gather_slab(const Gather& g, int64_t first_slot, int64_t slots, void* scratch) {
  Arena arena(scratch);
  Plan plan = take_plan(arena, slots, g.w->experts);
  const Stage stage = take_stage(arena, g.w, g.activation, slots);
  if (!sort_slots(plan, g.ids, first_slot, slots, g.w->experts)) return false;
  cut_jobs(plan, g.w->experts, most_rows(stage));
  const int64_t size = static_cast<int64_t>(dspark_type_size(g.type));
  fill_tiles(plan, stage, g.type, [&](int64_t, int64_t slot) {
    const int64_t row = (first_slot + slot) / g.inputs_of_a_row;
    return Addresses{offset(g.x, row * g.w->in * size), first_slot + slot};
  });
  prepare_tiles(plan, stage);
  run_columns(plan, stage, {g.y, g.type, g.w->out, false});
  return true;
}

size_t gather_bytes(const DsparkMatrix* w, int64_t slots, DsparkActivation activation) {
  Arena arena(nullptr);
  take_plan(arena, slots, w->experts);
  take_stage(arena, w, activation, slots);
  return arena.bytes();
}

struct ExpertsMemory {
  Plan plan;
  Stage up, down;
  float* hidden;  // [slots by expert, up.out]
  float* parts;   // [slots, down.out]
};

ExpertsMemory take_experts(Arena& arena, const DsparkMatrix* up, const DsparkMatrix* down, DsparkActivation activation,
                           int64_t slots) {
  ExpertsMemory memory{};
  memory.plan = take_plan(arena, slots, up->experts);
  memory.up = take_stage(arena, up, activation, slots);
  memory.down = take_stage(arena, down, activation, slots);
  memory.hidden = arena.take<float>(slots * up->out);
  memory.parts = arena.take<float>(slots * down->out);
  return memory;
}

}  // namespace
}  // namespace dspark

using namespace dspark;

extern "C" size_t dspark_product_scratch_bytes(const DsparkMatrix* w, int64_t rows, DsparkActivation activation) {
  return gather_bytes(w, std::min(rows, product_slab), activation);
}

extern "C" void dspark_product(const void* x, DsparkType type, int64_t rows, const DsparkMatrix* w, void* y,
                               DsparkActivation activation, void* scratch) {
  const Gather g{x, type, 1, w, {nullptr, 4}, y, activation};
  for (int64_t first = 0; first < rows; first += product_slab) {
    gather_slab(g, first, std::min(product_slab, rows - first), scratch);
  }
}

extern "C" size_t dspark_gather_scratch_bytes(const DsparkMatrix* w, int64_t rows, int64_t slots,
                                              DsparkActivation activation) {
  return gather_bytes(w, std::min(rows, experts_slab) * slots, activation);
}

extern "C" bool dspark_gather(const void* x, DsparkType type, int64_t rows, int64_t slots, bool own_inputs,
                              const DsparkMatrix* w, DsparkIds ids, void* y, DsparkActivation activation,
                              void* scratch) {
  const Gather g{x, type, own_inputs ? 1 : slots, w, ids, y, activation};
  for (int64_t first = 0; first < rows; first += experts_slab) {
    if (!gather_slab(g, first * slots, std::min(experts_slab, rows - first) * slots, scratch)) return false;
  }
  return true;
}

extern "C" size_t dspark_experts_scratch_bytes(const DsparkMatrix* up, const DsparkMatrix* down, int64_t rows,
                                               int64_t slots, DsparkActivation activation) {
  Arena arena(nullptr);
  take_experts(arena, up, down, activation, std::min(rows, experts_slab) * slots);
  return arena.bytes();
}

namespace dspark {
namespace {

struct Experts {
  const void* x;
  DsparkType type;
  int64_t slots;
  const DsparkMatrix* up;
  const DsparkMatrix* down;
  DsparkIds ids;
  const float* weights;
  void* y;
  DsparkActivation activation;
};

void sum_slots(const Experts& g, const MatmulKernels& kernels, const float* parts, int64_t first_row, int64_t rows) {
  const int64_t out = g.down->out, size = static_cast<int64_t>(dspark_type_size(g.type));
  const float one = 1.0f;
  parallel_for(static_cast<int>(rows), 0.2 * static_cast<double>(rows * g.slots * out), [&](int i) {
    const int64_t row = first_row + i;
    const float* weights = g.weights == nullptr ? &one : g.weights + row * g.slots;
    kernels.weighted_sum(parts + i * g.slots * out, out, weights, g.slots, offset(g.y, row * out * size), g.type, 0,
                           out);
  });
}

bool experts_slab_of(const Experts& g, int64_t first_row, int64_t rows, void* scratch) {
  Arena arena(scratch);
  const int64_t slots = rows * g.slots, size = static_cast<int64_t>(dspark_type_size(g.type));
  ExpertsMemory memory = take_experts(arena, g.up, g.down, g.activation, slots);
  Plan& plan = memory.plan;
  if (!sort_slots(plan, g.ids, first_row * g.slots, slots, g.up->experts)) return false;
  cut_jobs(plan, g.up->experts, std::min(most_rows(memory.up), most_rows(memory.down)));
  fill_tiles(plan, memory.up, g.type, [&](int64_t place, int64_t slot) {
    return Addresses{offset(g.x, (first_row + slot / g.slots) * g.up->in * size), place};
  });
  prepare_tiles(plan, memory.up);
  run_columns(plan, memory.up, {memory.hidden, DSPARK_F32, g.up->out, true});
  fill_tiles(plan, memory.down, DSPARK_F32, [&](int64_t place, int64_t slot) {
    return Addresses{memory.hidden + place * g.up->out, slot};
  });
  prepare_tiles(plan, memory.down);
  run_columns(plan, memory.down, {memory.parts, DSPARK_F32, g.down->out, false});
  sum_slots(g, *memory.up.kernels, memory.parts, first_row, rows);
  return true;
}

}  // namespace
}  // namespace dspark

extern "C" bool dspark_experts(const void* x, DsparkType type, int64_t rows, int64_t slots, const DsparkMatrix* up,
                               const DsparkMatrix* down, DsparkIds ids, const float* weights, void* y,
                               DsparkActivation activation, void* scratch) {
  const Experts g{x, type, slots, up, down, ids, ids.data == nullptr ? nullptr : weights, y, activation};
  for (int64_t first = 0; first < rows; first += experts_slab) {
    if (!experts_slab_of(g, first, std::min(experts_slab, rows - first), scratch)) return false;
  }
  return true;
}
