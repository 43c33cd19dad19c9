// The router's scores. Included per instruction set after layers_simd.h.

// sigmoid(x gate^T) of experts [expert, end) for every row; x [rows, size], scores [rows, experts].
static void route_scores(const Route& job, const float* x, int expert, int end, float* scores) {
  dot_rows(x, job.size, job.rows, job.gate + (int64_t)expert * job.size, job.size, end - expert, job.size, 1.f,
           scores + expert, job.experts);
  for (int t = 0; t < job.rows; t++)
    for (int e = expert; e < end; e += 8) {
      float* at = scores + (int64_t)t * job.experts + e;
      const int n = lanes_left(e, end);
      store_part(at, sigmoid(load_part(at, n)), n);
    }
}
