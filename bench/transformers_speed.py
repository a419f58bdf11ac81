"""Measure `accelerate`d transformers beside plain transformers and our own engine, on random weights of 1B shapes.

    python bench/transformers_speed.py --formats q4_0,q8_0      # one JSON object; takes minutes and 14 GB
    python bench/transformers_speed.py --formats q4_0 --save FILE
    python bench/transformers_speed.py --layers 4 --vocab 32000 # a smaller model of the same widths

Decoding is timed token by token after a prompt of 64 tokens, prefill on 512 tokens. All subjects are in one process and
take turns, so that a busy machine slows them alike: ratios are medians over the turns of ratios within a turn.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers
from benchmark_script import describe_script

from sporelm.adaptors.transformers import accelerate
from sporelm.backends.backend_registry import open_backend
from sporelm.checkpoints import config_from_hf
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import LoadedModel, Worker
from sporelm.evals.conformance.random_weights import blocks_of
from sporelm.models import build
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F16

PROMPT, PREFILL = 64, 512
Speed = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default="q4_0,q8_0")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--plain", default="f32,bf16", help="types of plain transformers to measure")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the JSON object, and every turn")
    args = parser.parse_args()
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=args.layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=args.vocab,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    threads = torch.get_num_threads()
    subjects: dict[str, Callable[[], Speed]] = {}
    for name in args.plain.split(","):
        plain = build_model(config, {"f32": torch.float32, "bf16": torch.bfloat16}[name])
        subjects[f"plain {name}"] = partial(time_model, plain, args.tokens, threads)
    seconds = {}
    for form in args.formats.split(","):
        model = build_model(config, torch.float32)
        began = perf_counter()
        accelerate(model, form, threads=threads)
        seconds[form] = perf_counter() - began
        subjects[f"accelerated {form}"] = partial(time_model, model, args.tokens, 1)
        subjects[f"engine {form}"] = open_engine(config, form, threads, args.tokens).time
    turns: list[dict[str, Speed]] = []
    for _ in range(args.turns):
        turns.append({name: time_speed() for name, time_speed in subjects.items()})
        print(json.dumps(turns[-1]), "load", os.getloadavg()[0], file=sys.stderr)
    medians = {
        name: {key: round(median(turn[name][key] for turn in turns), 2) for key in ("decode", "prefill")}
        for name in subjects
    }
    ratios = {form: find_ratios(turns, form) for form in args.formats.split(",")}
    rows = {"layers": args.layers, "threads": threads, "accelerate_s": seconds, "tok_s": medians, "ratios": ratios}
    with closing(open_backend("cpu", threads=threads)) as backend:
        about = describe_script(backend.probe())
    print(json.dumps(about | rows, indent=2))
    if args.save:
        args.save.write_text(json.dumps(about | rows | {"turns": turns}, indent=1) + "\n", encoding="utf-8")


def find_ratios(turns: list[dict[str, Speed]], form: str) -> dict[str, float]:
    """Return the medians of ratios within a turn: to the faster plain model, and to our engine."""
    ratios = {}
    for key in ("decode", "prefill"):
        pairs = [
            (turn[f"accelerated {form}"][key], [turn[name][key] for name in turn if name.startswith("plain")])
            for turn in turns
        ]
        ratios[f"{key} / plain"] = round(median(ours / max(plain) for ours, plain in pairs), 2)
        engine = [turn[f"accelerated {form}"][key] / turn[f"engine {form}"][key] for turn in turns]
        ratios[f"{key} / engine"] = round(median(engine), 2)
    return ratios


def build_model(config: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(dtype)
    model = model.to_empty(device="cpu").eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.02, 0.02)
    rotary = model.model.rotary_emb
    frequencies, _ = rotary.compute_default_rope_parameters(config)
    rotary.inv_freq = frequencies
    rotary.original_inv_freq = frequencies.clone()
    model.tie_weights()
    return model


@torch.no_grad()
def time_model(model: Any, tokens: int, threads: int) -> Speed:
    """Return tokens a second of decoding and of prefill. `threads` are those of torch's own functions."""
    torch.set_num_threads(threads)
    ids = torch.randint(0, model.config.vocab_size, (1, PREFILL))
    prefill = []
    for _ in range(2):
        began = perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        prefill.append(perf_counter() - began)
    state = model(ids[:, :PROMPT], use_cache=True, logits_to_keep=1)
    name = "cache" if "cache" in state else "past_key_values"  # of newer transformers, and of older ones
    held = {name: state[name]}
    decode = []
    for step in range(tokens + 2):
        began = perf_counter()
        model(ids[:, PROMPT + step : PROMPT + step + 1], use_cache=True, **held)
        decode.append(perf_counter() - began)
    torch.set_num_threads(1)
    return {"decode": 1 / median(decode[2:]), "prefill": PREFILL / min(prefill)}


class Engine:
    """Our own engine on the same shapes, with weights in a format."""

    def __init__(self, worker: Worker, tokens: int) -> None:
        self.worker, self.tokens = worker, tokens
        self.pages = tuple(range(count_pages(1024)))

    def _step(self, start: int, stop: int) -> float:
        began = perf_counter()
        part = ScheduledSequence(0, [7] * (stop - start), start, self.pages, 1)
        self.worker.run(Step([part], [])).logits  # noqa: B018
        return perf_counter() - began

    def time(self) -> Speed:
        """Return tokens a second of decoding and of prefill."""
        prefill = min(self._step(0, PREFILL) for _ in range(2))
        decode = [self._step(PROMPT + index, PROMPT + index + 1) for index in range(self.tokens + 2)]
        return {"decode": 1 / median(decode[2:]), "prefill": PREFILL / prefill}


def open_engine(config: Any, form_name: str, threads: int, tokens: int) -> Engine:
    """Return our engine with random weights."""
    backend = open_backend("cpu", threads=threads)
    raw = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    model = build(config_from_hf(raw, "config.json"))
    form, weights = FORMATS[form_name.upper()], {}
    random = np.random.default_rng(0)
    for param in model.params():
        values = random.uniform(-0.02, 0.02, param.shape[-1:]).astype(np.float32)
        kind = FORMATS["F32"] if len(param.shape) == 1 else form
        blocks = np.ascontiguousarray(blocks_of(kind, values[None])).view(np.uint8).reshape(-1)
        blocks = np.tile(blocks, int(np.prod(param.shape[:-1])))
        weights[param.name] = backend.pack(StoredTensor(param.name, kind, param.shape, blocks))
    weights |= {name: backend.tensor(table) for name, table in model.tables(2048).items()}
    limits = EngineConfig(1024, 1024, config.vocab_size, PREFILL, 1, count_pages(1024))
    return Engine(Worker(LoadedModel(model, weights), backend, limits=limits, kv=F16), tokens)


if __name__ == "__main__":
    main()
