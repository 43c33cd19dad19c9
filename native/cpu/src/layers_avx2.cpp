// Layer kernels for AVX2 and FMA.
#define LAYER_TABLE layers_avx2
#include "layers_all.h"
