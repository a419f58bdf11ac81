"""The usual layer of a decoder, with the usual names of its parts."""

from typing import Protocol

from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.layer import Layer, Mixer, ParallelLayer, RowBlock
from sporelm.models.blocks.mixture import feed_forward
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig


class NormKind(Protocol):
    """A constructor of norms of one kind."""

    def __call__(self, name: str, width: int, eps: float) -> RowBlock: ...


def pre_norm(
    config: ModelConfig,
    index: int,
    attention: Mixer | None = None,
    mlp: RowBlock | None = None,
    *,
    norm: NormKind = RMSNorm,
    behind: bool = False,
    shared: bool = False,
) -> Layer:
    """Return the layer of this number: attention and a feed-forward block with norms before them, in parallel if the
    configuration says so.

    attention, mlp   None: those of Llama
    norm             the kind of norms
    behind           the outputs of both blocks are normed, too
    shared           a parallel layer has one norm for both
    """
    name = f"layers.{index}"

    def make_norm(part: str) -> RowBlock:
        return norm(f"{name}.{part}_norm", config.width, config.eps)

    return (ParallelLayer if config.parallel else Layer)(
        make_norm("attn"),
        attention or Attention(name, config, config.window_of(index), rotates=index not in config.nope_layers),
        None if config.parallel and shared else make_norm("ffn"),
        mlp or feed_forward(name, config, index),
        after_attention=make_norm("attn_post") if behind else None,
        after_mlp=make_norm("ffn_post") if behind else None,
        scale=config.scales.residual,
    )
