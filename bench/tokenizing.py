"""How fast a text becomes tokens, beside llama.cpp: same vocabulary, same text, one thread each, in turns.

Usage: python bench/tokenizing.py VOCAB TEXT [--peer DIR] [--repeat N] [--bytes N] [--json]
VOCAB is a GGUF file (one with a vocabulary only will do), TEXT a file in UTF-8, DIR the folder that holds libllama
(bench/peer.sh builds it).

`first` is a tokenizer that has seen no text yet, `again` the same text a second time: ours remembers pieces.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

from peer_vocab import PeerVocab, load_library  # noqa: E402

from sporelm.errors import SporeError  # noqa: E402
from sporelm.text import load_tokenizer  # noqa: E402


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what `call` gives."""
    start = perf_counter()
    result = call()
    return perf_counter() - start, result


def measure(vocab: Path, text: str, peer: Path | None, repeat: int) -> dict[str, Any]:
    """Medians over `repeat` rounds: load times in seconds, speeds in MB/s (10^6 bytes), ratios ours / peer's."""
    data = text.encode()
    library = load_library(peer) if peer else None
    samples: dict[str, list[float]] = {}
    ids: list[int] = []
    for _ in range(repeat):
        seconds: dict[str, float] = {}
        seconds["load_s"], tokenizer = timed(lambda: load_tokenizer(vocab))
        for when in ("first", "again"):
            call = lambda: tokenizer.encode(text, add_special_tokens=False, parse_special=False)  # noqa: E731, B023
            seconds[when], ids = timed(call)
        if library is not None:
            seconds["peer_load_s"], other = timed(lambda: PeerVocab(library, vocab))
            with other:
                other.tokenize(data[:1000])  # its tables are made at the first call
                seconds["peer"], _ = timed(lambda: other.tokenize(data))  # noqa: B023
                same = other.encode(text) == ids
                if not same:
                    raise SystemExit("the ids differ from llama.cpp's: docs/tokenizers.md says where they may")
        for name, value in seconds.items():
            samples.setdefault(name, []).append(value)
    return row(vocab, len(data), len(ids), {name: median(values) for name, values in samples.items()})


def row(vocab: Path, size: int, tokens: int, seconds: dict[str, float]) -> dict[str, Any]:
    """Return the printed row."""
    result: dict[str, Any] = {"vocab": vocab.name, "bytes": size, "tokens": tokens, "load_s": seconds["load_s"]}
    for when in ("first", "again"):
        result[f"{when}_mb_s"] = size / seconds[when] / 1e6
    if "peer" in seconds:
        result |= {"peer_load_s": seconds["peer_load_s"], "peer_mb_s": size / seconds["peer"] / 1e6}
        for when in ("first", "again"):
            result[f"{when}_ratio"] = seconds["peer"] / seconds[when]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--peer", type=Path, help="the folder that holds libllama, or that library")
    parser.add_argument("--repeat", type=int, default=5, help="rounds; the median counts")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="how much of the text is taken")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.repeat < 1 or options.bytes < 1:
        parser.error("--repeat and --bytes must be 1 or more")
    try:
        text = options.text.read_bytes()[: options.bytes].decode("utf-8", "ignore")
        found = measure(options.vocab, text, options.peer, options.repeat)
    except (SporeError, OSError, ValueError) as error:
        print(f"tokenizing.py: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
    else:
        print(
            "  ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items()
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
