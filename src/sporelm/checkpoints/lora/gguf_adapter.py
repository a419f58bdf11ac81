"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

Metadata: general.type "adapter", adapter.type "lora", adapter.lora.alpha, general.architecture. Tensors: NAME.lora_a
[rank, in] and NAME.lora_b [out, rank] of any number format, NAME that of the weight in a GGUF model. The scale is
alpha / rank, or 1 where alpha is 0. The rows of B lie as those of the weight: of Llama's queries and keys, permuted.
"""

from collections.abc import Mapping
from pathlib import Path

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.lora.adapter import Adapter, Base, Pair, assemble, match_pairs, no_such_weight
from sporelm.checkpoints.lora.stored_matrix import StoredMatrix
from sporelm.checkpoints.tensor_names import GGUF
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufFile, open_gguf

MAX_ALPHA = 1e6
SIDES = {".lora_a": "a", ".lora_b": "b"}


def read_gguf(path: Path, base: Base, scale: float) -> Adapter:
    """Return the adapter in a GGUF file. Raises as `read_adapter`."""
    with open_gguf(path) as file:
        fields = ConfigValues(file.metadata, str(path))
        _check(fields, base)
        alpha = fields.number("adapter.lora.alpha", 0.0, MAX_ALPHA)

        def scale_of(name: str, rank: int) -> float:
            return scale * (alpha / rank if alpha else 1.0)

        known = base.stored_matrices(GGUF)
        return assemble(path, known, _pairs(path, file, base, known), scale_of)


def _check(fields: ConfigValues, base: Base) -> None:
    """Raise ModelFileError unless the file says that it is an adapter, UnsupportedModel for an unsupported type
    or for another architecture than the model's."""
    kind = fields.text("general.type", "model")
    if kind != "adapter":
        raise ModelFileError(f"{fields.where} is no adapter: its general.type is {kind!r}")
    how = fields.text("adapter.type")
    if how != "lora":
        raise UnsupportedModel(f"{fields.where} is an adapter of type {how!r}: only lora is supported")
    if any(key.startswith("adapter.alora.") for key in fields.values):
        raise UnsupportedModel(f"{fields.where} begins to act at certain tokens (aLoRA), which is not supported")
    architecture = fields.text("general.architecture")
    if architecture not in base.architecture_names:
        known = ", ".join(sorted(base.architecture_names))
        raise UnsupportedModel(f"{fields.where} is for the architecture {architecture!r}; the model's is {known}")


def _pairs(path: Path, file: GgufFile, base: Base, known: Mapping[str, StoredMatrix]) -> dict[str, Pair]:
    halves = []
    for name in file.names:
        side = next((side for side in SIDES if name.endswith(side)), None)
        stem = name.removesuffix(side or "").removesuffix(".weight")
        if side is None or stem not in known:
            raise no_such_weight(path, name, known, base.find_conflict(stem, GGUF) if side else "")
        halves.append((stem, SIDES[side], file.tensor(name)))
    return match_pairs(path, halves)
