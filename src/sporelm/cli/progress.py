"""One line on stderr that shows how far a long step has come."""

import sys
import time
from types import TracebackType

from sporelm.cli.terminal_layout import terminal_width

BAR = 24
SECONDS_BETWEEN = 0.05


class ProgressLine:
    """Called with (stage, done, total). On a terminal it draws a bar; elsewhere it only announces a download."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.stage = ""
        self.drawn_at = 0.0
        self.width = 0

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self.terminal:
            if stage == "fetching" and self.stage != stage:
                print(f"spore: fetching the model ({total / 1e6:.0f} MB)", file=sys.stderr, flush=True)
            self.stage = stage
            return
        now = time.monotonic()
        if stage == self.stage and done < total and now - self.drawn_at < SECONDS_BETWEEN:
            return
        self.stage, self.drawn_at = stage, now
        share = min(1.0, done / total) if total > 0 else 1.0
        filled = round(share * BAR)
        line = f"{stage} [{'#' * filled}{' ' * (BAR - filled)}] {share:4.0%}"
        columns = terminal_width(sys.stderr)
        if columns is not None and len(line) >= columns:  # a line that wraps could not be drawn over
            line = f"{stage} {share:4.0%}"[-(columns - 1) :]
        sys.stderr.write("\r" + line.ljust(self.width))
        sys.stderr.flush()
        self.width = len(line)

    def clear(self) -> None:
        """Take the bar off the screen."""
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0
