"""Standard output that takes no more: a full disk behind `>`, or a limit on the size of files."""

import errno
from types import TracebackType

FULL = {getattr(errno, name) for name in ("ENOSPC", "EFBIG", "EDQUOT") if hasattr(errno, name)}


def is_full_output(error: OSError) -> bool:
    """Whether an error comes from printing: the command line itself writes nothing else, and the layers below it do not
    print."""
    innermost: TracebackType | None = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    module = innermost.tb_frame.f_globals.get("__name__", "") if innermost is not None else ""
    return error.errno in FULL and error.filename is None and str(module).startswith("sporelm.cli.")
