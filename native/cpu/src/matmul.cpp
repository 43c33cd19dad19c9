// Driver of the matrix products.
