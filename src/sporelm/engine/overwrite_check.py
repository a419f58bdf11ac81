"""A check that a file that is to be overwritten is one of ours."""

from pathlib import Path

from sporelm.errors import RequestError


def check_replaceable_file(path: Path, signature: str, kind: str) -> None:
    """Raise RequestError if a file exists whose first bytes are not `signature`; an empty one may be overwritten.

    `kind` names such files, "trace" for example. Raises OSError if the file cannot be read.
    """
    if not path.exists():
        return
    if path.is_file():
        expected = signature.encode()
        with path.open("rb") as file:
            if file.read(len(expected)) in (b"", expected):
                return
    raise RequestError(f"{path}: exists and is not a {kind}, so it is not overwritten. Give another name.")
