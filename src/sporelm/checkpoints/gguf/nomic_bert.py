"""GGUF files of Nomic BERT, and of its mixture of experts."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.jina_bert_v2 import HEADLESS_BERT_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import FUSED_QKV_TENSORS, PARTS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.nomic_bert import UNGATED, NomicBert
from sporelm.models.config import MAX_LAYERS, ModelConfig
from sporelm.models.encoder_config import EncoderConfig

EXPERTS_BIAS: Final = "layers.{}.ffn_mixture.bias"
EXPERT_STEP: Final = 2  # every second layer has experts
STEP_KEY: Final = Key("experts.step", "moe_every_n_layers", "u32", 0, MAX_LAYERS, 0)
NOMIC_CONSTANTS: Final = {"experts.plain": "gelu"}


def with_experts_by_step(config: EncoderConfig, where: str) -> EncoderConfig:
    """Return the configuration with the biases of its kind, and without experts if no layer has them."""
    experts = config.experts if config.experts is not None and config.experts.step > 0 else None
    if experts is not None and experts.step != EXPERT_STEP:
        what = f"moe_every_n_layers {experts.step}"
        raise UnsupportedModel(f"{where}: {what} is not supported; {EXPERT_STEP} is")
    has_biases = experts is not None
    return replace(
        config, experts=experts, attention_bias=has_biases, attention_out_bias=has_biases, mlp_bias=has_biases
    )


@register
class NomicBertGguf(EncoderGgufSchema):
    """`nomic-bert` and `nomic-bert-moe`. llama.cpp's converter drops the experts' bias, and llama.cpp has no such
    tensor."""

    names = ("nomic-bert",)
    mixture_name = "nomic-bert-moe"
    architecture = NomicBert
    keys = gguf_keys(
        GGUF_LAYER_NORM_EPS,
        *gguf_expert_keys("count", "used", optional=True),
        Key("experts.added", "", "bool", tensor=EXPERTS_BIAS),
        STEP_KEY,
        without=("head_dim", "kv_heads", "window"),
    )
    constants = NOMIC_CONSTANTS
    tensors = {
        **HEADLESS_BERT_TENSORS,
        **FUSED_QKV_TENSORS,
        **{
            f"layers.{{}}.ffn_{name}{UNGATED}.{part}": f"blk.{{}}.ffn_{name}.{part}"
            for name in ("up", "down")
            for part in PARTS
        },
        **expert_tensors(),
        "layers.{}.ffn_gate_inp.bias": "blk.{}.ffn_gate_inp.bias",
        EXPERTS_BIAS: "blk.{}.ffn_mixture.bias",
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        return with_experts_by_step(super().config_from_metadata(gguf, values), gguf.where)

    def find_unsupported(self, config: ModelConfig) -> str:
        return "" if config.head_dim * config.heads == config.width else "its heads do not add up to the model's width"
