"""Diagnostics of checks on model files."""

from typing import NamedTuple

ERROR = "error"
WARNING = "warning"
NOTE = "note"


class Diagnostic(NamedTuple):
    """One problem that a check found.

    level     "error": the file is damaged or a reader may refuse it; "warning": unusual, and possibly a mistake;
              "note": a check that was not possible, and the reason
    check     the kind of check: structure, place, values, metadata, tokenizer, architecture, hash
    where     the tensor, metadata key or file, "" for the whole file
    message   the problem, on one line
    """

    level: str
    check: str
    where: str
    message: str
