"""ModernBERT's decoders, Ettin: the encoder's layer that sees what came before, and the head that fills its gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sporelm import ops
from sporelm.checkpoints.config_files import full_layers_of, window_of
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import HF, Kind, Names, changed
from sporelm.models.blocks import GatedMLP, Layer, Linear, layer_norm_without_bias, pre_norm
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.modern_bert import STEP, bases, reworded
from sporelm.models.families.modern_bert_names import layer_names
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.registry import architecture

BIASED = ("embedding", "output")  # what scores tokens
NAMES = changed(
    layer_names("model."),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            f"blk.{{}}.attn_{part}.weight",
            f"model.layers.{{}}.attn.{part}_proj.weight",
        )
        for part in "qkv"
    ),
    Names("output.weight", "output.weight", "decoder.weight"),
    *(Names(f"{name}.bias", "output.bias", "decoder.bias") for name in BIASED),
    Names("output_dense.weight", "cls.weight", "lm_head.dense.weight"),
    Names("output_dense_norm.weight", "cls.norm.weight", "lm_head.norm.weight"),
)


@dataclass(frozen=True)
class Head:
    """What only this family has."""

    biased: bool = True  # the scores of tokens, each by a number of its own


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    step = values.integer("global_attn_every_n_layers", 1, MOST_LAYERS, STEP)
    full = frozenset(range(0, config.layers, step))
    full = full_layers_of(values, config.layers) if values.has("layer_types") else full
    window = window_of(values, "local_attention", 128)  # it reaches to both sides in the encoder
    return replace(config, window=window and window // 2, full_layers=full)


def _words(config: ModelConfig) -> dict[str, Any]:
    return {"local_attention": 2 * (config.window or 0), "decoder_bias": config.own.biased} | bases(config)


@architecture(
    Family(
        "modern-bert-decoder",
        (
            HfClass(
                "ModernBertDecoderForCausalLM",
                "modernbert-decoder",
                {"max_position_embeddings": 8192, "vocab_size": 50368, "norm_eps": 1e-5, "tie_word_embeddings": True},
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "norm_eps"),
            Field("local_theta", "rope.freq_base_swa", "f32", "local_rope_theta", 1.0, MOST_THETA, 10000.0),
            Field("own.biased", "", "bool", "decoder_bias", default=True, weight="output.bias"),
            without=("head_dim", "kv_heads"),
        ),
        NAMES,
        only={
            "hidden_activation": ("gelu",),
            "classifier_activation": ("gelu",),
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), (False,)),
        },
        finish=_finished,
        words=_words,
        reworded=reworded,
        full_layers=lambda layers: frozenset(range(0, layers, STEP)),
        tells_layers=True,
        own=Head,
    )
)
class ModernBertDecoder(Decoder):
    """GPT-2's layer with GeGLU, rotary positions and no biases; the first has no norm in front (Weller et al. 2025)."""

    norms = staticmethod(layer_norm_without_bias)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        width = config.width
        self.embedding_norm = layer_norm_without_bias("embedding_norm", width, config.eps)
        self.dense = Linear("output_dense", width, width)
        self.dense_norm = layer_norm_without_bias("output_dense_norm", width, config.eps)
        self.output = Linear(BIASED[not config.tie_embeddings], config.vocab, width, bias=config.own.biased)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        made = pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu"), norm=self.norms)
        made.attention_norm = made.attention_norm if index else None
        return made

    def params(self) -> list[Param]:
        parts = (self.embedding_norm, self.dense, self.dense_norm)
        bias = [Param("embedding.bias", (self.config.vocab,))]
        tied = bias if self.config.own.biased and self.config.tie_embeddings else []
        return [*super().params(), *(param for part in parts for param in part.params()), *tied]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.embedding_norm(super().embedded(step, weights), weights)

    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        made = ops.activate(self.dense(self.hidden(step, weights, caches), weights), kind="gelu")
        logits = self.output(self.dense_norm(made, weights), weights)
        return {"logits": logits, "tokens": ops.argmax(logits)}
