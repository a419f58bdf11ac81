"""The model that an adapter is for."""

from collections.abc import Sequence

from sporelm.checkpoints.lora.adapter import Base
from sporelm.checkpoints.schema_registry import find_names, is_gguf_name, schemas_for
from sporelm.checkpoints.tensor_names import GGUF, HF
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param


def lora_base(params: Sequence[Param], config: ModelConfig) -> Base:
    """Return the parameters of a model and their names in files of both kinds."""
    gguf, hf = schemas_for(config)
    return Base(params, config, gguf, hf, find_names(gguf), GGUF if is_gguf_name(config.architecture) else HF)
