"""CPU offload: a device and the CPU as one back-end, which divides a model's weights, caches and calls between them."""

from sporelm.backends.cpu_offload.cpu_offload_backend import CpuOffloadBackend, shared_buckets
from sporelm.backends.cpu_offload.device_map import DEVICE, HOST, DeviceMap

__all__ = ["DEVICE", "HOST", "CpuOffloadBackend", "DeviceMap", "shared_buckets"]
