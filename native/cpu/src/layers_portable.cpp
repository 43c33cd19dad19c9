// Layer kernels for any CPU.
#define LAYER_TABLE layers_portable
#include "layers_all.h"
