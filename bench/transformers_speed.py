"""Measure `accelerate`d transformers beside plain transformers and our own engine, on random weights of 1B shapes.

    python bench/transformers_speed.py --format q4_0            # one JSON object; takes minutes and about 10 GB
    python bench/transformers_speed.py --layers 4 --vocab 32000 # a smaller model of the same widths

Decoding is timed token by token after a prompt of 64 tokens, prefill on 512 tokens; medians. All in one process, one
after the other, so that a busy machine slows them alike.
"""

import argparse
import json
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers

from sporelm.adaptors.transformers import accelerate
from sporelm.api.cpu_count import choose_threads
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--plain", default="f32,bf16", help="types of plain transformers to measure")
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
    rows: dict[str, dict[str, float]] = {"engine": time_engine(config, args)}
    for name in args.plain.split(","):
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[name]
        model = build_model(config, dtype)
        threads = torch.get_num_threads()
        for count in sorted({1, threads}):  # on a busy machine OpenMP's threads wait for one another
            torch.set_num_threads(count)
            rows[f"plain {name}, {count} threads"] = time_model(model, args.tokens)
        torch.set_num_threads(threads)
        if name == args.plain.split(",")[-1]:
            model = model.float() if dtype is not torch.float32 else model
            began = perf_counter()
            done = accelerate(model, args.format)
            seconds = perf_counter() - began
            rows["accelerated"] = time_model(model, args.tokens) | {"accelerate_s": seconds}
            done.undo()
        del model
    plain = {key: max(rows[name][key] for name in rows if name.startswith("plain")) for key in ("decode", "prefill")}
    ours = rows["accelerated"]
    ratios = {
        "decode / plain": ours["decode"] / plain["decode"],
        "prefill / plain": ours["prefill"] / plain["prefill"],
        "decode / engine": ours["decode"] / rows["engine"]["decode"],
        "prefill / engine": ours["prefill"] / rows["engine"]["prefill"],
    }
    print(json.dumps({"format": args.format, "layers": args.layers, "tok_s": rows, "ratios": ratios}, indent=2))


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
def time_model(model: Any, tokens: int) -> dict[str, float]:
    """Return tokens a second of decoding and of prefill."""
    ids = torch.randint(0, model.config.vocab_size, (1, PREFILL))
    prefill = []
    for _ in range(2):
        began = perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        prefill.append(perf_counter() - began)
    state = model(ids[:, :PROMPT], use_cache=True, logits_to_keep=1)
    cache = state.get("cache", state.get("past_key_values"))
    decode = []
    for step in range(tokens + 2):
        began = perf_counter()
        name = "cache" if "cache" in state else "past_key_values"
        model(ids[:, PROMPT + step : PROMPT + step + 1], use_cache=True, **{name: cache})
        decode.append(perf_counter() - began)
    return {"decode": 1 / median(decode[2:]), "prefill": PREFILL / min(prefill)}


def time_engine(config: Any, args: Any) -> dict[str, float]:
    """Return our own engine's tokens a second on the same shapes and format."""
    backend = open_backend("cpu", threads=choose_threads(None))
    raw = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    model = build(config_from_hf(raw, "config.json"))
    form, weights = FORMATS[args.format.upper()], {}
    random = np.random.default_rng(0)
    for param in model.params():
        values = random.uniform(-0.02, 0.02, param.shape[-1:]).astype(np.float32)
        kind = FORMATS["F32"] if len(param.shape) == 1 else form
        blocks = np.ascontiguousarray(blocks_of(kind, values[None])).view(np.uint8).reshape(-1)
        blocks = np.tile(blocks, int(np.prod(param.shape[:-1])))
        weights[param.name] = backend.pack(StoredTensor(param.name, kind, param.shape, blocks))
    weights |= {name: backend.tensor(table) for name, table in model.tables(2048).items()}
    limits = EngineConfig(1024, 1024, config.vocab_size, PREFILL, 1, count_pages(1024))
    worker = Worker(LoadedModel(model, weights), backend, limits=limits, kv=F16)
    pages = tuple(range(count_pages(1024)))

    def step(start: int, stop: int) -> float:
        began = perf_counter()
        worker.run(Step([ScheduledSequence(0, [7] * (stop - start), start, pages, 1)], [])).logits  # noqa: B018
        return perf_counter() - began

    prefill = min(step(0, PREFILL) for _ in range(2))
    decode = [step(PROMPT + index, PROMPT + index + 1) for index in range(args.tokens + 2)]
    worker.close()
    backend.close()
    return {"decode": 1 / median(decode[2:]), "prefill": PREFILL / prefill}


if __name__ == "__main__":
    main()
