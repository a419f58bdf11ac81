"""Decoding one stream, compared with transformers with a static cache and a compiled step, in alternating rounds.

Usage: PYTHONPATH=src python3 bench/gpu/compare_transformers.py [--models 8b,1b] [--tokens 128] [--repeat 5] [--json]

Both sides have random weights of the same shape in bf16, and decode greedily after a prompt of 32 tokens. Theirs runs
`torch.compile(mode="reduce-overhead")`, that is in CUDA graphs. A row is skipped, with the reason, where transformers
is not installed. `ratio` is the median of the rounds' ratios, ours over theirs.
"""

import argparse
import inspect
from statistics import median
from time import perf_counter
from typing import Any

import harness
import torch
from limits import Limits, load_limits, share_of
from model import PROMPT, decode
from random_models import MODEL_SHAPES, RandomModel, free_device_memory, make_source, open_gpu_backend

from sporelm.bench.model_shapes import ModelShape

SPARE_POSITIONS = 64  # of the static cache


class CompiledTransformers:
    """transformers' Llama with a compiled decode step."""

    def __init__(self, shape: ModelShape, device: str, max_length: int) -> None:
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.width,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=shape.context,
            tie_word_embeddings=shape.tied,
        )
        loader: Any = AutoModelForCausalLM
        with torch.device(device):
            self.model = loader.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        self.device, self.max_length = device, max_length
        parameters = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._has_positions = "cache_position" in parameters
        options = {"backend": "eager"} if device == "cpu" else {"mode": "reduce-overhead"}
        self._compiled_step = torch.compile(self._step, **options)
        self._cache: Any = None

    def _step(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the greedy token after `ids`."""
        arguments = {self._cache_name: self._cache, "use_cache": True, "position_ids": positions.unsqueeze(0)}
        if self._has_positions:
            arguments["cache_position"] = positions
        logits = self.model(ids, **arguments).logits
        return logits[:, -1].argmax(-1, keepdim=True)  # type: ignore[no-any-return]

    def _reset_cache(self) -> None:
        """Empty the cache; it keeps its memory, which the graphs of the compiled step refer to."""
        from transformers import StaticCache

        if self._cache is None:
            given = {"config": self.model.config, "max_cache_len": self.max_length, "max_batch_size": 1}
            given |= {"device": self.device, "dtype": torch.bfloat16}
            known = inspect.signature(StaticCache.__init__).parameters
            self._cache = StaticCache(**{name: value for name, value in given.items() if name in known})
        else:
            self._cache.reset()

    @torch.no_grad()
    def decode(self, prompt: list[int], num_tokens: int, warm_tokens: int) -> float:
        """Return the seconds of a token, after a prompt and `warm_tokens`."""
        self._reset_cache()
        ids = torch.tensor([prompt], device=self.device)
        positions = torch.arange(len(prompt), device=self.device)
        token = self._step(ids, positions)
        position = positions[-1:] + 1
        began = 0.0
        for number in range(warm_tokens + num_tokens):
            if number == warm_tokens:
                self._synchronize()
                began = perf_counter()
            if self.device != "cpu":
                torch.compiler.cudagraph_mark_step_begin()
            token = self._compiled_step(token, position).clone()
            position = position + 1
        self._synchronize()
        return (perf_counter() - began) / num_tokens

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def compare(args: argparse.Namespace, limits: Limits, name: str, row: dict[str, Any]) -> None:
    """Fill the row of a model."""
    shape = MODEL_SHAPES[name]
    streams, budget = (2, 128) if args.tiny else (16, None)
    backend = open_gpu_backend(args.device, "bf16", max_streams=streams, token_budget=budget)
    opened = RandomModel(make_source(shape, "bf16"), backend, context=512, streams=streams, kv="bf16")
    theirs = CompiledTransformers(shape, args.device, PROMPT + args.warm_tokens + args.tokens + SPARE_POSITIONS)
    speeds: dict[str, list[float]] = {"transformers": [], "sporelm": []}
    for number in range(args.repeat + 1):  # the first round warms up
        prompt = opened.random_ids(PROMPT)
        for side in speeds:
            if side == "transformers":
                seconds = theirs.decode(prompt, args.tokens, args.warm_tokens)
            else:
                seconds = decode(opened.engine, prompt, args.tokens, args.warm_tokens)
            if number:
                speeds[side].append(1 / seconds)
    ratios = [ours / other for other, ours in zip(*speeds.values(), strict=True)]
    nbytes = opened.step_work.decode_bytes(1, PROMPT + args.warm_tokens + args.tokens / 2)
    row |= {"tok/s": median(speeds["sporelm"]), "transformers tok/s": median(speeds["transformers"])}
    row |= {"ratio": median(ratios), "least ratio": min(ratios), "greatest ratio": max(ratios)}
    row["share"] = share_of(nbytes * median(speeds["sporelm"]), limits.read_bytes_s)
    row["transformers share"] = share_of(nbytes * median(speeds["transformers"]), limits.read_bytes_s)
    opened.close()
    backend.close()
    del theirs
    free_device_memory(args.device)


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--models", default="8b,1b")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--warm-tokens", type=int, default=32)
    args = parser.parse_args()
    harness.check_device(args)
    models = args.models.split(",")
    if args.tiny:
        models, args.tokens, args.warm_tokens = ["mini"], 2, 1
    report = harness.Report("transformers", args)
    try:
        import transformers
    except ImportError as error:
        reason = f"transformers does not load ({error}): pip install transformers"
        report.add({"bench": report.bench, "name": "decode", "skipped": reason})
        return report.finish()
    limits = load_limits(args, report)
    for name in models:
        with report.row(f"{name} bf16 decode", transformers=transformers.__version__) as row:
            compare(args, limits, name, row)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
