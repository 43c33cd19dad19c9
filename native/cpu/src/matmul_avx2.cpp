// Matrix product kernels for AVX2 and FMA.
