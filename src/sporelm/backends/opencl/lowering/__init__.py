"""Lowerings: one file for each file of `sporelm.ops`, from calls of its ops to launches of kernels."""
