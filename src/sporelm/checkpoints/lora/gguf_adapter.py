"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

Metadata: general.type "adapter", adapter.type "lora", adapter.lora.alpha, general.architecture. Tensors: NAME.lora_a
[rank, in] and NAME.lora_b [out, rank] of any number format, NAME that of the weight in a GGUF model. The scale is
alpha / rank, or 1 where alpha is 0. The rows of B have the order of the weight: permuted for Llama's queries and keys.
"""

from collections.abc import Mapping
from pathlib import Path

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.lora.adapter import Adapter, Pair, TargetModel, assemble, match_pairs, unknown_weight_error
from sporelm.checkpoints.lora.stored_matrix import StoredMatrix
from sporelm.checkpoints.tensor_names import GGUF
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufFile, open_gguf

MAX_ALPHA = 1e6
SIDES = {".lora_a": "a", ".lora_b": "b"}


def read_gguf(path: Path, base: TargetModel, scale: float) -> Adapter:
    """Return the adapter in a GGUF file. Raises as `read_adapter`."""
    with open_gguf(path) as file:
        fields = ConfigValues(file.metadata, str(path))
        _check_metadata(fields, base)
        alpha = fields.number("adapter.lora.alpha", 0.0, MAX_ALPHA)

        def scale_of(name: str, rank: int) -> float:
            return scale * (alpha / rank if alpha else 1.0)

        known = base.stored_matrices(GGUF)
        return assemble(path, known, _read_pairs(path, file, base, known), scale_of)


def _check_metadata(fields: ConfigValues, base: TargetModel) -> None:
    """Raise ModelFileError for a file that is not an adapter, UnsupportedModel for an unsupported type or for another
    architecture than the model's."""
    kind = fields.text("general.type", "model")
    if kind != "adapter":
        raise ModelFileError(f"{fields.where} is not an adapter: general.type is {kind!r}")
    adapter_type = fields.text("adapter.type")
    if adapter_type != "lora":
        raise UnsupportedModel(f"{fields.where}: adapter.type {adapter_type!r} is not supported; lora is")
    if any(key.startswith("adapter.alora.") for key in fields.values):
        raise UnsupportedModel(f"{fields.where} is an activated LoRA (aLoRA), which is not supported")
    architecture = fields.text("general.architecture")
    if architecture not in base.architecture_names:
        known = ", ".join(sorted(base.architecture_names))
        raise UnsupportedModel(f"{fields.where} is for architecture {architecture!r}; the model has {known}")


def _read_pairs(path: Path, file: GgufFile, base: TargetModel, known: Mapping[str, StoredMatrix]) -> dict[str, Pair]:
    halves = []
    for name in file.names:
        side = next((side for side in SIDES if name.endswith(side)), None)
        stem = name.removesuffix(side or "").removesuffix(".weight")
        if side is None or stem not in known:
            raise unknown_weight_error(path, name, known, base.find_conflict(stem, GGUF) if side else "")
        halves.append((stem, SIDES[side], file.tensor(name)))
    return match_pairs(path, halves)
