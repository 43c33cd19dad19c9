// What every kernel header shares: the C types that cross from the primitives (which know MLX) to the kernels (which
// do not). Kernels take plain pointers to row-contiguous data, allocate nothing and report nothing: their callers
// have checked shapes and give scratch memory of the size that a `*_scratch_bytes` function asked for.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum DsparkType : int32_t { DSPARK_F32 = 0, DSPARK_BF16 = 1, DSPARK_F16 = 2 };

}  // extern "C"

// Functions that headers define are always inlined: one emitted by a file compiled for AVX2 could be the one that the
// linker picks for every file.
[[gnu::always_inline]] inline constexpr size_t dspark_type_size(DsparkType type) { return type == DSPARK_F32 ? 4 : 2; }
