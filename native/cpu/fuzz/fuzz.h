// What the fuzzers share: random numbers in buffers of exactly the size asked for, the comparison of a kernel's bits
// between instruction sets and thread counts, and the loop over cases. Included once by each fuzz_*.cpp.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "layers.h"
#include "pool.h"

using namespace dspark;

namespace {

std::mt19937 generator;

int between(int least, int most) {
  return least + static_cast<int>(generator() % static_cast<unsigned>(most - least + 1));
}
bool chance(int one_in) { return between(1, one_in) == 1; }

// Of kind 0 tame, of kind 1 tame with a stranger in 64, else any bit pattern: NaN, infinities and subnormals come up.
float number(int kind) {
  const uint32_t bits = generator();
  if (kind == 0 || (kind == 1 && bits % 64)) return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-30f;
  float any;
  std::memcpy(&any, &bits, sizeof any);
  return any;
}

DsparkType any_type() { return static_cast<DsparkType>(between(0, 2)); }

struct Buffers {  // live as long as the case
  std::vector<std::unique_ptr<char[]>> held;
  int kind = between(0, 3) % 3;

  // The block ends where the allocation does, and starts at any multiple of `align`.
  char* bytes(size_t count, size_t align = 1) {
    const size_t lead = align * static_cast<size_t>(between(0, 3));
    held.emplace_back(new char[lead + count]());
    return held.back().get() + lead;
  }

  char* random_bytes(size_t count, size_t align = 1) {
    char* data = bytes(count, align);
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<char>(generator());
    return data;
  }

  Tensor tensor(int64_t count, DsparkType type) {
    const size_t size = dspark_type_size(type);
    char* data = bytes(static_cast<size_t>(count) * size, size);
    for (int64_t i = 0; i < count; ++i) {
      const float x = number(kind);
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      const uint32_t half = type == DSPARK_BF16 ? bits >> 16 : kind ? bits : (bits >> 16 & 0x8000) | (bits & 0x3bff);
      const uint16_t short_bits = static_cast<uint16_t>(half);
      if (type == DSPARK_F32)
        std::memcpy(data + 4 * i, &x, 4);
      else
        std::memcpy(data + 2 * i, &short_bits, 2);
    }
    return {data, type};
  }

  float* floats(int64_t count) { return static_cast<float*>(const_cast<void*>(tensor(count, DSPARK_F32).data)); }
};

struct Output {
  char* data;
  size_t count;
  DsparkType type;
};
using Outputs = std::vector<Output>;

MutableTensor output(Buffers& b, Outputs& outputs, size_t count, DsparkType type) {
  const size_t size = dspark_type_size(type);
  outputs.push_back({b.bytes(count * size, size), count, type});
  return {outputs.back().data, type};
}

// The bits of an output with all NaN as one.
std::vector<uint32_t> pattern(const Output& out) {
  std::vector<uint32_t> bits(out.count);
  for (size_t i = 0; i < out.count; ++i) {
    if (out.type == DSPARK_F32) {
      std::memcpy(&bits[i], out.data + 4 * i, 4);
      if ((bits[i] & 0x7fffffff) > 0x7f800000) bits[i] = 0x7fc00000;
    } else {
      uint16_t half;
      std::memcpy(&half, out.data + 2 * i, 2);
      const uint16_t infinity = out.type == DSPARK_BF16 ? 0x7f80 : 0x7c00;
      bits[i] = (half & 0x7fff) > infinity ? 0x7fff : half;
    }
  }
  return bits;
}

[[noreturn]] void differs(const char* name, const std::string& how) {
  std::printf("%s: the bits differ with %s\n", name, how.c_str());
  std::exit(1);
}

uint64_t checksum = 1469598103934665603u;

void mix(uint64_t value) { checksum = (checksum ^ value) * 1099511628211u; }

// Runs the case in every setting, with scratch memory of its own, and compares.
void compare(const char* name, const Outputs& outputs, const std::function<size_t()>& scratch,
             const std::function<void(void*)>& run) {
  std::vector<std::vector<uint32_t>> first;
  for (const char* simd : {"portable", "avx2", "avx512"}) {
    if (!set_simd(simd)) continue;
    for (int threads : {1, 3}) {
      set_threads(threads);
      for (const Output& out : outputs) std::memset(out.data, 0xff, out.count * dspark_type_size(out.type));
      const std::unique_ptr<char[]> memory(new char[scratch ? scratch() : 1]);
      run(memory.get());
      std::vector<std::vector<uint32_t>> bits;
      for (const Output& out : outputs) bits.push_back(pattern(out));
      if (first.empty()) first = bits;
      if (bits != first) differs(name, std::string(simd) + " code and " + std::to_string(threads) + " threads");
    }
  }
  for (const auto& bits : first)
    for (uint32_t b : bits) mix(b);
}

// `cases` rounds of all functions from `seed`; the checksum printed is the same on every machine.
int fuzz_main(int count, char** words, std::initializer_list<void (*)()> all) {
  const int cases = count > 1 ? std::atoi(words[1]) : 1000, seed = count > 2 ? std::atoi(words[2]) : 1;
  generator.seed(static_cast<unsigned>(seed));
  for (int i = 0; i < cases; ++i) {
    for (void (*fuzz)() : all) fuzz();
  }
  std::printf("%d cases of each kernel from seed %d, checksum %016llx\n", cases, seed,
              static_cast<unsigned long long>(checksum));
  return 0;
}

}  // namespace
