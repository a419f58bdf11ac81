"""A file's bytes, mapped into memory and read-only."""

import mmap
from errno import ENOMEM
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import MemoryShortage, ModelFileError, ModelNotFound


def map_file(path: Path) -> memoryview:
    """All bytes of a file without reading them: pages come from the disk when they are touched.

    The mapping lives as long as anything looks at it. Raises ModelNotFound if there is no such file, ModelFileError
    if it is not a regular file, is empty, or cannot be read, MemoryShortage if it does not fit the address space.
    """
    try:
        if not path.exists():
            raise ModelNotFound(f"{path} does not exist")
        if path.is_dir():
            raise ModelFileError(f"{path} is a folder; give a file")
        if not path.is_file():
            raise ModelFileError(f"{path} is not a file")
        if path.stat().st_size == 0:
            raise ModelFileError(f"{path} is empty")
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as reason:
        if isinstance(reason, OSError) and reason.errno == ENOMEM:
            size = path.stat().st_size / 1e6
            raise MemoryShortage(
                f"{path}: out of memory for the file (got {size:.1f} MB to map). Raise the limit of memory "
                "(ulimit -v), or use a smaller model."
            ) from None
        raise ModelFileError(f"{path} cannot be read: {reason}") from None


def byte_array(data: memoryview, start: int, nbytes: int) -> NDArray[np.uint8]:
    """nbytes of mapped bytes from `start`, as a view."""
    return np.frombuffer(data, np.uint8)[start : start + nbytes]


class Closing:
    """Files that a `with` block closes at its end."""

    def close(self) -> None:
        """Let go of the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
