"""Kernels: one file for each file of `sporelm.ops`, and parts that several ops share. Generic over formats and
targets."""
