"""The back-end that runs on OpenCL. Importing it imports pyopencl, which needs `sporelm[opencl]`."""

from sporelm import settings
from sporelm.errors import BackendError, install_command

REMEDY = install_command("opencl")

# Its own cache lies in the home folder, which may be read-only, and its files are not checked when they are read.
settings.set_library_variable("PYOPENCL_NO_CACHE", "1", replaced="1")

try:
    import pyopencl  # noqa: F401
except ModuleNotFoundError as error:
    raise BackendError(f"{error.name} is not installed: {REMEDY}") from None
except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
    reason = " ".join(str(error).split())[:200]
    raise BackendError(f"pyopencl is installed but does not load ({reason}); reinstall it: {REMEDY}") from error

from sporelm.backends.opencl.opencl_backend import OpenClBackend  # noqa: E402 - it needs the pyopencl looked for above

__all__ = ["OpenClBackend"]
