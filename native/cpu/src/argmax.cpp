#include "argmax.h"

#include <cstring>

#include "pool.h"

namespace dspark {
namespace {

struct Floats {
  const float* x;
  float operator[](int64_t i) const { return x[i]; }
};

struct Halves {  // bfloat16
  const uint16_t* x;
  float operator[](int64_t i) const {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

template <typename Row>
int32_t first_largest(Row row, int64_t size) {
  constexpr int lanes = 16;
  float lane[lanes], most = -__builtin_inff();
  for (float& value : lane) value = most;
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    for (int j = 0; j < lanes; ++j) lane[j] = row[i + j] > lane[j] ? row[i + j] : lane[j];
  }
  for (; i < size; ++i) most = row[i] > most ? row[i] : most;
  for (const float value : lane) most = value > most ? value : most;
  for (i = 0; i < size; ++i) {
    if (row[i] == most) return static_cast<int32_t>(i);
  }
  return 0;
}

}  // namespace

void argmax(const Argmax& job) {
  parallel_for(static_cast<int>(job.rows), 0.1 * static_cast<double>(job.rows * job.size), [&](int row) {
    const int64_t at = row * job.size;
    job.picks[row] = job.type == DSPARK_F32
                         ? first_largest(Floats{static_cast<const float*>(job.x) + at}, job.size)
                         : first_largest(Halves{static_cast<const uint16_t*>(job.x) + at}, job.size);
  });
}

}  // namespace dspark
