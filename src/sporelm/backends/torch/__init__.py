"""The back-end that runs on PyTorch. Importing it imports torch, which needs `sporelm[torch]`."""

from sporelm.errors import BackendError, install_command

REMEDY = install_command("torch")

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise BackendError(f"{error.name} is not installed: {REMEDY}") from None
except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
    reason = " ".join(str(error).split())[:200]
    raise BackendError(f"torch is installed but does not load ({reason}); reinstall it: {REMEDY}") from error

from sporelm.backends.torch.torch_backend import TorchBackend  # noqa: E402 - it needs the torch that was looked for above

__all__ = ["TorchBackend"]
