"""DeciLM, and Llama-Nemotron that a search made smaller: Llama whose layers differ, or lack a part."""

from typing import Any

from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, Names, changed
from sporelm.models.blocks import Attention, GatedMLP, IdentityNorm, Layer, Linear, MLPOnlyMixer, RMSNorm, RowBlock
from sporelm.models.blocks.layer import Mixer
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.deci_words import reworded, words
from sporelm.models.families.layer_shapes import LayerShapes, one_each, said, shaped
from sporelm.models.registry import architecture

NAMES = changed(
    COMMON,
    Names("layers.{}.attn_linear.weight", "blk.{}.attn_output.weight", "model.layers.{}.self_attn.linear_attn.weight"),
)


class Left(Layer):
    """A layer of which nothing is left: rows stay as they are."""

    def __init__(self) -> None:
        super().__init__(None, MLPOnlyMixer(IdentityNorm()))

    def __call__(self, x: Any, *args: Any) -> Any:  # x [tokens, width]
        return x


@architecture(
    Family(
        "deci",
        (HfClass("DeciLMForCausalLM", "nemotron-nas", {"rms_norm_eps": 1e-5}),),
        fields(without=("window",)),
        NAMES,
        only={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        finish=lambda config, values, kind: shaped(config, values),
        said=lambda config: said(config, "deci"),
        words=words,
        reworded=reworded,
        regrouped=one_each,
        paired_rows=True,
        own=LayerShapes,
    )
)
class Deci(Decoder):
    """The Llama layer; attention may be one matrix, or not there, as the feed-forward block (Bercovich et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own = f"layers.{index}", config.own.of_layer(config, index)
        norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        mlp: RowBlock = GatedMLP(name, own)
        if not own.heads:
            return Layer(norms[1], MLPOnlyMixer(mlp)) if own.ffn else Left()
        linear = Linear(f"{name}.attn_linear", config.width, config.width)
        mixer: Mixer = Attention(name, own) if own.kv_heads else MLPOnlyMixer(linear)
        return Layer(norms[0], mixer, norms[1], mlp) if own.ffn else Layer(norms[0], mixer)
