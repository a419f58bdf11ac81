"""A vocabulary of made-up words for made-up models: byte-level BPE, which every reader of GGUF files accepts."""

from collections.abc import Iterator
from itertools import islice, product
from string import ascii_lowercase
from typing import TYPE_CHECKING

from sporelm.text.token_bytes import byte_alphabet
from sporelm.text.token_types import CONTROL, NORMAL

if TYPE_CHECKING:
    from sporelm.weights.gguf import GgufWriter

BOS, EOS = 0, 1


def words() -> Iterator[tuple[str, str]]:
    """The two tokens that each made-up word is merged from: all words of two letters, then of three, then of four."""
    pairs = ["".join(letters) for letters in product(ascii_lowercase, repeat=2)]
    yield from product(ascii_lowercase, repeat=2)
    yield from product(pairs, ascii_lowercase)
    yield from product(pairs, pairs)


def add_vocabulary(writer: "GgufWriter", size: int) -> None:
    """Add the metadata of a tokenizer of `size` tokens: begin, end, the 256 bytes, and as many words as are left."""
    merges = list(islice(words(), size - 2 - 256))
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
