"""The runtime of CPU programs: memory, tensor storage, the thread pool and its native loops."""
