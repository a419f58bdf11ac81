"""Qwen3: Llama with a norm on each head of queries and keys, and heads that need not fill the width."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, Names, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.qwen2 import windowed
from sporelm.models.registry import architecture
from sporelm.models.text_facts import rows_in

HEAD = Names("classifier.weight", "cls.output.weight", "score.weight")


def _noticed(config: ModelConfig, metadata: Any, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Files of rerankers have the output's rows of "yes" and "no" (llama.cpp's converter)."""
    labels = rows_in(shapes, "cls.output.weight")
    if labels not in (0, 2):
        raise UnsupportedModel(f"{config.name}: a head of {labels} rows is not supported; one of 'yes' and 'no' is")
    return replace(config, labels=labels)


@architecture(
    Family(
        "qwen3",
        (
            HfClass(
                "Qwen3ForCausalLM",
                "qwen3",
                {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(*ATTENTION_BIAS),
        changed(COMMON, *HEAD_NORMS, HEAD),
        finish=windowed,
        noticed=_noticed,
        prefix="model.",
        windowless=True,
    )
)
class Qwen3(Decoder):
    """The Llama layer; queries and keys are normed head by head before they are rotated (Yang et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention)
