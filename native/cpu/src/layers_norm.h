// RMS norm, activations, sums, and the per-head norm with rope. Included per instruction set after layers_simd.h.

// 1 / sqrt(mean of squares + eps) of elements [at, at + n).
template <int type>
LAYER_INLINE float inverse_rms(const void* x, int64_t at, int n, float eps) {
  V sums[4] = {};
  int i = 0;
  for (; i + 32 <= n; i += 32)
    for (int k = 0; k < 4; k++) {
      const V v = load_as<type>(x, at + i + 8 * k, 8);
      sums[k] = fma(v, v, sums[k]);
    }
  for (; i < n; i += 8) {
    const V v = load_as<type>(x, at + i, lanes_left(i, n));
    sums[0] = fma(v, v, sums[0]);
  }
  const float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.f / __builtin_sqrtf(total / (float)n + eps);
}

template <int type>
static void rms_norm_rows(const RmsNorm& job, int64_t row, int64_t end) {
  const int size = job.size;
  for (; row < end; row++) {
    const int64_t at = row * size;
    const float scale = inverse_rms<type>(job.x.data, at, size, job.eps);
    for (int i = 0; i < size; i += 8) {
      const int n = lanes_left(i, size);
      V v = load_as<type>(job.x.data, at + i, n) * scale;
      if (job.weight.data) v = v * load_any(job.weight.data, job.weight.type, i, n);
      narrow(job.y.data, type, at + i, v, n);
    }
  }
}

static void rms_norm(const RmsNorm& job, int64_t row, int64_t end) {
  if (job.x.type == DSPARK_F32) return rms_norm_rows<DSPARK_F32>(job, row, end);
  if (job.x.type == DSPARK_BF16) return rms_norm_rows<DSPARK_BF16>(job, row, end);
  rms_norm_rows<DSPARK_F16>(job, row, end);
}

template <int type>
static void activate_range(const Activation& job, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 8) {
    const int n = lanes_left(i, end);
    const V x = load_as<type>(job.x.data, i, n);
    V y;
    if (job.gated.data) {
      y = silu(x) * load_as<type>(job.gated.data, i, n);
    } else {
      const V positive = x < 0.f ? splat(0.f) : x;  // NaN stays
      y = positive * positive;
    }
    narrow(job.y.data, type, i, y, n);
  }
}

static void activate(const Activation& job, int64_t begin, int64_t end) {
  if (job.x.type == DSPARK_F32) return activate_range<DSPARK_F32>(job, begin, end);
  if (job.x.type == DSPARK_BF16) return activate_range<DSPARK_BF16>(job, begin, end);
  activate_range<DSPARK_F16>(job, begin, end);
}

template <int type>
static void add_range(const Sum& job, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 8) {
    const int n = lanes_left(i, end);
    narrow(job.y.data, type, i, load_as<type>(job.a.data, i, n) + load_as<type>(job.b.data, i, n), n);
  }
}

static void add(const Sum& job, int64_t begin, int64_t end) {
  if (job.a.type == DSPARK_F32) return add_range<DSPARK_F32>(job, begin, end);
  if (job.a.type == DSPARK_BF16) return add_range<DSPARK_BF16>(job, begin, end);
  add_range<DSPARK_F16>(job, begin, end);
}

typedef double D4 __attribute__((vector_size(32)));
typedef int64_t L4 __attribute__((vector_size(32)));

LAYER_INLINE D4 splat_double(double x) { return D4{x, x, x, x}; }

// Cosine and sine of four angles, to float32 accuracy for |angle| < 2^31: the quadrant is taken off in three parts of
// pi / 2 in double precision.
LAYER_INLINE void cosine_sine(const D4& angle, float* cosine, float* sine) {
  const D4 magic = splat_double(6755399441055744.0);  // 1.5 * 2^52: adding it rounds to an integer
  const D4 shifted = angle * 0.63661977236758134308 + magic;
  const L4 quadrant = (L4)shifted - (L4)magic;
  const D4 k = shifted - magic;
  D4 r = angle - k * 1.57079632673412561417;
  r = r - k * 6.07710050630396597660e-11;
  r = r - k * 2.02226624879595063154e-21;
  const D4 q = r * r;
  D4 s = splat_double(-1. / 39916800);
  s = s * q + 1. / 362880;
  s = s * q - 1. / 5040;
  s = s * q + 1. / 120;
  s = s * q - 1. / 6;
  s = r + r * q * s;
  D4 c = splat_double(1. / 479001600);
  c = c * q - 1. / 3628800;
  c = c * q + 1. / 40320;
  c = c * q - 1. / 720;
  c = c * q + 1. / 24;
  c = c * q - 0.5;
  c = 1. + q * c;
  const L4 odd = -(quadrant & 1), flip_sine = (quadrant & 2) << 62, flip_cosine = ((quadrant + 1) & 2) << 62;
  const D4 sines = (D4)((L4)(odd ? c : s) ^ flip_sine), cosines = (D4)((L4)(odd ? s : c) ^ flip_cosine);
  for (int i = 0; i < 4; i++) cosine[i] = (float)cosines[i], sine[i] = (float)sines[i];
}

static void head_norm_rope(const HeadNormRope& job, const double* frequencies, int row, int end) {
  float cosine[rope_max_dim / 2 + 4], sine[rope_max_dim / 2 + 4], head[rope_max_dim], weight[rope_max_dim];
  const int dim = job.dim, half = dim / 2;
  const float* w = job.weight.data ? widen(job.weight.data, job.weight.type, 0, dim, weight) : nullptr;
  for (; row < end; row++) {
    if (job.rotate)
      for (int i = 0; i < half; i += 4) {
        D4 f = {};
        __builtin_memcpy(&f, frequencies + i, (half - i < 4 ? half - i : 4) * sizeof(double));
        cosine_sine(f * (double)(job.position + row), cosine + i, sine + i);
      }
    for (int h = 0; h < job.heads; h++) {
      const int64_t at = ((int64_t)row * job.heads + h) * dim;
      const float* x = widen(job.x.data, job.x.type, at, dim, head);
      if (w) {
        const float scale = inverse_rms<DSPARK_F32>(x, 0, dim, job.eps);
        for (int i = 0; i < dim; i += 8) {
          const int n = lanes_left(i, dim);
          store_part(head + i, load_part(x + i, n) * scale * load_part(w + i, n), n);
        }
        x = head;
      }
      for (int i = 0; i < half; i += 8) {
        const int n = lanes_left(i, half);
        V low = load_part(x + i, n), high = load_part(x + half + i, n);
        if (job.rotate) {
          const V c = load_part(cosine + i, n), s = load_part(sine + i, n);
          const V turned = fma(low, c, -(high * s));
          high = fma(low, s, high * c);
          low = turned;
        }
        narrow(job.y.data, job.y.type, at + i, low, n);
        narrow(job.y.data, job.y.type, at + half + i, high, n);
      }
    }
  }
}
