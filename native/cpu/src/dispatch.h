// Which instruction set the kernels use. One choice for the process: the best the CPU has, or plain
// C++ if the environment variable MLX_DSPARK_SIMD is "portable", unless set otherwise.
#pragma once

namespace dspark {

enum class Simd : int { portable = 0, avx2 = 1 };

// The set in use now.
Simd simd();

// Was code for this set compiled in, and can this CPU run it?
bool simd_usable(Simd level);
bool simd_built(Simd level);

// "auto", "avx2" or "portable". False, and nothing changed, if the name is unknown or not usable here.
bool set_simd(const char* name);

const char* simd_name(Simd level);

}  // namespace dspark
