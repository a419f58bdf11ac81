"""LoRA adapters: folders that PEFT writes, and GGUF files of llama.cpp."""

from pathlib import Path

from sporelm.checkpoints.lora.adapter import Adapter, LowRank, TargetModel
from sporelm.checkpoints.lora.gguf_adapter import read_gguf
from sporelm.checkpoints.lora.peft import CONFIG, WEIGHTS, read_peft
from sporelm.checkpoints.lora.target_model import make_target_model
from sporelm.errors import ModelFileError, ModelNotFound

__all__ = ["Adapter", "LowRank", "TargetModel", "make_target_model", "read_adapter"]


def read_adapter(path: str | Path, base: TargetModel, scale: float = 1.0) -> Adapter:
    """Return the adapter in a PEFT folder (or one of its files) or in a .gguf file, for a model.

    scale   multiplier of the adapter

    Raises ModelNotFound, ModelFileError for files that are damaged or do not fit the model, UnsupportedModel for an
    unsupported kind of adapter, MemoryShortage.
    """
    place = Path(path)
    if place.name in (CONFIG, WEIGHTS):
        place = place.parent
    if place.is_dir():
        return read_peft(place, base, scale)
    if not place.exists():
        raise ModelNotFound(f"{place} does not exist. Give a folder with {CONFIG}, or a .gguf file")
    if place.suffix != ".gguf":
        raise ModelFileError(f"{place} is not an adapter. Give a folder with {CONFIG}, or a .gguf file")
    return read_gguf(place, base, scale)
