"""Baichuan 1 and 2: Llama with query, key and value in one tensor; the 13B has linear biases and rotates nothing."""

from dataclasses import dataclass, replace

from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import qkv_names
from sporelm.checkpoints.rope_fields import MOST_CONTEXT
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind, Names, Stored, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

ROTATED, BIASED = 32, 40  # layers of the 7B and of the 13B, by which GGUF files tell them apart
SECOND_VOCAB = 125696  # tokens of Baichuan 2
OCTAVES = 8.0


@dataclass(frozen=True)
class BaichuanParts:
    """What some of its models have."""

    unit_head: bool = (
        False  # the rows that score tokens are brought to length one (Baichuan 2); GGUF files hold them so
    )


NAMES = changed(
    COMMON,
    Names("output.weight", "output.weight", Stored("lm_head.weight", unit=lambda config: config.own.unit_head)),
    *qkv_names("model.layers.{}.self_attn.W_pack", gguf="", kinds=("weight",)),
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Only folders of the 7B name their positions so; the others have a length, and Baichuan 2 a loss of its own."""
    if kind != HF:
        if config.layers not in (ROTATED, BIASED):
            what = f"{config.layers} layers: {ROTATED} rotate, {BIASED} have linear biases, others cannot be told"
            raise UnsupportedModel(f"{values.where}: {what}")
        return replace(config, alibi=OCTAVES if config.layers == BIASED else 0.0)
    second = config.vocab == SECOND_VOCAB or values.has("z_loss_weight")
    config = replace(config, own=BaichuanParts(unit_head=second))
    if config.layers != BIASED and values.has("max_position_embeddings"):
        return config
    length = values.integer("model_max_length", 1, MOST_CONTEXT, config.context_length)
    return replace(config, alibi=OCTAVES, context_length=length)


def _unsaid(config: ModelConfig) -> str:
    wanted = BIASED if config.alibi else ROTATED
    how = "linear biases" if config.alibi else "rotary positions"
    return "" if config.layers == wanted else f"it has {config.layers} layers and {how}"


@architecture(
    Family(
        "baichuan",
        tuple(HfClass(name, "baichuan") for name in ("BaichuanForCausalLM", "BaiChuanForCausalLM")),
        fields(without=("window",)),
        NAMES,
        finish=_finished,
        unsaid=_unsaid,
        paired_rows=True,
        own=BaichuanParts,
    )
)
class Baichuan(Decoder):
    """The Llama layer (Yang et al. 2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, rotates=not config.alibi))
