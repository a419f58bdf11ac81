"""A summary of a model file or folder, supported or not, read from headers alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from sporelm.files.json_object import read_object
from sporelm.tools.file_types import FILE_TYPES
from sporelm.tools.model_files import ModelFiles, open_model_files

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")


@dataclass(frozen=True)
class ModelSummary:
    """A model in a few facts; None where the files do not say.

    bytes            of all its files that hold tensors
    parameters       numbers in all tensors
    quantization     the mix that the file names (Q4_K_M), else the number format of most values in matrices
    context_length   positions of its training
    vocabulary       tokens it can tell apart
    """

    architecture: str | None
    parameters: int
    bytes: int
    quantization: str
    bits_per_weight: float
    context_length: int | None
    vocabulary: int | None
    chat_template: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize_model(path: Path) -> ModelSummary:
    """Describe a .gguf file, all files of a split one, a .safetensors file or a Hugging Face folder.

    Raises ModelNotFound, ModelFileError, UnsupportedModel for what cannot be read.
    """
    with open_model_files(path) as source:
        parameters = sum(entry.size for entry in source.tensors.values())
        data = sum(entry.nbytes for entry in source.tensors.values())
        facts = _summarize_gguf(source) if source.kind == "gguf" else _summarize_folder(path, source)
        return ModelSummary(
            parameters=parameters,
            bytes=source.nbytes,
            bits_per_weight=round(8 * data / parameters, 2) if parameters else 0.0,
            **facts,
        )


def _summarize_gguf(source: ModelFiles) -> dict[str, Any]:
    metadata = source.metadata
    architecture = _text_or_none(metadata.get("general.architecture"))
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocabulary = _count_or_none(metadata.get(f"{architecture}.vocab_size"))
    file_type = metadata.get("general.file_type")
    return {
        "architecture": architecture,
        "quantization": (FILE_TYPES.get(file_type) if type(file_type) is int else None) or find_main_format(source),
        "context_length": _count_or_none(metadata.get(f"{architecture}.context_length")),
        "vocabulary": vocabulary if tokens is None or isinstance(tokens, str | int | float) else len(tokens),
        "chat_template": any(key.startswith("tokenizer.chat_template") for key in metadata),
    }


def _summarize_folder(path: Path, source: ModelFiles) -> dict[str, Any]:
    """The same of `config.json` and what lies beside it; of a single file nothing is known."""
    config = _read_json(path / "config.json") if path.is_dir() else {}
    inner = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), config)
    quantized = config.get("quantization_config")
    method = _text_or_none(quantized.get("quant_method")) if isinstance(quantized, dict) else None
    stored = find_main_format(source)
    template = path.is_dir() and (
        (path / "chat_template.jinja").is_file()
        or bool(_read_json(path / "tokenizer_config.json").get("chat_template"))
    )
    return {
        "architecture": _text_or_none(config.get("model_type")),
        "quantization": f"{method} ({stored})" if method else stored,
        "context_length": next((n for key in CONTEXT_KEYS if (n := _count_or_none(inner.get(key))) is not None), None),
        "vocabulary": _count_or_none(inner.get("vocab_size")),
        "chat_template": template,
    }


def find_main_format(source: ModelFiles) -> str:
    """The number format of most values in matrices, or of all where there is no matrix."""
    entries = source.tensors.values()
    counts: dict[str, int] = {}
    for entry in [entry for entry in entries if len(entry.shape) > 1] or entries:
        counts[entry.type_name] = counts.get(entry.type_name, 0) + prod(entry.shape)
    return max(counts, key=lambda name: counts[name], default="no tensors")


def _read_json(path: Path) -> Mapping[str, Any]:
    return read_object(path) if path.is_file() else {}


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count_or_none(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 40 else None
