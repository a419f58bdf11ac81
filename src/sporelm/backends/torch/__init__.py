"""The back-end that runs on PyTorch. Importing it imports torch, which needs `sporelm[torch]`."""

import re
from textwrap import shorten

from sporelm.errors import BackendError, install_command

REMEDY = install_command("torch")
PLUGIN_FAILURE = re.compile(r"Failed to load the backend extension: (\w+)")
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # a variable of torch's environment


def explain_torch_failure(error: BaseException) -> str:
    """Return in one line why an installed torch does not load: often for a vendor's plug-in, which it imports."""
    origin = error.__cause__ or error
    reason = shorten(f"{type(origin).__name__}: {origin}", 200)
    if found := PLUGIN_FAILURE.search(str(error)):
        return (
            f"torch does not load with its plug-in {found[1]} ({reason}). Repair or uninstall the plug-in, or set the"
            f" environment variable {AUTOLOAD} to 0"
        )
    return f"torch is installed but does not load ({reason}); reinstall it: {REMEDY}"


try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise BackendError(f"{error.name} is not installed: {REMEDY}") from None
except MemoryError:
    raise
except (Exception, SystemExit) as error:  # of torch, its libraries, or a vendor's plug-in
    raise BackendError(explain_torch_failure(error)) from error

from sporelm.backends.torch.torch_backend import TorchBackend  # noqa: E402 - it needs the torch that was looked for above

__all__ = ["TorchBackend"]
