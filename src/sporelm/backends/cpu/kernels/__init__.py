"""The kernels: one file an op and regime, generic over formats and targets."""
