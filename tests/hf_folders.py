"""Hugging Face folders with everything in them: configuration, safetensors of any float type, a small tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.quant import BF16, F16, F32, QuantFormat, quantize_tensor
from sporelm.text.tokenizers.byte_level import byte_alphabet
from tiny_models import Tiny

GPT2_CUT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def stored(values: np.ndarray, number_format: type[QuantFormat]) -> bytes:
    """The bytes of a tensor in a safetensors file."""
    return quantize_tensor(number_format, np.ascontiguousarray(values, np.float32)).tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """A file of tensors: name -> dtype, shape, bytes. Written by hand, for types that numpy lacks."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for *_, data in tensors.values()))
    return path


def tokenizer_json(size: int, pre: Any = GPT2_CUT, **model: Any) -> dict[str, Any]:
    """A byte-level tokenizer of `size` tokens: three special ones, bytes, and merges of a few letters."""
    words = ["<unk>", "<s>", "</s>", *sorted(byte_alphabet().values())][:size]
    letters = [word for word in "etaoinshrdlu " if word in words] + ["Ġ"] * ("Ġ" in words)
    merges = []
    for first in letters:
        for second in letters:
            if len(words) < size and first + second not in words:
                words.append(first + second)
                merges.append([first, second])
    added = [{"id": token, "content": words[token], "special": True} | FLAGS for token in range(min(3, size))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": GPT2_CUT,
        "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": merges} | model,
    }


def write_tokenizer(folder: Path, spec: Mapping[str, Any], **config: Any) -> None:
    """tokenizer.json, and tokenizer_config.json with the usual names."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    named = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | config), encoding="utf-8")


def write_model(
    folder: Path,
    tiny: Tiny,
    number_format: type[QuantFormat] = F32,
    change: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A whole folder of a tiny model; `change` replaces tensors by name, None removes one."""
    write_tokenizer(folder, tokenizer_json(tiny.config["vocab_size"]))
    (folder / "config.json").write_text(json.dumps(tiny.config | config), encoding="utf-8")
    name = {F32: "F32", F16: "F16", BF16: "BF16"}[number_format]
    weights = {**tiny.weights(), **(change or {})}
    write_safetensors(
        folder / "model.safetensors",
        {key: (name, array.shape, stored(array, number_format)) for key, array in weights.items() if array is not None},
    )
    return folder
