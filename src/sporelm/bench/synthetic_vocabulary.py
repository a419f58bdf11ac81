"""The vocabulary of synthetic models: byte-level BPE with invented words, which every GGUF reader accepts."""

from collections.abc import Iterator
from itertools import islice, product
from string import ascii_lowercase
from typing import TYPE_CHECKING

from sporelm.text.tokenizers.byte_level import byte_alphabet
from sporelm.text.tokenizers.token_types import CONTROL, NORMAL

if TYPE_CHECKING:
    from sporelm.files.gguf import GgufWriter

BOS = 0
EOS = 1


def generate_merges() -> Iterator[tuple[str, str]]:
    """Yield the two tokens of each invented word's merge: all words of two letters, then of three, then of four."""
    pairs = ["".join(letters) for letters in product(ascii_lowercase, repeat=2)]
    yield from product(ascii_lowercase, repeat=2)
    yield from product(pairs, ascii_lowercase)
    yield from product(pairs, pairs)


def add_vocabulary(writer: "GgufWriter", size: int) -> None:
    """Add the metadata of a tokenizer of `size` tokens: begin, end, the 256 bytes, and as many words as are left."""
    merges = list(islice(generate_merges(), size - 2 - 256))
    alphabet = byte_alphabet()
    tokens = ["<|begin|>", "<|end|>", *(alphabet[byte] for byte in range(256)), *map("".join, merges)]
    writer.add("tokenizer.ggml.model", "gpt2")
    writer.add("tokenizer.ggml.pre", "gpt-2")
    writer.add("tokenizer.ggml.tokens", tokens, "[str]")
    writer.add("tokenizer.ggml.token_type", [CONTROL] * 2 + [NORMAL] * (size - 2), "[i32]")
    writer.add("tokenizer.ggml.merges", [" ".join(parts) for parts in merges], "[str]")
    writer.add("tokenizer.ggml.bos_token_id", BOS, "u32")
    writer.add("tokenizer.ggml.eos_token_id", EOS, "u32")
    writer.add("tokenizer.ggml.add_bos_token", False, "bool")
