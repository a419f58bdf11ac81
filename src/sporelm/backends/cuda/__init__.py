"""The back-end for NVIDIA GPUs: Triton kernels, and plain torch for the rest. Importing it imports torch and Triton,
which need `sporelm[cuda]`."""

from sporelm.errors import BackendError, install_command

REMEDY = install_command("cuda")

try:
    import torch  # noqa: F401
    import triton  # noqa: F401
except ModuleNotFoundError as error:
    raise BackendError(f"{error.name} is not installed: {REMEDY}") from None
except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
    reason = " ".join(str(error).split())[:200]
    raise BackendError(f"torch or Triton is installed but does not load ({reason}); reinstall it: {REMEDY}") from error

from sporelm.backends.cuda.cuda_backend import CudaBackend  # noqa: E402 - it needs what was looked for above

__all__ = ["CudaBackend"]
