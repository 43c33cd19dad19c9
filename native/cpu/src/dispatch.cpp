#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace dspark {
namespace {

constexpr const char* names[] = {"portable", "avx2", "avx512"};  // by Simd

#if defined(__x86_64__)
constexpr bool x86 = true;

bool cpu_has(Simd level) {
  if (level == Simd::portable) return true;
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (level == Simd::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#else
constexpr bool x86 = false;

bool cpu_has(Simd level) { return level == Simd::portable; }
#endif

Simd best() {
  const char* asked = std::getenv("MLX_DSPARK_SIMD");
  Simd found = Simd::portable;
  for (Simd level : {Simd::avx2, Simd::avx512}) {
    if (asked != nullptr && std::strcmp(asked, simd_name(found)) == 0) break;
    if (cpu_has(level)) found = level;
  }
  return found;
}

std::atomic<Simd>& current() {
  static std::atomic<Simd> level{best()};
  return level;
}

}  // namespace

bool simd_built(Simd level) { return x86 || level == Simd::portable; }

Simd simd() { return current().load(std::memory_order_relaxed); }

bool set_simd(const char* name) {
  if (std::strcmp(name, "auto") == 0) {
    current().store(best(), std::memory_order_relaxed);
    return true;
  }
  for (size_t i = 0; i < std::size(names); ++i) {
    const Simd level = static_cast<Simd>(i);
    if (std::strcmp(name, names[i]) != 0 || !cpu_has(level)) continue;
    current().store(level, std::memory_order_relaxed);
    return true;
  }
  return false;
}

const char* simd_name(Simd level) { return names[static_cast<int>(level)]; }

}  // namespace dspark
