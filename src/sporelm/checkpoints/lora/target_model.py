"""The model that an adapter is for."""

from collections.abc import Sequence

from sporelm.checkpoints.lora.adapter import TargetModel
from sporelm.checkpoints.schema_registry import find_names, is_gguf_name, schemas_for
from sporelm.checkpoints.tensor_names import GGUF, HF
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param


def make_target_model(params: Sequence[Param], config: ModelConfig) -> TargetModel:
    """Return the parameters of a model and their names in files of both kinds."""
    gguf, hf = schemas_for(config)
    return TargetModel(params, config, gguf, hf, find_names(gguf), GGUF if is_gguf_name(config.architecture) else HF)
