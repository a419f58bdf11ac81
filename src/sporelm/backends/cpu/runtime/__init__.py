"""What runs a CPU program: memory, tensor storage, the thread pool and its native loops."""
