"""Tools of other engines as peers: the same file, the same threads, in the same run.

llama.cpp and its fork ik_llama.cpp have programs of the same names, with options that differ a little.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sporelm.errors import RequestError

SECONDS = 1800
FLASH_ATTENTION = ("off", "on")


@dataclass(frozen=True)
class PeerVariant:
    """Choices that a peer leaves to its user; the best of them counts."""

    flash_attention: bool
    repack: bool | None = None  # repacking of weights while they are loaded; None: the peer decides

    @property
    def name(self) -> str:
        flash = f"fa={FLASH_ATTENTION[self.flash_attention]}"
        return flash if self.repack is None else f"{flash} rtr={FLASH_ATTENTION[self.repack]}"


class LlamaPeer:
    """Runs `llama-bench` and `llama-batched-bench` of a folder. Speeds are in tokens per second, one sample a call."""

    name = "llama.cpp"
    variants: tuple[PeerVariant, ...] = (PeerVariant(False), PeerVariant(True))

    def __init__(self, folder: Path, model: Path, threads: int) -> None:
        """Raises RequestError when a tool is missing or the model is not a GGUF file."""
        if model.suffix != ".gguf":
            raise RequestError(f"--peer needs a .gguf file, not {model.name!r}: {self.name} reads no other format")
        self.model = model.resolve()
        self.threads = threads
        self.bench = find_tool(folder, "llama-bench")
        self.batched = find_tool(folder, "llama-batched-bench")

    def prefill(self, tokens: int, variant: PeerVariant) -> float:
        """A prompt of `tokens` tokens."""
        return self.run_bench(["-p", str(tokens), "-n", "0"], variant)

    def decode(self, tokens: int, depth: int, variant: PeerVariant) -> float:
        """`tokens` tokens one after the other, from a context of `depth` tokens."""
        return self.run_bench(self.decode_options(tokens, depth), variant)

    def decode_options(self, tokens: int, depth: int) -> list[str]:
        """The options of llama-bench for `decode`."""
        return ["-p", "0", "-n", str(tokens), "-d", str(depth)]

    def decode_batch(self, tokens: int, batch: int, prompt: int, variant: PeerVariant) -> float:
        """`batch` sequences together, each after a prompt of `prompt` tokens: the speed of the decode phase."""
        return batch * tokens / self.run_batched(tokens, batch, prompt, variant).decode_seconds

    def whole_batch(self, tokens: int, batch: int, prompt: int, variant: PeerVariant) -> float:
        """The same, with the time of the prompts: new tokens of all sequences a second."""
        seconds = self.run_batched(tokens, batch, prompt, variant)
        return batch * tokens / (seconds.prefill_seconds + seconds.decode_seconds)

    def run_batched(self, tokens: int, batch: int, prompt: int, variant: PeerVariant) -> "BatchedSample":
        """Run llama-batched-bench once."""
        context = batch * (prompt + tokens)
        options = ["-c", str(context), "-npp", str(prompt), "-ntg", str(tokens), "-npl", str(batch)]
        command = [str(self.batched), "-m", str(self.model), "-t", str(self.threads), *self.batched_options(variant)]
        return self.read_batched(run_tool([*command, *options]))

    def batched_options(self, variant: PeerVariant) -> list[str]:
        """The options of llama-batched-bench for a variant, and for the form of its output."""
        return ["-fa", FLASH_ATTENTION[variant.flash_attention], "--output-format", "jsonl"]

    def read_batched(self, done: "subprocess.CompletedProcess[str]") -> "BatchedSample":
        """Read what llama-batched-bench printed."""
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(found) != 1 or not {"t_pp", "t_tg"} <= set(found[0]):
            raise unreadable_output(self.batched, len(found))
        return BatchedSample(float(found[0]["t_pp"]), float(found[0]["t_tg"]))

    def run_bench(self, options: Sequence[str], variant: PeerVariant) -> float:
        """One sample of llama-bench, after its own warm-up."""
        command = [str(self.bench), "-m", str(self.model), "-t", str(self.threads), *self.bench_options(variant)]
        found = json.loads(run_tool([*command, "-r", "1", *options, "-o", "json"]).stdout)
        if len(found) != 1 or "avg_ts" not in found[0]:
            raise unreadable_output(self.bench, len(found))
        return float(found[0]["avg_ts"])

    def bench_options(self, variant: PeerVariant) -> list[str]:
        """The options of llama-bench for a variant."""
        return ["-fa", FLASH_ATTENTION[variant.flash_attention]]


class IkLlamaPeer(LlamaPeer):
    """The same tools of ik_llama.cpp, which repacks weights on request and prints batches as a table."""

    name = "ik_llama.cpp"
    variants = tuple(PeerVariant(flash, repack) for flash in (False, True) for repack in (False, True))

    def decode_options(self, tokens: int, depth: int) -> list[str]:
        if depth == 0:
            return ["-p", "0", "-n", str(tokens)]
        return ["-p", "0", "-n", "0", "-gp", f"{depth},{tokens}"]

    def batched_options(self, variant: PeerVariant) -> list[str]:
        return ["-fa", FLASH_ATTENTION[variant.flash_attention], *(["-rtr"] if variant.repack else [])]

    def read_batched(self, done: "subprocess.CompletedProcess[str]") -> "BatchedSample":
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | ... by examples/batched-bench/batched-bench.cpp
        found = [line.split("|")[1:-1] for line in done.stderr.splitlines() if re.match(r"\| *[0-9]+ \|", line)]
        if len(found) != 1 or len(found[0]) < 8:
            raise unreadable_output(self.batched, len(found))
        return BatchedSample(float(found[0][4]), float(found[0][6]))

    def bench_options(self, variant: PeerVariant) -> list[str]:
        return ["-fa", str(int(variant.flash_attention)), "-rtr", str(int(bool(variant.repack)))]


@dataclass(frozen=True)
class BatchedSample:
    """The two phases of a batch, in seconds."""

    prefill_seconds: float
    decode_seconds: float


def open_peer(folder: Path, model: Path, threads: int) -> LlamaPeer:
    """Return the peer whose tools are in the folder. Raises RequestError as `LlamaPeer` does."""
    usage = run_tool([str(find_tool(folder, "llama-bench")), "--help"]).stdout
    return (IkLlamaPeer if "--run-time-repack" in usage else LlamaPeer)(folder, model, threads)


def find_tool(folder: Path, name: str) -> Path:
    """A tool of the folder, or of its bin/. Raises RequestError with the remedy."""
    for place in (folder / name, folder / "bin" / name, folder / f"{name}.exe"):
        if place.is_file():
            return place.resolve()
    raise RequestError(f"no {name} in {str(folder)!r}: bench/peer.sh DIR builds it and says which folder to give")


def run_tool(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a peer's tool to its end. Raises RequestError with its last words if it fails."""
    try:
        with tempfile.TemporaryDirectory() as folder:  # ik_llama.cpp writes a log where it is started
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
                cwd=folder,
            )
    except subprocess.TimeoutExpired:
        raise RequestError(f"{Path(command[0]).name} was still running after {SECONDS} s: try smaller tests") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RequestError(f"{Path(command[0]).name} failed with exit code {done.returncode}: {last[:200]}")
    return done


def unreadable_output(program: Path, results: int) -> RequestError:
    """The error for a tool whose output is not that of the version which bench/peer.sh builds."""
    return RequestError(f"{program.name} printed {results} results that are readable, expected one: see bench/peer.sh")
