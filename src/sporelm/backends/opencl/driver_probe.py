"""The child process of `driver_check`: it uses the driver as the back-end will, and exits with 0 unless the driver
crashes it."""

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pyopencl as cl

from sporelm.backends.opencl.device_selection import choose_device, find_unsupported_reason, list_opencl_devices
from sporelm.backends.opencl.kernel_program import LANGUAGE, KernelProgram, build_program, kernel_program
from sporelm.backends.opencl.pocl_folder import remove_own_folder
from sporelm.errors import BackendError

PROGRAM: KernelProgram = kernel_program("conversion", {"WIDEN": True, "VEC": 4, "LOCAL": 1})


def probe_driver(device_name: str | None) -> None:
    """Use a device, and end this process. Errors that the driver reports are left to the back-end, which has a text for
    each."""
    with suppress(BackendError, cl.Error):
        _use(device_name)
    remove_own_folder()
    os._exit(0)  # without the driver's own clean-up: a fault there loses nothing


def _use(device_name: str | None) -> None:
    device = choose_device(device_name, list_opencl_devices())
    if find_unsupported_reason(device) is not None:
        return
    context = cl.Context([device.device])
    queue = cl.CommandQueue(context, device.device)
    numbers = np.arange(4, dtype=np.float16)
    source = cl.Buffer(context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=numbers)
    target = cl.Buffer(context, cl.mem_flags.READ_WRITE, 16)
    program: Any = cl.Program(context, PROGRAM.source)
    kernel = cl.Kernel(build_program(program, [LANGUAGE]), "convert_numbers")
    kernel.set_args(source, target, np.int32(4))
    cl.enqueue_nd_range_kernel(queue, kernel, (4,), (1,))
    cl.enqueue_copy(queue, np.empty(4, np.float32), target, is_blocking=True)
