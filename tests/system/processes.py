"""Runs `spore` as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS = 120

# Before a command: of each tensor that it writes it waits after the first blocks, so that a signal comes in the middle.
HELD = """
import time
from sporelm.tools import output_file
chunks = output_file.read_chunks
def held(*given):
    for blocks in chunks(*given):
        yield blocks
        time.sleep(60)
output_file.read_chunks = held
"""

Spore = Callable[..., subprocess.CompletedProcess[str]]


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "utf-8"} | changes


def command(*words: object) -> list[str]:
    code = "import sys; from sporelm.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", code, *map(str, words)]


def one_line(text: str) -> str:
    """The only line of stderr; a traceback or a second line fails."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


def list_ranks(parent: int = 0) -> list[int]:
    """The processes of ranks that a process has started, this one by default."""
    words = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent or os.getpid())]
    listing = subprocess.run(words, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listing.stdout.splitlines() if "rank_process" in line]
