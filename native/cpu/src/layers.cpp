// Driver of the layer kernels.
