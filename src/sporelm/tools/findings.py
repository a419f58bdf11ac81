"""What checks find in model files."""

from typing import NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"


class Finding(NamedTuple):
    """One thing that a check found.

    level     "error": the file is damaged or a reader may refuse it; "warning": it is unusual, and may be a mistake;
              "note": what could not be checked, and why
    check     the kind of check: structure, place, values, metadata, tokenizer, architecture, hash
    where     the tensor, metadata key or file meant, "" for the whole file
    message   what is wrong, on one line
    """

    level: str
    check: str
    where: str
    message: str
