// Mamba-2's inner loops over a span of up to `mamba_span` tokens. Included per instruction set after layers_simd.h.
//
// Scratch of a span, float32, token by token: dt and decay [count, heads], u [count, conv_size] (the conv's outputs
// x | B | C), y [count, inner] (read-outs, gated). The order of every sum is fixed per channel, so tokens may come in
// any spans.

// Step sizes softplus(raw + bias), clipped, and exp(dt * a), of every head.
static void mamba_steps(const Mamba& job, int first, int count, float* dt, float* decay) {
  const int heads = job.all_heads();
  for (int t = 0; t < count; t++) {
    const int64_t at = (int64_t)(first + t) * job.width() + job.inner() + job.conv_size();
    for (int h = 0; h < heads; h += 8) {
      const int n = lanes_left(h, heads);
      V step = softplus(load_any(job.projected.data, job.projected.type, at + h, n) + load_part(job.dt_bias + h, n));
      step = step < job.dt_min ? splat(job.dt_min) : step;
      step = step > job.dt_max ? splat(job.dt_max) : step;
      store_part(dt + (int64_t)t * heads + h, step, n);
      store_part(decay + (int64_t)t * heads + h, exp(step * load_part(job.a + h, n)), n);
    }
  }
}

// The n channels from c; `n` is 8 but in a last, partial vector. `taps` is job.taps where that is known here, or 0.
template <int type, int taps>
LAYER_INLINE void conv_channels(const Mamba& job, int first, int count, int c, int n, float* u) {
  const int conv = job.conv_size(), width = job.width(), before = (taps ? taps : job.taps) - 1;
  const int64_t column = job.inner() + c;
  const bool biased = job.conv_bias.data;
  V weight[taps ? taps : mamba_max_taps], past[taps ? taps : mamba_max_taps], bias = {};
  for (int j = 0; j <= before; j++)
    weight[j] = load_any(job.conv_weight.data, job.conv_weight.type, (int64_t)j * conv + c, n);
  if (biased) bias = load_any(job.conv_bias.data, job.conv_bias.type, c, n);
  for (int j = 0; j < before; j++) {
    const int row = first + j - before;
    past[j] = row < 0 ? load_as<type>(job.window.data, (int64_t)(row + before) * conv + c, n)
                      : load_as<type>(job.projected.data, (int64_t)row * width + column, n);
  }
  const void* rows = job.projected.data;
  for (int t = 0; t < count; t++) {
    const V x = load_as<type>(rows, (int64_t)(first + t) * width + column, n);
    V sum = past[0] * weight[0];
    for (int j = 1; j < before; j++) sum = fma(past[j], weight[j], sum);
    sum = fma(x, weight[before], sum);
    for (int j = 1; j < before; j++) past[j - 1] = past[j];
    past[before - 1] = x;
    if (biased) sum = sum + bias;
    store_part(u + (int64_t)t * conv + c, silu(sum), n);
  }
}

template <int type, int taps>
static void conv_range(const Mamba& job, int first, int count, int channel, int end, float* u) {
  int c = channel;
  for (; c + 8 <= end; c += 8) conv_channels<type, taps>(job, first, count, c, 8, u);
  if (c < end) conv_channels<type, taps>(job, first, count, c, end - c, u);
}

template <int type>
static void mamba_conv_typed(const Mamba& job, int first, int count, int channel, int end, float* u) {
  if (job.taps == 4) return conv_range<type, 4>(job, first, count, channel, end, u);
  conv_range<type, 0>(job, first, count, channel, end, u);
}

// silu(bias + sum of taps) of channels [channel, end).
static void mamba_conv(const Mamba& job, int first, int count, int channel, int end, float* u) {
  if (job.projected.type == DSPARK_F32) return mamba_conv_typed<DSPARK_F32>(job, first, count, channel, end, u);
  if (job.projected.type == DSPARK_BF16) return mamba_conv_typed<DSPARK_BF16>(job, first, count, channel, end, u);
  mamba_conv_typed<DSPARK_F16>(job, first, count, channel, end, u);
}

struct WalkInputs {  // of one head, per token at the strides given
  const float *x, *b, *c, *dt, *decay;
  float* y;
  int64_t u_stride, head_stride, y_stride;
  float d;
};

// Moves R rows of a head's state over `count` tokens: S = decay S + (dt x) B, and y = S C + d x where `read`.
template <int R, bool read>
static void walk_rows(const WalkInputs& in, int count, int state_size, const float* state, float* out) {
  for (int t = 0; t < count; t++) {
    const float *x = in.x + t * in.u_stride, *b = in.b + t * in.u_stride, *c = in.c + t * in.u_stride;
    const float dt = in.dt[t * in.head_stride];
    const V decay = splat(in.decay[t * in.head_stride]);
    V inject[R], sums[R];
    for (int r = 0; r < R; r++) inject[r] = splat(dt * x[r]), sums[r] = splat(0.f);
    int s = 0;
    for (; s + 8 <= state_size; s += 8) {
      const V bs = load(b + s), cs = read ? load(c + s) : V{};
      for (int r = 0; r < R; r++) {
        const V next = fma(decay, load(state + r * state_size + s), inject[r] * bs);
        store(out + r * state_size + s, next);
        if (read) sums[r] = fma(next, cs, sums[r]);
      }
    }
    if (s < state_size) {
      const int n = state_size - s;
      for (int r = 0; r < R; r++) {
        const V next = fma(decay, load_part(state + r * state_size + s, n), inject[r] * load_part(b + s, n));
        store_part(out + r * state_size + s, next, n);
        if (read) sums[r] = fma(next, load_part(c + s, n), sums[r]);
      }
    }
    if constexpr (read && R == 4) {
      const V4 reads = sum4(sums[0], sums[1], sums[2], sums[3]);
      for (int r = 0; r < R; r++) in.y[t * in.y_stride + r] = fma1(in.d, x[r], reads[r]);
    } else if constexpr (read) {
      for (int r = 0; r < R; r++) in.y[t * in.y_stride + r] = fma1(in.d, x[r], sum(sums[r]));
    }
    state = out;
  }
}

template <bool read>
static void walk_channels(WalkInputs in, int count, int state_size, int channels, const float* state, float* out) {
  int p = 0;
  for (; p + 4 <= channels; p += 4, in.x += 4, in.y += 4)
    walk_rows<4, read>(in, count, state_size, state + (int64_t)p * state_size, out + (int64_t)p * state_size);
  for (; p < channels; p++, in.x++, in.y++)
    walk_rows<1, read>(in, count, state_size, state + (int64_t)p * state_size, out + (int64_t)p * state_size);
}

// Channels [channel, end) of one head through the span, and their gate y * silu(z).
static void mamba_walk(const Mamba& job, int first, int count, int head, int channel, int end, const float* u,
                       const float* dt, const float* decay, float* y) {
  const int inner = job.inner(), size = job.state_size, group = head / job.heads;
  const int64_t column = (int64_t)head * job.channels + channel, row = column * size;
  const float *b = u + inner + group * size, *c = b + job.groups * size;
  const float d = job.d ? job.d[head] : 0.f;
  const WalkInputs in{u + column,      b,     c, dt + head, decay + head, y + column, job.conv_size(),
                      job.all_heads(), inner, d};
  const float* state = (first == 0 ? job.state : job.state_out) + row;
  if (!job.y.data) return walk_channels<false>(in, count, size, end - channel, state, job.state_out + row);
  walk_channels<true>(in, count, size, end - channel, state, job.state_out + row);
  for (int t = 0; t < count; t++)
    for (int p = 0; p < end - channel; p += 8) {
      const int n = lanes_left(p, end - channel);
      const int64_t z = (int64_t)(first + t) * job.width() + column + p;
      float* at = y + (int64_t)t * inner + column + p;
      store_part(at, load_part(at, n) * silu(load_any(job.projected.data, job.projected.type, z, n)), n);
    }
}

// RMS norm of the gated read-outs over one group's channels.
static void mamba_norm(const Mamba& job, int first, int count, int group, const float* y) {
  const int inner = job.inner(), slice = job.heads * job.channels, begin = group * slice;
  for (int t = 0; t < count; t++) {
    const float* from = y + (int64_t)t * inner + begin;
    const int64_t to = (int64_t)(first + t) * inner + begin;
    const float scale = inverse_rms<DSPARK_F32>(from, 0, slice, job.eps);
    for (int i = 0; i < slice; i += 8) {
      const int n = lanes_left(i, slice);
      const V v = load_part(from + i, n) * scale * load_any(job.norm.data, job.norm.type, begin + i, n);
      narrow(job.y.data, job.y.type, to + i, v, n);
    }
  }
}
