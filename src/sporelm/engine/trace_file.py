"""The file of a trace: Chrome's trace events, in the object form of the Trace Event Format (Google, 2016).

Perfetto (ui.perfetto.dev) and chrome://tracing open it. Events are written as they come, beside the file's place; the
whole file is put there at the end.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sporelm.engine.overwrite_check import check_replaceable_file
from sporelm.errors import RequestError
from sporelm.files.part_files import PartFiles

MOST_EVENTS = 500_000  # about 100 MB; viewers become slow beyond
PROCESS = 1
BEGINNING = '{"displayTimeUnit": "ms", "otherData": '


class TraceFile:
    """Events that are written to a file until it is full."""

    def __init__(self, path: Path, about: Mapping[str, Any], most: int = MOST_EVENTS) -> None:
        """Begin a trace that tells `about` itself. Raises RequestError if there cannot be such a file, or if another
        one is in its place."""
        self.path, self.most = path, most
        self.count = 0
        self.left_out = 0
        self.failure: str | None = None  # why it could not be written
        self._unfinished = PartFiles()
        try:
            check_replaceable_file(path, BEGINNING, "trace")
            self._beside = self._unfinished.path_for(path)
            self._file = self._beside.open("w", encoding="utf-8", buffering=1 << 20)
            self._file.write(f'{BEGINNING}{json.dumps(about)}, "traceEvents": [')
        except RequestError:
            self._unfinished.close()
            raise
        except OSError as reason:
            self._unfinished.close()
            raise RequestError(f"{path} cannot be written: {reason.strerror or reason}") from None

    def is_full(self) -> bool:
        """Whether events are left out from now on."""
        return self.count >= self.most or self.failure is not None

    def span(self, name: str, row: int, began: float, ended: float, args: str = "{}") -> None:
        """Something that took from one moment to another, in microseconds; `args` are JSON."""
        self.event(
            f'{{"ph": "X", "name": {json.dumps(name)}, "pid": {PROCESS}, "tid": {row}, "ts": {began:.3f}, '
            f'"dur": {max(0.0, ended - began):.3f}, "args": {args}}}'
        )

    def event(self, text: str, *, always: bool = False) -> None:
        """Any event, as JSON. Once the file is full, only those that must `always` be there."""
        if self.failure is not None or (self.is_full() and not always):
            self.left_out += 1
            return
        try:
            self._file.write((",\n" if self.count else "\n") + text)
        except OSError as reason:
            self.failure = str(reason.strerror or reason)
        self.count += 1

    def discard(self) -> None:
        """Leave no file."""
        self._file.close()
        self._unfinished.close()

    def close(self) -> None:
        """Put the file in its place; if that fails, `failure` says why. Closing again does nothing."""
        if self._file.closed:
            return
        try:
            self._file.write("\n]}\n")
            self._file.close()
            if self.failure is None:
                self._beside.replace(self.path)
        except OSError as reason:
            self.failure = self.failure or str(reason.strerror or reason)
        finally:
            with suppress(OSError):
                self._file.close()
            self._unfinished.close()
