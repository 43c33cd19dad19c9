// Attention of a few query rows over a long cache. Included per instruction set after layers_simd.h.
//
// Query rows of one kv head are counted token * group + head within the group. Keys are read in blocks of
// `attend_block` at multiples of it, with an online softmax from block to block (Milakov & Gimelshein, 2018); each
// span of `attend_span` keys starts afresh and spans merge in ascending order. Which keys share a block or a lane is
// thus a matter of their positions alone. Keys a row does not see are not read for it, whatever they hold.
//
// A partial or running softmax is, a row: maximum, sum of exp(logit - maximum), weighted sum of values [dim padded].
// A negative sum marks a row that has seen nothing.

LAYER_INLINE int padded(int n) { return (n + 7) / 8 * 8; }

struct SeenKeys {  // [begin, end)
  int begin, end;
};

LAYER_INLINE SeenKeys seen_keys(const Attend& job, int row) {
  const int position = job.length - job.rows + row / job.group();
  const int begin = job.window > 0 && position + 1 > job.window ? position + 1 - job.window : 0;
  return {begin, position + 1};
}

// The keys of the span that some row of [row, end) sees.
LAYER_INLINE SeenKeys span_keys(const Attend& job, int row, int end, int span) {
  const int begin = seen_keys(job, row).begin, stop = seen_keys(job, end - 1).end;
  const int first = span * attend_span, last = first + attend_span;
  return {begin > first ? begin : first, stop < last ? stop : last};
}

LAYER_INLINE float exp1(float x) { return exp(splat(x))[0]; }
LAYER_INLINE float finite_or_zero(float maximum) { return maximum == -__builtin_inff() ? 0.f : maximum; }

// sums[r][c] += sum over j in [begin, end) of p[r][j] * values[j][c], j ascending, for R rows and C vectors.
template <int R, int C>
LAYER_INLINE void weigh_tile(const float* p, const float* values, int64_t stride, int begin, int end, int left,
                             float* sums, int sums_stride) {
  V held[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) held[r][c] = load(sums + r * sums_stride + 8 * c);
  for (int j = begin; j < end; j++) {
    V v[C];
    for (int c = 0; c < C; c++) v[c] = load_part(values + j * stride + 8 * c, left - 8 * c);
    for (int r = 0; r < R; r++) {
      const V weight = splat(p[r * attend_block + j]);
      for (int c = 0; c < C; c++) held[r][c] = fma(weight, v[c], held[r][c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(sums + r * sums_stride + 8 * c, held[r][c]);
}

template <int R>
static void weigh(const float* p, const float* values, int64_t stride, int begin, int end, int dim, float* sums,
                  int sums_stride) {
  if (begin >= end) return;
  int i = 0;
  if (R == 1)
    for (; i + 64 <= dim; i += 64) weigh_tile<R, 8>(p, values + i, stride, begin, end, 64, sums + i, sums_stride);
  for (; i + 16 <= dim; i += 16) weigh_tile<R, 2>(p, values + i, stride, begin, end, 16, sums + i, sums_stride);
  for (; i < dim; i += 8) weigh_tile<R, 1>(p, values + i, stride, begin, end, dim - i, sums + i, sums_stride);
}

// Logits of one block to weights, in place; the row's maximum and sum move along and its weighted sum is rescaled.
static void soften(float* p, SeenKeys keys, int width, float* row) {
  const int from = keys.begin / 8 * 8, to = (keys.end + 7) / 8 * 8;
  for (int j = from; j < keys.begin; j++) p[j] = -__builtin_inff();
  for (int j = keys.end; j < to; j++) p[j] = -__builtin_inff();
  V best = splat(-__builtin_inff());
  for (int j = from; j < to; j += 8) {
    const V s = load(p + j);
    best = s > best ? s : best;
  }
  const float block = largest(best), maximum = block > row[0] ? block : row[0], base = finite_or_zero(maximum);
  V sums = {};
  for (int j = from; j < to; j += 8) {
    const V weight = exp(load(p + j) - base);
    store(p + j, weight);
    sums = sums + weight;
  }
  if (row[1] < 0.f) row[1] = 0.f;
  if (maximum != row[0]) {
    const float shrink = exp1(row[0] - base);
    row[1] *= shrink;
    for (int i = 0; i < width; i += 8) store(row + 2 + i, load(row + 2 + i) * shrink);
  }
  row[0] = maximum;
  row[1] += sum(sums);
}

// One block for up to four rows: keys and values point at the block's first row, `common` is what all rows see.
template <int R>
static void attend_rows(const Attend& job, const float* q, const float* keys, int64_t key_stride, const float* values,
                        int64_t value_stride, const SeenKeys* seen, float* rows) {
  const int width = padded(job.dim), size = width + 2;
  alignas(64) float p[R * attend_block];
  int begin = attend_block, end = 0;
  SeenKeys common{0, attend_block};
  for (int r = 0; r < R; r++) {
    begin = seen[r].begin < begin ? seen[r].begin : begin;
    end = seen[r].end > end ? seen[r].end : end;
    common.begin = seen[r].begin > common.begin ? seen[r].begin : common.begin;
    common.end = seen[r].end < common.end ? seen[r].end : common.end;
  }
  if (begin >= end) return;
  dot_rows(q, width, R, keys + begin * key_stride, key_stride, end - begin, job.dim, job.scale, p + begin,
           attend_block);
  for (int r = 0; r < R; r++)
    if (seen[r].begin < seen[r].end) soften(p + r * attend_block, seen[r], width, rows + r * size);
  const bool any = common.begin < common.end;
  for (int r = 0; r < R; r++)
    weigh<1>(p + r * attend_block, values, value_stride, seen[r].begin, any ? common.begin : seen[r].end, job.dim,
             rows + r * size + 2, size);
  if (!any) return;
  weigh<R>(p, values, value_stride, common.begin, common.end, job.dim, rows + 2, size);
  for (int r = 0; r < R; r++)
    weigh<1>(p + r * attend_block, values, value_stride, common.end, seen[r].end, job.dim, rows + r * size + 2, size);
}

struct Block {  // float32 rows of one block, counted from its first position; only [begin, end) may be read
  const float* rows;
  int64_t stride;
};

LAYER_INLINE Block read_block(const Tensor& from, int64_t at, int64_t stride, SeenKeys keys, int dim, float* copy) {
  if (from.type == DSPARK_F32) return {(const float*)from.data + at, stride};
  const int width = padded(dim);
  for (int j = keys.begin; j < keys.end; j++) widen(from.data, from.type, at + j * stride, dim, copy + j * width);
  return {copy, width};
}

static void attend_partial(const Attend& job, int head, int row, int end, int span, float* partial) {
  const int width = padded(job.dim), size = width + 2, group = job.group(), count = end - row;
  alignas(64) float q[attend_chunk * attend_max_dim];
  alignas(64) float key_copy[attend_block * attend_max_dim], value_copy[attend_block * attend_max_dim];
  for (int r = 0; r < count; r++) {
    const int64_t at = ((int64_t)((row + r) / group) * job.heads + head * group + (row + r) % group) * job.dim;
    for (int i = 0; i < job.dim; i += 8)
      store(q + r * width + i, load_any(job.q.data, job.q.type, at + i, lanes_left(i, job.dim)));
    partial[r * size] = -__builtin_inff();
    partial[r * size + 1] = -1.f;
    for (int i = 0; i < width; i++) partial[r * size + 2 + i] = 0.f;
  }
  const SeenKeys all = span_keys(job, row, end, span);
  for (int first = all.begin / attend_block * attend_block; first < all.end; first += attend_block) {
    const SeenKeys here{all.begin > first ? all.begin - first : 0,
                        all.end - first < attend_block ? all.end - first : attend_block};
    const Block keys = read_block(job.keys, head * job.key_head_stride + first * job.key_row_stride, job.key_row_stride,
                                  here, job.dim, key_copy);
    const Block values = read_block(job.values, head * job.value_head_stride + first * job.value_row_stride,
                                    job.value_row_stride, here, job.dim, value_copy);
    SeenKeys seen[attend_chunk];
    for (int r = 0; r < count; r++) {
      const SeenKeys own = seen_keys(job, row + r);
      seen[r].begin = own.begin - first > here.begin ? own.begin - first : here.begin;
      seen[r].end = own.end - first < here.end ? own.end - first : here.end;
      if (seen[r].begin >= seen[r].end) seen[r] = {0, 0};
    }
    int r = 0;
    for (; r + 4 <= count; r += 4)
      attend_rows<4>(job, q + r * width, keys.rows, keys.stride, values.rows, values.stride, seen + r,
                     partial + r * size);
    for (; r < count; r++)
      attend_rows<1>(job, q + r * width, keys.rows, keys.stride, values.rows, values.stride, seen + r,
                     partial + r * size);
  }
}

// Before any key: nothing, or the sink's logit.
static void attend_start(const Attend& job, int head, int row, int end, float* running) {
  const int width = padded(job.dim), group = job.group();
  for (; row < end; row++, running += width + 2) {
    running[0] = -__builtin_inff();
    running[1] = 0.f;
    if (job.sinks.data) {
      running[0] = load_any(job.sinks.data, job.sinks.type, head * group + row % group, 1)[0];
      running[1] = 1.f;
    }
    for (int i = 0; i < width; i++) running[2 + i] = 0.f;
  }
}

static void attend_merge(const Attend& job, int rows, const float* partial, float* running) {
  const int width = padded(job.dim), size = width + 2;
  for (int r = 0; r < rows; r++, partial += size, running += size) {
    if (partial[1] < 0.f) continue;
    const float maximum = partial[0] > running[0] ? partial[0] : running[0], base = finite_or_zero(maximum);
    const float old = exp1(running[0] - base), fresh = exp1(partial[0] - base);
    running[0] = maximum;
    running[1] = fma1(partial[1], fresh, running[1] * old);
    for (int i = 0; i < width; i += 8)
      store(running + 2 + i, fma(load(partial + 2 + i), splat(fresh), load(running + 2 + i) * old));
  }
}

static void attend_finish(const Attend& job, int head, int row, int end, const float* running) {
  const int width = padded(job.dim), group = job.group();
  for (; row < end; row++, running += width + 2) {
    const int64_t at = ((int64_t)(row / group) * job.heads + head * group + row % group) * job.dim;
    for (int i = 0; i < job.dim; i += 8)
      narrow(job.out.data, job.out.type, at + i, load(running + 2 + i) / running[1], lanes_left(i, job.dim));
  }
}
