"""From calls of ops to entries of kernels: one file for each file of `sporelm.ops`."""
