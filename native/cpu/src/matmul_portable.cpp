// Matrix product kernels in plain C++.
