// What the shim (shim.h, compiled with every kernel) and the scheduler (runtime.cpp, compiled once) know of each other.
//
// A threadgroup runs as one fiber a GPU thread. A fiber runs until it ends or meets others: at a simd function its
// simdgroup (32 consecutive threads), at a barrier its whole threadgroup. Nothing here knows Metal's names.
#pragma once
#include <cstddef>

typedef unsigned int uint;
typedef uint uint3 __attribute__((ext_vector_type(3)));

namespace emu {

constexpr uint LANES = 32;
constexpr size_t SLOT = 16;  // bytes a lane can hand over in one simd function: a float4

// A call in the kernel's text. Two calls are the same meeting point only if file, line and column agree.
struct Place {
  const char* what;
  const char* file;
  int line, column;

  // As a default argument, the place of whoever calls the function that has it.
  static constexpr Place of(const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                            int column = __builtin_COLUMN()) {
    return {what, file, line, column};
  }
};

// What one GPU thread knows of itself.
struct Thread {
  uint3 in_grid, in_group, group;
  uint3 group_size;  // smaller than dispatched at the grid's far edges
  uint index;        // in its threadgroup, x fastest

  uint lane() const { return index % LANES; }
  uint simdgroup() const { return index / LANES; }
  uint threads() const { return group_size.x * group_size.y * group_size.z; }
  uint lanes() const {
    const uint rest = threads() - simdgroup() * LANES;
    return rest < LANES ? rest : LANES;
  }
};

struct Dispatch {
  uint3 grid, group;  // in threads
};

extern const Thread* self;
extern Dispatch dispatch;

// Hands `value` to the simdgroup and returns every lane's, SLOT bytes apart, valid until the next call.
const unsigned char* exchange(const void* value, size_t bytes, Place at);
void simdgroup_meeting(Place at);
void threadgroup_meeting(Place at);

// Ends the run: printf-like, in the words of a test report. Only from inside a kernel.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// One GPU thread's work, written by translate.py around the kernel's body.
void kernel(void* const* data, const size_t* count);

}  // namespace emu
