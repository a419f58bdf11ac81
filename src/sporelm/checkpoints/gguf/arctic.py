"""GGUF files of Snowflake Arctic."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.arctic import Arctic
from sporelm.models.config import ModelConfig


@register
class ArcticGguf(GgufSchema):
    """`arctic`. Queries and keys are permuted."""

    names = ("arctic",)
    architecture = Arctic
    keys = gguf_keys(*gguf_expert_keys("count", "used"), without=("window",))
    constants = {"experts.renormalize": True}
    tensors = {
        **DECODER_TENSORS,
        **PERMUTED_QK_TENSORS,
        **expert_tensors(),
        "layers.{}.ffn_norm_exps.weight": "blk.{}.ffn_norm_exps.weight",
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        check_used_experts(config, gguf.where)
        return config


def check_used_experts(config: ModelConfig, where: str) -> None:
    """Raise UnsupportedModel if a token uses a single expert."""
    if config.experts is not None and config.experts.used == 1:
        raise UnsupportedModel(f"{where}: 1 expert per token is not supported; at least 2 are")
