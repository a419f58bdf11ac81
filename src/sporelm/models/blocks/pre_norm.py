"""The usual layer of a decoder, its parts named as in every family."""

from collections.abc import Callable

from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.layer import Layer, Mixer, ParallelLayer, Part
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.weights.config import ModelConfig


def pre_norm(
    config: ModelConfig,
    index: int,
    attention: Mixer | None = None,
    mlp: Part | None = None,
    *,
    norm: Callable[[str, int, float], Part] = RMSNorm,
    behind: bool = False,
    shared: bool = False,
) -> Layer:
    """The layer of this number: a norm in front of attention, one in front of the feed-forward block.

    attention, mlp   Llama's, where none are given
    norm             its kind, by name, width and epsilon
    behind           what they add is normed too
    shared           a parallel layer has one norm for both
    """
    name = f"layers.{index}"

    def made(part: str) -> Part:
        return norm(f"{name}.{part}_norm", config.width, config.eps)

    return (ParallelLayer if config.parallel else Layer)(
        made("attn"),
        attention or Attention(name, config, config.window_of(index)),
        None if config.parallel and shared else made("ffn"),
        mlp or GatedMLP(name, config),
        after_attention=made("attn_post") if behind else None,
        after_mlp=made("ffn_post") if behind else None,
        scale=config.scales.residual,
    )
