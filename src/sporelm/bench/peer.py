"""llama.cpp's own tools as a peer: the same file, the same threads, in the same run."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sporelm.errors import RequestError

SECONDS = 1800
NAME = "llama.cpp"
VARIANTS = ("off", "on")  # flash attention


class LlamaPeer:
    """Runs `llama-bench` and `llama-batched-bench` of a folder. Speeds are in tokens per second, one sample a call."""

    def __init__(self, folder: Path, model: Path, threads: int) -> None:
        """Raises RequestError when a tool is missing or the model is not a GGUF file."""
        if model.suffix != ".gguf":
            raise RequestError(f"--peer needs a .gguf file, not {model.name!r}: llama.cpp reads no other format")
        self.model = model
        self.threads = threads
        self.bench = find_tool(folder, "llama-bench")
        self.batched = find_tool(folder, "llama-batched-bench")

    def prefill(self, tokens: int, flash: str) -> float:
        """A prompt of `tokens` tokens."""
        return self.run_bench(["-p", str(tokens), "-n", "0"], flash)

    def decode(self, tokens: int, depth: int, flash: str) -> float:
        """`tokens` tokens one after the other, from a context of `depth` tokens."""
        return self.run_bench(["-p", "0", "-n", str(tokens), "-d", str(depth)], flash)

    def decode_batch(self, tokens: int, batch: int, prompt: int, flash: str) -> float:
        """`batch` sequences together, each after a prompt of `prompt` tokens: the speed of the decode phase (S_TG)."""
        return read_speed([self.run_batched(tokens, batch, prompt, flash)], "speed_tg", self.batched)

    def whole_batch(self, tokens: int, batch: int, prompt: int, flash: str) -> float:
        """The same, with the time of the prompts: new tokens of all sequences a second."""
        return batch * tokens / read_speed([self.run_batched(tokens, batch, prompt, flash)], "t", self.batched)

    def run_batched(self, tokens: int, batch: int, prompt: int, flash: str) -> dict[str, Any]:
        """Run llama-batched-bench once and return its result."""
        context = batch * (prompt + tokens)
        words = ["-c", str(context), "-npp", str(prompt), "-ntg", str(tokens), "-npl", str(batch)]
        command = [str(self.batched), "-m", str(self.model), "-t", str(self.threads), "-fa", flash, *words]
        output = run_tool([*command, "--output-format", "jsonl"])
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if len(found) != 1:
            raise RequestError(f"{self.batched.name} printed {len(found)} results, expected one: see bench/peer.sh")
        return found[0]

    def run_bench(self, words: Sequence[str], flash: str) -> float:
        """One sample of llama-bench, after its own warm-up."""
        command = [str(self.bench), "-m", str(self.model), "-t", str(self.threads), "-fa", flash, "-r", "1", *words]
        return read_speed(json.loads(run_tool([*command, "-o", "json"])), "avg_ts", self.bench)


def find_tool(folder: Path, name: str) -> Path:
    """A tool of the folder, or of its bin/. Raises RequestError with the remedy."""
    for place in (folder / name, folder / "bin" / name, folder / f"{name}.exe"):
        if place.is_file():
            return place
    raise RequestError(f"no {name} in {str(folder)!r}: bench/peer.sh DIR builds it and says which folder to give")


def run_tool(command: list[str]) -> str:
    """Standard output of a peer's tool. Raises RequestError with its last words if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequestError(f"{Path(command[0]).name} was still running after {SECONDS} s: try smaller tests") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RequestError(f"{Path(command[0]).name} failed with exit code {done.returncode}: {last[:200]}")
    return done.stdout


def read_speed(found: list[dict[str, Any]], key: str, program: Path) -> float:
    """The one speed that a tool printed. Raises RequestError if it printed none, or several."""
    if len(found) != 1 or key not in found[0]:
        raise RequestError(f"{program.name} printed {len(found)} results, expected one with {key!r}: see bench/peer.sh")
    return float(found[0][key])
