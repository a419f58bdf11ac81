"""Speed of the torch back-end beside transformers: the same Hugging Face folder, device, type and number of threads.

Usage: python bench/torch_backend.py FOLDER [--dtype f32|bf16|f16,..] [--device cpu] [--threads 2] [--repeat 5]
       [--clock wall|cpu] [--json]
FOLDER is a Hugging Face folder, for example of `spore gguf to-hf smollm2 -o smollm2-hf`. Needs torch and transformers.

Rounds alternate: transformers, torch back-end, transformers, ... Both decode greedily. Figures are medians of tokens
per second, and the ratio is the median of the rounds' ratios.

`--clock cpu --threads 1` counts the process's CPU time instead, which other programs on a busy machine change little.

decode   one token at a time after a prompt of 32 tokens
pp512    a prompt of 512 tokens, with the logits of its last one
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from sporelm.api.engine_loader import EngineOptions, load_engine  # noqa: E402
from sporelm.backends.backend_registry import open_backend  # noqa: E402
from sporelm.backends.protocol import Backend  # noqa: E402
from sporelm.engine import Request  # noqa: E402

CLOCKS = {"wall": perf_counter, "cpu": process_time}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PROMPT = 32  # tokens before the decoded ones


class Transformers:
    """transformers' model, driven by a plain loop: faster than its `generate`."""

    def __init__(self, folder: str, dtype: str, device: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        model: Any = transformers.AutoModelForCausalLM
        self.model = model.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="sdpa").eval().to(device)
        self.device = device

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> tuple[Any, Any]:
        result = self.model(torch.tensor([ids], device=self.device), use_cache=True, logits_to_keep=1)
        return result.logits[:, -1].argmax(-1, keepdim=True), result.past_key_values

    @torch.inference_mode()
    def decode(self, ids: list[int], count: int) -> tuple[float, list[int]]:
        """Return the seconds of `count` tokens, and the tokens."""
        token, cache = self.prefill(ids)
        tokens = [int(token)]
        began = self.clock()
        for _ in range(count):
            result = self.model(token, past_key_values=cache, use_cache=True)
            token = result.logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(int(token))
        return self.clock() - began, tokens


class TorchBackendEngine:
    """The engine on the torch back-end."""

    def __init__(self, folder: str, dtype: str, device: str, threads: int, clock: Callable[[], float]) -> None:
        self.clock = clock

        def replace(backend: Backend) -> Backend:
            backend.close()
            return open_backend("torch", threads=threads, device=device, dtype=dtype)

        options = EngineOptions(
            folder, "torch", "cpu", threads, 1024, dtype if dtype != "bf16" else None, False, 16, False, None
        )
        self.loaded = load_engine(options, None, replace)
        self.engine = self.loaded.engine

    def prefill(self, ids: list[int]) -> None:
        request = self.engine.add(Request(ids, max_tokens=1))
        while request.finish_reason is None:
            self.engine.step()

    def decode(self, ids: list[int], count: int) -> tuple[float, list[int]]:
        request = self.engine.add(Request(ids, max_tokens=count + 1))
        while not request.num_generated:
            self.engine.step()
        began = self.clock()
        while request.finish_reason is None:
            self.engine.step()
        return self.clock() - began, list(request.all_token_ids[request.num_prompt :])


def measure(
    folder: str, dtype: str, device: str, threads: int, repeat: int, count: int, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Return a row for each figure."""
    torch.set_num_threads(threads)
    sides: dict[str, Any] = {
        "transformers": Transformers(folder, dtype, device, clock),
        "sporelm": TorchBackendEngine(folder, dtype, device, threads, clock),
    }
    random = np.random.default_rng(0)
    speeds: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in ("decode", "pp512") for name in sides}
    outputs: dict[str, list[int]] = {}
    for turn in range(repeat + 1):  # the first round warms up
        long, short = (random.integers(10, 40000, size).tolist() for size in (512, PROMPT))
        for name, side in sides.items():
            began = clock()
            side.prefill(long)
            prefill_s = clock() - began
            decode_s, outputs[name] = side.decode(short, count)
            if turn:
                speeds["pp512", name].append(512 / prefill_s)
                speeds["decode", name].append(count / decode_s)
    equal = sum(a == b for a, b in zip(outputs["transformers"], outputs["sporelm"], strict=False))
    rows = []
    for kind in ("decode", "pp512"):
        theirs, ours = (speeds[kind, name] for name in sides)
        ratios = [b / a for a, b in zip(theirs, ours, strict=True)]
        rows.append({
            "dtype": dtype, "what": kind, "transformers_tok_s": round(median(theirs), 2),
            "sporelm_tok_s": round(median(ours), 2), "ratio": round(median(ratios), 3),
            "ratios": [round(each, 3) for each in ratios], "equal_tokens": f"{equal} of {count + 1}",
        })  # fmt: skip
    sides["sporelm"].loaded.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded in each round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for dtype in args.dtype.split(","):
        rows += measure(args.folder, dtype, args.device, args.threads, args.repeat, args.tokens, CLOCKS[args.clock])
        if not args.json:
            for row in rows[-2:]:
                print(
                    f"{row['dtype']:5} {row['what']:7} transformers {row['transformers_tok_s']:8.2f} tok/s"
                    f"   sporelm {row['sporelm_tok_s']:8.2f} tok/s   ratio {row['ratio']:.3f}"
                    f"   ({min(row['ratios']):.3f} to {max(row['ratios']):.3f}; tokens equal {row['equal_tokens']})",
                    flush=True,
                )
    if args.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
