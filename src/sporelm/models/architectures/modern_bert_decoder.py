"""ModernBERT's decoders, Ettin: the encoder's layer with causal attention, and the head of its masked training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import GatedMLP, Layer, Linear, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True, kw_only=True)
class ModernBertDecoderConfig(ModelConfig):
    """has_decoder_bias: the logits have a bias, whether the output is tied or not."""

    has_decoder_bias: bool = True


@architecture("modern_bert_decoder", ModernBertDecoderConfig)
class ModernBertDecoder(Decoder[ModernBertDecoderConfig]):
    """GPT-2's layer with GeGLU, rotary positions and no biases; the first has no norm before
    attention (Weller et al. 2025)."""

    norms = staticmethod(layer_norm_without_bias)

    def __init__(self, config: ModernBertDecoderConfig) -> None:
        super().__init__(config)
        width = config.width
        self.embedding_norm = layer_norm_without_bias("embedding_norm", width, config.eps)
        self.dense = Linear("output_dense", width, width)
        self.dense_norm = layer_norm_without_bias("output_dense_norm", width, config.eps)
        output = "embedding" if config.tie_embeddings else "output"
        self.output = Linear(output, config.vocab, width, bias=config.has_decoder_bias)

    def layer(self, config: ModernBertDecoderConfig, index: int) -> Layer:
        layer = pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu"), norm=self.norms)
        layer.attention_norm = layer.attention_norm if index else None
        return layer

    def params(self) -> list[Param]:
        parts = (self.embedding_norm, self.dense, self.dense_norm)
        bias = [Param("embedding.bias", (self.config.vocab,))]
        tied = bias if self.config.has_decoder_bias and self.config.tie_embeddings else []
        return [*super().params(), *(param for part in parts for param in part.params()), *tied]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.embedding_norm(super().embedded(step, weights), weights)

    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        x = ops.activate(self.dense(self.hidden(step, weights, caches), weights), kind="gelu")
        logits = self.output(self.dense_norm(x, weights), weights)
        return {"logits": logits, "tokens": ops.argmax(logits)}
