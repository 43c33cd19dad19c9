// Which instruction set the kernels use. One choice for the process: the best the CPU has, or none better than what the
// environment variable MLX_DSPARK_SIMD names, unless set otherwise.
#pragma once

namespace dspark {

// avx512 stands for AVX-512 F, VL, BW, DQ and VNNI.
enum class Simd : int { portable = 0, avx2 = 1, avx512 = 2 };

// The set in use now.
Simd simd();

// Was code for this set compiled in?
bool simd_built(Simd level);

// "auto" or a set's name. False, and nothing changed, if the name is unknown or the CPU lacks the set.
bool set_simd(const char* name);

const char* simd_name(Simd level);

}  // namespace dspark
