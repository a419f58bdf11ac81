"""Adapters of tiny models: as PEFT folders and as GGUF files of llama.cpp, and the weights that merging them makes.

Pairs are by the Hugging Face name of a weight: A [rank, in] and B [out, rank], float32.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sporelm.files.gguf import GgufWriter
from sporelm.quant import F32, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from tiny_files import gguf_name, has_paired_rows
from tiny_models import Tiny

Pairs = Mapping[str, tuple[np.ndarray, np.ndarray]]

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def random_pairs(tiny: Tiny, rank: int, modules: Iterable[str] = ALL_LINEAR, seed: int = 0) -> dict[str, Any]:
    """Pairs that change what the model says: B is not zero, as it is before training."""
    random, found = np.random.default_rng(seed), {}
    for name, weight in tiny.weights().items():
        if name.removesuffix(".weight").endswith(tuple(modules)):
            out, width = weight.shape
            a = random.standard_normal((rank, width), np.float32) * np.float32(width**-0.5)
            found[name] = a, random.standard_normal((out, rank), np.float32) * np.float32(0.5)
    return found


def merged(tiny: Tiny, pairs: Pairs, scale: float) -> dict[str, np.ndarray]:
    """The weights that the adapter makes of the model's: W + scale * B A."""
    weights = tiny.weights()
    return {name: (weights[name] + np.float64(scale) * (b.astype(np.float64) @ a)).astype(np.float32)
            for name, (a, b) in pairs.items()}  # fmt: skip


def peft_config(rank: int, alpha: float, **more: Any) -> dict[str, Any]:
    """Return the fields of PEFT 0.17's adapter_config.json that matter, and some that do not."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "example/tiny",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": list(ALL_LINEAR),
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
    } | more


def peft_tensors(pairs: Pairs) -> dict[str, np.ndarray]:
    """Under PEFT's names."""
    found = {}
    for name, (a, b) in pairs.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        found |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    return found


def write_peft(
    folder: Path, pairs: Pairs, alpha: float = 16.0, tensors: Mapping[str, Any] | None = None, **config: Any
) -> Path:
    """A PEFT folder; `tensors` replaces some by name, None removes one. Ranks are those of the first pair."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = len(next(iter(pairs.values()))[0])
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(rank, alpha, **config)))
    kept = {name: array for name, array in {**peft_tensors(pairs), **(tensors or {})}.items() if array is not None}
    save_file({name: np.ascontiguousarray(array) for name, array in kept.items()}, folder / "adapter_model.safetensors")
    return folder


def write_gguf_adapter(
    path: Path,
    tiny: Tiny,
    pairs: Pairs,
    alpha: float = 16.0,
    number_format: type[QuantFormat] = F32,
    **meta: Any,
) -> Path:
    """A GGUF adapter as llama.cpp's converter makes it: the rows of B of queries and keys in adjacent pairs. Metadata
    is by its key with dots as two underscores."""
    writer = GgufWriter(path)
    known = {"general__architecture": "llama", "general__type": "adapter", "adapter__type": "lora"}
    for key, value in (known | {"adapter__lora__alpha": float(alpha)} | meta).items():
        if value is not None:
            writer.add(key.replace("__", "."), value, "f32" if isinstance(value, float) else None)
    for name, (a, given) in pairs.items():
        b = given
        if has_paired_rows(name):
            b = given.reshape(-1, 2, tiny.head_dim // 2, given.shape[1]).swapaxes(1, 2).reshape(given.shape)
        for side, values in (("lora_a", a), ("lora_b", np.ascontiguousarray(b))):
            kind = number_format if values.shape[-1] % number_format.values == 0 else F32
            title = f"{gguf_name(name)}.{side}"
            writer.add_tensor(title, StoredTensor(title, kind, values.shape, quantize_tensor(kind, values).reshape(-1)))
    writer.write()
    return path
