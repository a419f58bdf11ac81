"""Kolibri 1: norms on both sides, of five layers one sees all positions and knows none; experts chosen by logits."""

from dataclasses import replace

from sporelm.checkpoints.experts import choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, Kind, Names, changed
from sporelm.checkpoints.windows import every, windowed
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_types import lists
from sporelm.models.registry import architecture

STEP, WINDOW = 5, 513
LAYER, WIDTH = "model.layers.{}.", "moe_intermediate_size"
NUMBERS = {"num_key_value_heads": 4, "head_dim": 128, "num_experts": 384, "num_experts_per_tok": 6}
NUMBERS |= {WIDTH: 512, "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144}
FLAGS = (("sliding_window", "window"), ("norm_topk_prob", "experts.renormalize"))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = windowed(config, values, STEP, window=WINDOW) if kind == HF else config
    return replace(config, nope_layers=config.full_layers if config.window else frozenset())


def _unsaid(config: ModelConfig) -> str:
    """A GGUF file has no window then, and its layers would be rotated."""
    return "all of its layers do without positions" if len(config.nope_layers) == config.layers else ""


@architecture(
    Family(
        "kolibri1",
        (HfClass("Kolibri1ForCausalLM", "kolibri1", NUMBERS, FLAGS),),
        fields(
            Field("ffn", "feed_forward_length", "u32", WIDTH),
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn=WIDTH,
                shared_ffn="shared_expert_intermediate_size",
                renormalize="norm_topk_prob",
            ),
        ),
        changed(
            COMMON,
            *HEAD_NORMS,
            *expert_names(),
            *shared_names(),
            choice_bias_name(f"{LAYER}moe.router.expert_bias"),
            Names(
                "layers.{}.attn_post_norm.weight", "blk.{}.post_attention_norm.weight", f"{LAYER}post_attn_norm.weight"
            ),
            Names("layers.{}.ffn_post_norm.weight", "blk.{}.post_ffw_norm.weight", f"{LAYER}post_ffn_norm.weight"),
        ),
        fixed={"experts.scores": "sigmoid_of_chosen", "experts.choice_bias": True},
        finish=_finished,
        unsaid=_unsaid,
        words=lambda config: {"layer_types": lists(config)["layer_types"]},
        full_layers=every(STEP),
        tells_layers=True,
    )
)
class Kolibri1(Decoder):
    """The Llama layer with norms of heads, norms behind, and a mixture (Aleph Alpha 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates, window = index not in config.nope_layers, config.window_of(index)
        return pre_norm(
            config, index, Attention(f"layers.{index}", config, window, norm="heads", rotates=rotates), behind=True
        )
