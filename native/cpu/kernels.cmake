# The C++ files below src/ that make up the kernel library: all but ext*.cpp (fuzz/run.sh builds the same).
set(KERNEL_SOURCES
  pool.cpp dispatch.cpp
  matmul.cpp matmul_nonfinite.cpp matmul_portable.cpp
  layers.cpp layers_portable.cpp markov.cpp draft.cpp embed.cpp argmax.cpp)
set(AVX2_SOURCES)
set(AVX512_SOURCES)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(AVX2_SOURCES matmul_avx2.cpp layers_avx2.cpp)
  set(AVX512_SOURCES matmul_avx512.cpp)
endif()
