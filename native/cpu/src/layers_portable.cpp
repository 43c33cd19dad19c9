// Layer kernels in plain C++.
