"""The file of a trace: Chrome's trace events, in the object form of the Trace Event Format (Google, 2016).

Perfetto (ui.perfetto.dev) and chrome://tracing open it. Events are written as they come, to a temporary file beside
the path; it is moved there at the end.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sporelm.engine.overwrite_check import check_replaceable_file
from sporelm.errors import RequestError
from sporelm.files.part_files import PartFiles

MAX_EVENTS = 500_000  # about 100 MB; viewers become slow beyond
PROCESS = 1
BEGINNING = '{"displayTimeUnit": "ms", "otherData": '


class TraceFile:
    """Events that are written to a file until it is full."""

    def __init__(self, path: Path, about: Mapping[str, Any], max_events: int = MAX_EVENTS) -> None:
        """Begin a trace with the metadata `about`. Raises RequestError if the file cannot be written, or if another
        one is at the path."""
        self.path, self.max_events = path, max_events
        self.count = 0
        self.left_out = 0
        self.failure: str | None = None  # why it could not be written
        self._unfinished = PartFiles()
        try:
            check_replaceable_file(path, BEGINNING, "trace")
            self._part_path = self._unfinished.path_for(path)
            self._file = self._part_path.open("w", encoding="utf-8", buffering=1 << 20)
            self._file.write(f'{BEGINNING}{json.dumps(about)}, "traceEvents": [')
        except RequestError:
            self._unfinished.close()
            raise
        except OSError as reason:
            self._unfinished.close()
            raise RequestError(f"{path} cannot be written: {reason.strerror or reason}") from None

    def is_full(self) -> bool:
        """Return whether events are left out from now on."""
        return self.count >= self.max_events or self.failure is not None

    def span(self, name: str, row: int, began: float, ended: float, args: str = "{}") -> None:
        """Write a span from one moment to another, in microseconds; `args` are JSON."""
        self.event(
            f'{{"ph": "X", "name": {json.dumps(name)}, "pid": {PROCESS}, "tid": {row}, "ts": {began:.3f}, '
            f'"dur": {max(0.0, ended - began):.3f}, "args": {args}}}'
        )

    def event(self, text: str, *, always: bool = False) -> None:
        """Write an event, as JSON. Once the file is full, only with `always`."""
        if self.failure is not None or (self.is_full() and not always):
            self.left_out += 1
            return
        try:
            self._file.write((",\n" if self.count else "\n") + text)
        except OSError as reason:
            self.failure = str(reason.strerror or reason)
        self.count += 1

    def remove(self) -> None:
        """Remove the temporary file."""
        self._file.close()
        self._unfinished.close()

    def close(self) -> None:
        """Move the file to its place; if that fails, `failure` has the reason. Closing again does nothing."""
        if self._file.closed:
            return
        try:
            self._file.write("\n]}\n")
            self._file.close()
            if self.failure is None:
                self._part_path.replace(self.path)
        except OSError as reason:
            self.failure = self.failure or str(reason.strerror or reason)
        finally:
            with suppress(OSError):
                self._file.close()
            self._unfinished.close()
