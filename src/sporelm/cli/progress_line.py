"""A progress bar on one line of stderr."""

import sys
import time
from types import TracebackType

from sporelm.cli.terminal_layout import terminal_width

BAR_WIDTH = 24
MIN_INTERVAL_SECONDS = 0.05
COUNTED_PHASES = {"compiling kernels"}  # whose items are shown; other totals are bytes or parts


class ProgressLine:
    """A progress callback (phase, done, total). On a terminal it draws a bar; else it only announces a download."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.phase = ""
        self.drawn_at = 0.0
        self.width = 0

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if not self.terminal:
            if phase == "fetching" and self.phase != phase:
                print(f"spore: downloading the model ({total / 1e6:.0f} MB)", file=sys.stderr, flush=True)
            self.phase = phase
            return
        now = time.monotonic()
        if phase == self.phase and done < total and now - self.drawn_at < MIN_INTERVAL_SECONDS:
            return
        self.phase, self.drawn_at = phase, now
        share = min(1.0, done / total) if total > 0 else 1.0
        filled = round(share * BAR_WIDTH)
        title = f"{phase} {done}/{total}" if phase in COUNTED_PHASES and total > 1 else phase
        line = f"{title} [{'#' * filled}{' ' * (BAR_WIDTH - filled)}] {share:4.0%}"
        columns = terminal_width(sys.stderr)
        if columns is not None and len(line) >= columns:  # a wrapped line could not be overwritten
            line = f"{title} {share:4.0%}"[-(columns - 1) :]
        sys.stderr.write("\r" + line.ljust(self.width))
        sys.stderr.flush()
        self.width = len(line)

    def clear(self) -> None:
        """Erase the bar."""
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0
