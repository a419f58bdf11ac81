"""Files of ours that take the place of earlier ones, and of nothing else."""

from pathlib import Path

from sporelm.errors import RequestError


def check_replaceable_file(path: Path, beginning: str, kind: str) -> None:
    """Raise RequestError if something is there that does not begin as a file of this kind, "trace" say, does; OSError
    if it cannot be looked at. An empty file may be replaced."""
    if not path.exists():
        return
    if path.is_file():
        wanted = beginning.encode()
        with path.open("rb") as file:
            if file.read(len(wanted)) in (b"", wanted):
                return
    raise RequestError(f"{path} is there and is no {kind}: it stays as it is; give another name")
