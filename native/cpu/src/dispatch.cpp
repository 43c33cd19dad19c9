#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace dspark {

#if defined(__x86_64__)
bool simd_built(Simd) { return true; }

static bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#else
bool simd_built(Simd level) { return level == Simd::portable; }

static bool cpu_has_avx2() { return false; }
#endif

bool simd_usable(Simd level) { return level == Simd::portable || (simd_built(level) && cpu_has_avx2()); }

static Simd best() {
  const char* asked = std::getenv("MLX_DSPARK_SIMD");
  const bool portable = asked != nullptr && std::strcmp(asked, "portable") == 0;
  return !portable && simd_usable(Simd::avx2) ? Simd::avx2 : Simd::portable;
}

static std::atomic<Simd>& current() {
  static std::atomic<Simd> level{best()};
  return level;
}

Simd simd() { return current().load(std::memory_order_relaxed); }

bool set_simd(const char* name) {
  Simd wanted = best();
  if (std::strcmp(name, "portable") == 0) {
    wanted = Simd::portable;
  } else if (std::strcmp(name, "avx2") == 0) {
    wanted = Simd::avx2;
  } else if (std::strcmp(name, "auto") != 0) {
    return false;
  }
  if (!simd_usable(wanted)) return false;
  current().store(wanted, std::memory_order_relaxed);
  return true;
}

const char* simd_name(Simd level) { return level == Simd::avx2 ? "avx2" : "portable"; }

}  // namespace dspark
