"""OPT and Galactica: GPT-2's layer with ReLU; one model has norms behind its sums and a narrower embedding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sporelm import ops
from sporelm.models.blocks import (
    MLP,
    Attention,
    Embedding,
    Layer,
    LayerNorm,
    Linear,
    Part,
    PostNormLayer,
    Unchanged,
    bare,
)
from sporelm.models.decoder import Decoder
from sporelm.models.families.opt_names import FLAGS, NAMES
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_WIDTH, ModelConfig
from sporelm.weights.family import OPTIONAL, Family, Field, HfClass, activation, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import Kind, Param

EPS = 1e-5  # which its folders do not say
KINDS = {"relu": "relu", "gelu": "gelu"}


@dataclass(frozen=True)
class OptParts:
    """What only this family has."""

    embedded: int | None = None  # numbers of a token's row, if not the model's width
    before: bool = True  # norms stand in front of attention and of the feed-forward block
    unnormed: bool = False  # there is no last norm though they do
    learned: bool = True  # norms have weights and biases


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, eps=EPS, own=replace(config.own, embedded=config.own.embedded or config.width))


@architecture(
    Family(
        "opt",
        (HfClass("OPTForCausalLM", "opt", {"tie_word_embeddings": True}, FLAGS),),
        fields(
            Field("ffn", "feed_forward_length", "u32", "ffn_dim"),
            Field("eps", "attention.layer_norm_epsilon", "f32", ""),
            activation("activation_function", "relu", KINDS),
            Field("own.embedded", "embedding_length_in", "u32", "word_embed_proj_dim", 1, MOST_WIDTH, OPTIONAL),
            Field("own.before", "norm_before", "bool", "do_layer_norm_before", default=True),
            Field("own.unnormed", "skip_final_norm", "bool", "_remove_final_layer_norm", default=False),
            Field(
                "own.learned",
                "",
                "bool",
                "layer_norm_elementwise_affine",
                default=True,
                weight="layers.{}.attn_norm.weight",
            ),
            *(
                Field(part, "", "bool", "enable_bias", default=True)
                for part in ("attention_bias", "attention_out_bias", "mlp_bias")
            ),
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed={"rotary": 0},
        only={},
        finish=_finished,
        prefix="model.",
        own=OptParts,
    )
)
class Opt(Decoder):
    """Rows of tokens and of positions added, then attention and a feed-forward block (Zhang et al. 2022)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        embedded = config.own.embedded
        self.positions = Embedding("positions", config.context_length, config.width)
        self.embedding = Embedding("embedding", config.vocab, embedded)
        self.output = Linear(self.output.name, config.vocab, embedded)
        sizes = {"in": (config.width, embedded), "out": (embedded, config.width)}
        names = sizes if embedded != config.width else ()
        self.turns = {name: Linear(f"embedding_{name}", *sizes[name]) for name in names}

    def _norm(self, name: str, config: ModelConfig) -> Part:
        return (LayerNorm if config.own.learned else bare)(name, config.width, config.eps)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        norms = [self._norm(f"{name}.{part}_norm", config) for part in ("attn", "ffn")]
        mlp = MLP(name, config, KINDS[config.activation])
        return (Layer if config.own.before else PostNormLayer)(norms[0], Attention(name, config), norms[1], mlp)

    def last_norm(self, config: ModelConfig) -> Part:
        normed = config.own.before and not config.own.unnormed
        return self._norm("output_norm", config) if normed else Unchanged()

    def params(self) -> list[Param]:
        turns = [param for turn in self.turns.values() for param in turn.params()]
        return [*super().params(), *self.positions.params(), *turns]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        x = super().embedded(step, weights)
        x = self.turns["in"](x, weights) if self.turns else x
        return ops.add(x, self.positions(step.positions, weights))

    def hidden(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        x = super().hidden(step, weights, caches)
        return self.turns["out"](x, weights) if self.turns else x
