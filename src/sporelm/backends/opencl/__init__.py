"""The back-end that runs on OpenCL. Importing it imports pyopencl, which needs `sporelm[opencl]`."""

from sporelm.errors import BackendError, install_command

REMEDY = install_command("opencl")

try:
    import pyopencl  # noqa: F401
except ModuleNotFoundError as error:
    raise BackendError(f"{error.name} is not installed: {REMEDY}") from None
except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
    reason = " ".join(str(error).split())[:200]
    raise BackendError(f"pyopencl is installed but does not load ({reason}); reinstall it: {REMEDY}") from error

from sporelm.backends.opencl.opencl_backend import OpenClBackend  # noqa: E402 - it needs the pyopencl looked for above

__all__ = ["OpenClBackend"]
