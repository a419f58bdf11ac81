"""A tiny model with a vocabulary of bytes, and the text on which llama.cpp's llama-imatrix was run with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sporelm.tools.lazy_model import MetadataEntry, open_lazy_model
from sporelm.tools.output_file import OutputFile, save_models
from tiny_files import write_gguf
from tiny_models import LLAMA, Tiny

CONTEXT, VOCAB = 64, 300
MODEL = Tiny("imatrix", LLAMA | {"hidden_size": 96, "intermediate_size": 160, "vocab_size": VOCAB}, 23)
TEXT = "The quick brown fox jumps over the lazy dog, again and again; größer wird er davon nicht. " * 3
DATASET = "text.txt"


def vocabulary() -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: three control tokens, all bytes, and pieces that no text here has."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"§{number}" for number in range(VOCAB - len(tokens))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(number) for number in range(VOCAB)],
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *([1] * (VOCAB - 259))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }


def write(path: Path, **options: Any) -> Path:
    """The model as a file that llama.cpp takes too, which wants the epsilon as an f32."""
    model = open_lazy_model(write_gguf(path, MODEL, more=vocabulary(), **options))
    key = "llama.attention.layer_norm_rms_epsilon"
    entry = MetadataEntry("f32", model.metadata[key].value)
    save_models([OutputFile(path, replace(model, metadata={**model.metadata, key: entry}))], force=True)
    return path
