"""OPT and Galactica: GPT-2's layer with ReLU; one model has norms after its residual sums and a narrower embedding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import (
    MLP,
    Attention,
    Embedding,
    IdentityNorm,
    Layer,
    LayerNorm,
    Linear,
    PostNormLayer,
    RowBlock,
    layer_norm_without_weights,
)
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

ACTIVATIONS: Final = {"relu": "relu", "gelu": "gelu"}


@dataclass(frozen=True, kw_only=True)
class OptConfig(ModelConfig):
    """The fields of OPT.

    embedding_width    width of the embedding of a token
    is_pre_norm        norms precede attention and the feed-forward block; otherwise they follow the sums
    skips_last_norm    a model with pre-norms has no last norm
    has_norm_weights   norms have weights and biases
    """

    embedding_width: int | None = None
    is_pre_norm: bool = True
    skips_last_norm: bool = False
    has_norm_weights: bool = True


@architecture("opt", OptConfig)
class Opt(Decoder[OptConfig]):
    """The sum of token and position embeddings, attention, a feed-forward block (Zhang et al. 2022)."""

    def __init__(self, config: OptConfig) -> None:
        super().__init__(config)
        width = config.embedding_width or config.width
        self.positions = Embedding("positions", config.context_length, config.width)
        self.embedding = Embedding("embedding", config.vocab, width)
        self.output = Linear(self.output.name, config.vocab, width)
        sizes = {"in": (config.width, width), "out": (width, config.width)} if width != config.width else {}
        self.projections = {name: Linear(f"embedding_{name}", *size) for name, size in sizes.items()}

    def layer(self, config: OptConfig, index: int) -> Layer:
        name = f"layers.{index}"
        norms = [self._make_norm(f"{name}.{part}_norm", config) for part in ("attn", "ffn")]
        mlp = MLP(name, config, ACTIVATIONS[config.activation])
        layer = Layer if config.is_pre_norm else PostNormLayer
        return layer(norms[0], Attention(name, config), norms[1], mlp)

    def last_norm(self, config: OptConfig) -> RowBlock:
        has_norm = config.is_pre_norm and not config.skips_last_norm
        return self._make_norm("output_norm", config) if has_norm else IdentityNorm()

    def params(self) -> list[Param]:
        projections = [param for projection in self.projections.values() for param in projection.params()]
        return [*super().params(), *self.positions.params(), *projections]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        x = super().embedded(step, weights)
        x = self.projections["in"](x, weights) if self.projections else x
        return ops.add(x, self.positions(step.positions, weights))

    def hidden(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        x = super().hidden(step, weights, caches)
        return self.projections["out"](x, weights) if self.projections else x

    def _make_norm(self, name: str, config: OptConfig) -> RowBlock:
        return (LayerNorm if config.has_norm_weights else layer_norm_without_weights)(name, config.width, config.eps)
