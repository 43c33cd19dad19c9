// Layer kernels for AVX2 and FMA.
