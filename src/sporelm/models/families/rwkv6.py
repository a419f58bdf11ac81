"""RWKV-6 "Finch": linear attention that fades as each token says, and a gated feed-forward block."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import GGUF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import FinchNumbers, GatedChannelMix, LayerNorm, RwkvLayer, TimeMix6
from sporelm.models.blocks.token_shift import shift_table
from sporelm.models.config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.rwkv6_names import APART, NAMES
from sporelm.models.families.rwkv_words import HEADS_EPS, POSITIONS, regrouped, said, whole_heads
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.registry import architecture

CLASS, DIVISOR, MOST_DIVISOR = "Rwkv6ForCausalLM", "head_size_divisor", 1 << 10
NUMBERS = {"layer_norm_epsilon": 1e-5, "head_size": 64, DIVISOR: 8}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """config.json with the number of heads, the width of the feed-forward block, and no end of positions."""
    width, dim, ffn = (values.get(key) for key in ("hidden_size", "head_size", "intermediate_size"))
    if ffn is None and type(width) is int:
        ffn = width * 7 // 64 * 32  # 3.5 widths, in whole 32s
    heads = width // dim if type(width) is int and type(dim) is int and dim > 0 else None
    found = {"num_attention_heads": heads, "intermediate_size": ffn, "max_position_embeddings": POSITIONS}
    return {**values, **found}


def _ranks(width: int) -> tuple[int, int]:
    """Of mixes and of decays, as the class has them; config.json does not say them."""
    return (64, 128) if width == 4096 else (32, 64)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    whole_heads(config, values, "attention_hidden_size")
    own: FinchNumbers = config.own
    if kind == GGUF:
        return replace(config, own=replace(own, eps=own.eps or HEADS_EPS))
    # `rescale_every` keeps half-precision numbers small and changes nothing else: rows are not halved here.
    eps = 1e-5 * values.integer(DIVISOR, 1, MOST_DIVISOR) ** 2
    mix, decay = _ranks(config.width)
    return replace(config, own=replace(own, eps=eps, mix=mix, decay=decay))


def _choose(config: ModelConfig) -> str:
    """The class. Raises UnsupportedModel for what its folders cannot say."""
    own: FinchNumbers = config.own
    what = f"its rows are halved every {own.halved} layers" if own.halved else ""
    if (own.mix, own.decay) != _ranks(config.width):
        what = f"its ranks are {own.mix} and {own.decay}"
    if what:
        raise UnsupportedModel(
            f"{config.name}: {what}, which a folder of {CLASS} cannot say; run the GGUF file as it is"
        )
    return CLASS


@architecture(
    Family(
        "rwkv6",
        (HfClass(CLASS, "rwkv6", NUMBERS),),
        fields(
            Field("head_dim", "wkv.head_size", "u32", "head_size"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            Field("own.mix", "time_mix_extra_dim", "u32", "", 1, MOST_WIDTH),
            Field("own.decay", "time_decay_extra_dim", "u32", "", 1, MOST_WIDTH),
            Field("own.halved", "rescale_every_n_layers", "u32", "", 0, MOST_LAYERS, 0),
            Field("own.eps", "attention.group_norm_epsilon", "f32", "", 0.0, 1.0, OPTIONAL),
            without=("kv_heads", "rotary", "window"),
        ),
        NAMES,
        others={GGUF: APART},
        fixed={"rotary": 0},
        only={},
        finish=_finished,
        said=said("rwkv6"),
        choose=_choose,
        reworded=_reworded,
        regrouped=regrouped,
        words=lambda config: {DIVISOR: round((config.own.eps / 1e-5) ** 0.5), "rescale_every": 0},
        own=FinchNumbers,
    )
)
class Rwkv6(Decoder):
    """x + time(norm(x)), then x + channel(norm(x)), of embeddings that are normed (Peng et al. 2024)."""

    norms = LayerNorm
    layers: Sequence[RwkvLayer]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding_norm = LayerNorm("embedding_norm", config.width, config.eps)

    def layer(self, config: ModelConfig, index: int) -> RwkvLayer:
        name, every = f"layers.{index}", config.own.halved
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        scale = 0.5 if every and (index + 1) % every == 0 else 1.0
        return RwkvLayer(norms[0], TimeMix6(name, config), norms[1], GatedChannelMix(name, config), scale=scale)

    def params(self) -> list[Param]:
        return [*super().params(), *self.embedding_norm.params()]

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | shift_table(self.config.width)

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.embedding_norm(super().embedded(step, weights), weights)
