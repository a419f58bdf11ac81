"""How a byte-level BPE vocabulary wants its text cut before merging: the names of `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json files; the names and defaults are
llama.cpp's (llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sporelm.errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer as Cutter

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text.

    patterns         applied one after the other, each to the pieces that the ones before left; matches stay whole
    ignore_merges    a piece that is a token already is taken as it is
    adds_bos         whether BOS is added when the file does not say
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False

    def build(self) -> Cutter:
        """The cutter as `tokenizers` has it; its last part writes bytes as printable characters."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

        parts: list[Cutter] = []
        for pattern in self.patterns:
            if pattern == GPT2:  # built into ByteLevel, and quicker there
                continue
            parts.append(Digits(individual_digits=True) if pattern == r"\p{N}" else Split(Regex(pattern), "isolated"))
        return Sequence([*parts, ByteLevel(add_prefix_space=False, use_regex=GPT2 in self.patterns)])


_gpt2 = PreTokenizer((GPT2,))
_digits_gpt2 = PreTokenizer((r"\p{N}", GPT2))
_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_llama3_merging = PreTokenizer((_LLAMA3,))
_qwen2 = PreTokenizer((_QWEN2,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "smollm": _digits_gpt2,
    "starcoder": _digits_gpt2,
    "refact": _digits_gpt2,
    "command-r": _digits_gpt2,
    "codeshell": _digits_gpt2,
    "exaone": _digits_gpt2,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "falcon3": _llama3,
    "dbrx": _llama3_merging,
    "smaug-bpe": _llama3_merging,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "megrez": _qwen2,
    "stablelm2": _qwen2,
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
}


def pre_tokenizer(name: str | None, label: str) -> PreTokenizer:
    """The entry for `name`, the value of tokenizer.ggml.pre. Raises UnsupportedModel with the names known."""
    known = ", ".join(sorted(PRE_TOKENIZERS))
    if name is None:
        raise UnsupportedModel(
            f"{label} does not say how text is cut before merging; set tokenizer.ggml.pre to one of: {known}"
        )
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(f"{label}: tokenizer.ggml.pre {name[:60]!r} is not supported; known are: {known}")
    return PRE_TOKENIZERS[name]
