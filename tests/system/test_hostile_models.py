"""From the metadata of a hostile GGUF file to an answer: it answers, or it is refused in one printable line."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm import LLM, SamplingParams
from sporelm.errors import SporeError
from sporelm.files.gguf import GgufWriter
from sporelm.quant import F32, Q4_1, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.text.tokenizers.byte_level import byte_alphabet
from tiny_files import gguf_weights
from tiny_models import WIDE

VOCAB = 300
TINY = replace(WIDE, config=WIDE.config | {"vocab_size": VOCAB})
TOKENS = [*byte_alphabet().values(), "<s>", "</s>", "ab", *(f"tok{index}" for index in range(VOCAB - 259))]
TYPES = [1] * 256 + [3, 3] + [1] * (VOCAB - 258)
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
# Key -> value and its type in the file.
USUAL: dict[str, tuple[Any, str | None]] = {
    "general.architecture": ("llama", None),
    "general.name": ("tiny", None),
    "llama.block_count": (2, "u32"),
    "llama.context_length": (256, "u32"),
    "llama.embedding_length": (96, "u32"),
    "llama.feed_forward_length": (160, "u32"),
    "llama.attention.head_count": (6, "u32"),
    "llama.attention.head_count_kv": (2, "u32"),
    "llama.attention.layer_norm_rms_epsilon": (1e-5, "f32"),
    "llama.rope.freq_base": (1e4, "f32"),
    "tokenizer.ggml.model": ("gpt2", None),
    "tokenizer.ggml.pre": ("smollm", None),
    "tokenizer.ggml.tokens": (TOKENS, None),
    "tokenizer.ggml.merges": (["a b"], None),
    "tokenizer.ggml.token_type": (TYPES, "[i32]"),
    "tokenizer.ggml.bos_token_id": (256, "u32"),
    "tokenizer.ggml.eos_token_id": (257, "u32"),
    "tokenizer.ggml.add_bos_token": (True, "bool"),
    "tokenizer.chat_template": (TEMPLATE, None),
}
HOSTILE: list[tuple[str, Any, str | None]] = [
    ("general.architecture", "a\nb\x1b[2J", None),
    ("general.architecture", [["llama"]], None),
    ("general.name", "x" * 100_000, None),
    ("general.name", ["a", "b"], None),
    ("split.count", 3, "u16"),
    ("llama.block_count", 2**32 - 1, "u32"),
    ("llama.block_count", 3, "u32"),
    ("llama.context_length", 2**63, "u64"),
    ("llama.context_length", 2**26, "u32"),
    ("llama.context_length", float("nan"), "f32"),
    ("llama.embedding_length", 2**20, "u32"),
    ("llama.embedding_length", 95, "u32"),
    ("llama.feed_forward_length", [160, 96], "[i32]"),
    ("llama.attention.head_count", 0, "u32"),
    ("llama.attention.head_count", [[6, 6], [6, 6]], None),
    ("llama.attention.head_count_kv", -2, "i32"),
    ("llama.attention.key_length", 17, "u32"),
    ("llama.attention.layer_norm_rms_epsilon", float("inf"), "f64"),
    ("llama.attention.sliding_window", -1, "i64"),
    ("llama.rope.freq_base", 1e-40, "f64"),
    ("llama.rope.scaling.type", "yarn", None),
    ("tokenizer.ggml.model", 5, "u8"),
    ("tokenizer.ggml.pre", "a\nb", None),
    ("tokenizer.ggml.tokens", [], "[str]"),
    ("tokenizer.ggml.tokens", ["a"] * VOCAB, None),
    ("tokenizer.ggml.tokens", [*TOKENS, "more"], None),
    ("tokenizer.ggml.tokens", TOKENS[:200], None),
    ("tokenizer.ggml.tokens", [1] * VOCAB, "[i32]"),
    ("tokenizer.ggml.merges", ["a"], None),
    ("tokenizer.ggml.merges", ["b a"], None),
    ("tokenizer.ggml.merges", [" "] * 9, None),
    ("tokenizer.ggml.token_type", [9] * VOCAB, "[i32]"),
    ("tokenizer.ggml.token_type", [3] * VOCAB, "[i32]"),
    ("tokenizer.ggml.token_type", [float("nan")] * VOCAB, "[f32]"),
    ("tokenizer.ggml.bos_token_id", 2**32 - 1, "u32"),
    ("tokenizer.ggml.bos_token_id", -1, "i64"),
    ("tokenizer.ggml.eos_token_id", "</s>", None),
    ("tokenizer.ggml.add_bos_token", 1, "u32"),
    ("tokenizer.ggml.eot_token_id", VOCAB, "u32"),
    ("tokenizer.chat_template", "{% for i in range(10**12) %}x{% endfor %}", None),
    ("tokenizer.chat_template", "{{ messages.__class__.__mro__ }}", None),
    ("tokenizer.chat_template", "{% if", None),
    ("tokenizer.chat_template", "", None),
]


@pytest.fixture(scope="module")
def weights() -> dict[str, StoredTensor]:
    stored = {}
    for name, array in gguf_weights(TINY).items():
        kind = Q4_1 if array.ndim == 2 else F32
        stored[name] = StoredTensor(name, kind, array.shape, quantize_tensor(kind, array).reshape(-1))
    return stored


def write(path: Path, values: Mapping[str, tuple[Any, str | None]], weights: Mapping[str, StoredTensor]) -> Path:
    writer = GgufWriter(path)
    for key, (value, kind) in values.items():
        writer.add(key, value, kind)
    for name, tensor in weights.items():
        writer.add_tensor(name, tensor)
    writer.write()
    return path


def answers(path: Path) -> str:
    """Complete and chat; the reason if that is refused."""
    try:
        with LLM(path, backend="reference", threads=1) as llm:
            llm.generate("hi ab", SamplingParams(max_tokens=2, temperature=0.0))
            llm.chat([{"role": "user", "content": "x"}], SamplingParams(max_tokens=2))
    except SporeError as reason:
        return str(reason)
    return ""


def test_the_usual_file_answers(tmp_path: Path, weights: dict[str, StoredTensor]) -> None:
    assert answers(write(tmp_path / "m.gguf", USUAL, weights)) == ""


@pytest.mark.parametrize(
    ("key", "value", "kind"), HOSTILE, ids=[f"{key}={str(value)[:24]!r}" for key, value, _ in HOSTILE]
)
def test_a_hostile_value_is_taken_or_refused_in_one_line(
    tmp_path: Path, weights: dict[str, StoredTensor], key: str, value: Any, kind: str | None
) -> None:
    reason = answers(write(tmp_path / "m.gguf", USUAL | {key: (value, kind)}, weights))
    assert reason.isprintable(), "one line without control characters"
    assert len(reason) < 600


@pytest.mark.parametrize("key", USUAL)
def test_a_missing_value_is_taken_or_refused_in_one_line(
    tmp_path: Path, weights: dict[str, StoredTensor], key: str
) -> None:
    reason = answers(write(tmp_path / "m.gguf", {name: USUAL[name] for name in USUAL if name != key}, weights))
    assert reason.isprintable()


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "blk.0.attn_norm.weight", "blk.1.attn_k.weight", "output.weight"]
)
def test_a_misshapen_tensor_is_refused(tmp_path: Path, weights: dict[str, StoredTensor], name: str) -> None:
    for shape in ((1,), (1, 1, 1), (96, 64)):
        array = np.zeros(shape, np.float32)
        other = StoredTensor(name, F32, shape, quantize_tensor(F32, array).reshape(-1))
        reason = answers(write(tmp_path / "m.gguf", USUAL, weights | {name: other}))
        assert reason
        assert reason.isprintable()
