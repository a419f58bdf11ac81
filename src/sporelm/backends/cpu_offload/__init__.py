"""A device and the CPU as one back-end: the weights, caches and calls of a model are divided between the two."""

from sporelm.backends.cpu_offload.cpu_offload_backend import CpuOffloadBackend, shared_buckets
from sporelm.backends.cpu_offload.device_map import DEVICE, HOST, DeviceMap

__all__ = ["DEVICE", "HOST", "CpuOffloadBackend", "DeviceMap", "shared_buckets"]
