"""llama.cpp's libmtmd on pictures in prompts, through the driver mtmd_driver.cpp that `bench/peer.sh --mtmd` builds."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

TIMEOUT_S = 600
ROW = -1  # in place of the id of a picture's row
Pixels = NDArray[np.uint8]


class MtmdResult(NamedTuple):
    """The result of libmtmd and libllama for a prompt.

    layout   the ids of the prompt, ROW for each row of a picture
    rows     of all pictures: float32 [rows, width]
    logits   of the text behind the last picture: float32 [tokens, vocabulary]
    """

    layout: list[int]
    rows: NDArray[np.float32]
    logits: NDArray[np.float32]


def write_ppm(path: Path, pixels: Pixels) -> Path:
    """Write a picture, uint8 [height, width, 3]."""
    height, width, _ = pixels.shape
    path.write_bytes(b"P6 %d %d 255\n" % (width, height) + np.ascontiguousarray(pixels).tobytes())
    return path


def find_driver(peer: Path) -> Path:
    """Return the driver in a folder of llama.cpp's tools. Ends the program if it is missing."""
    found = peer / "mtmd-driver"
    if not found.is_file():
        raise SystemExit(f"{found} is missing: bench/peer.sh --mtmd builds it")
    return found


def make_command(peer: Path, mmproj: Path, pictures: Sequence[Path], **options: Any) -> list[str]:
    """Return the command of the driver; an option True is a flag."""
    command = [str(find_driver(peer)), "--mmproj", str(mmproj)]
    for picture in pictures:
        command += ["--picture", str(picture)]
    for name, value in options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return command


def run_mtmd(peer: Path, model: Path, mmproj: Path, prompt: str, pictures: Sequence[Pixels]) -> MtmdResult:
    """Return what llama.cpp computes for a prompt with "<__media__>" for each picture, and text behind the last one.

    Scores and the KV cache are in f32. Raises ValueError with the driver's message if llama.cpp fails.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = [write_ppm(folder / f"{index}.ppm", each) for index, each in enumerate(pictures)]
        rows, logits = folder / "rows", folder / "logits"
        command = make_command(peer, mmproj, files, model=model, prompt=prompt, rows=rows, logits=logits)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            raise ValueError(f"mtmd-driver failed ({done.returncode}): {done.stderr.strip()}")
        values = json.loads(done.stdout)
        layout = [token for chunk in values["chunks"] for token in chunk.get("ids") or [ROW] * chunk["rows"]]
        return MtmdResult(
            layout,
            np.fromfile(rows, np.float32).reshape(-1, values["width"]),
            np.fromfile(logits, np.float32).reshape(-1, values["vocab"]),
        )


class MtmdTower:
    """A vision tower that stays loaded, for measurements."""

    def __init__(self, peer: Path, mmproj: Path, picture: Pixels, *, threads: int, flash: bool) -> None:
        with TemporaryDirectory() as name:
            file = write_ppm(Path(name) / "picture.ppm", picture)
            command = make_command(peer, mmproj, [file], threads=threads, flash=int(flash), serve=True)
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.layout = json.loads(self._read_line())  # the picture is read by then

    def encode(self) -> float:
        """Compute the rows of the picture, and return the seconds that it takes."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._read_line())

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("mtmd-driver ended early: its message stands above")
        return line

    def close(self) -> None:
        """End the driver."""
        self.process.communicate("", timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
