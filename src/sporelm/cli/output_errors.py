"""Recognizes a standard output that cannot be written: a full disk behind `>`, or a limit on file sizes."""

import errno
from types import TracebackType

FULL_DISK_ERRORS = {getattr(errno, name) for name in ("ENOSPC", "EFBIG", "EDQUOT") if hasattr(errno, name)}


def is_output_full(error: OSError) -> bool:
    """Return whether an error comes from printing.

    Only the command line prints, and it writes nothing else: an error raised in it without a file name is from that.
    """
    innermost: TracebackType | None = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    module = innermost.tb_frame.f_globals.get("__name__", "") if innermost is not None else ""
    return error.errno in FULL_DISK_ERRORS and error.filename is None and str(module).startswith("sporelm.cli.")
