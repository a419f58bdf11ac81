"""The model that adapters are read for."""

from collections.abc import Sequence

from sporelm.checkpoints.lora.adapter import Base
from sporelm.checkpoints.schema_registry import is_gguf_name, names_of, schemas_for
from sporelm.checkpoints.tensor_names import GGUF, HF
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param


def lora_base(params: Sequence[Param], config: ModelConfig) -> Base:
    """Return a model as adapters see it: its parameters, and how files of both kinds store them."""
    gguf, hf = schemas_for(config)
    return Base(params, config, gguf, hf, names_of(gguf), GGUF if is_gguf_name(config.architecture) else HF)
