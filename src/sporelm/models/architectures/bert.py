"""BERT: an encoder with learned positions. RoBERTa, DistilBERT and ERNIE are BERT with other files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Classifier, EncoderLayer, EncoderSelfAttention
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.encoder_inputs import EncoderInputs
from sporelm.models.params import Param

TASK_TYPES: Final = "tasks.weight"
FIRST_TASK_TYPE: Final = "first_task"  # a table [positions, width] of the first task's row
DISTILBERT: Final = "distilbert"  # the model type whose head has ReLU


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """The fields of BERT.

    task_types   rows of ERNIE's table of task types; the first one is added to each token; 0: there is no table
    """

    task_types: int = 0


@architecture("bert", BertConfig)
class Bert(Encoder[BertConfig]):
    """The sum of token, type and position embeddings, post-norms, GELU (Devlin et al. 2019)."""

    def params(self) -> list[Param]:
        rows = self.config.task_types
        return [*super().params(), *([Param(TASK_TYPES, (rows, self.config.width), plain=True)] if rows else [])]

    def learned_tables(self, weights: Mapping[str, Any], context: int) -> dict[str, np.ndarray]:
        if not self.config.task_types:
            return {}
        return {FIRST_TASK_TYPE: np.repeat(weights[TASK_TYPES].numpy()[:1], context, axis=0)}

    def embedded(self, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:
        x = super().embedded(texts, weights)
        if FIRST_TASK_TYPE not in weights:
            return x
        return ops.add(x, ops.select_rows(weights[FIRST_TASK_TYPE], texts.positions))

    def layer(self, config: BertConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, MLP(name, config, "gelu"), post=True)

    def head(self, config: BertConfig) -> Classifier:
        activation = "relu" if config.model_type == DISTILBERT else "tanh"
        dense = config.has_head_dense
        return Classifier(config.head_labels, config.width, dense=dense, bias=True, activation=activation)
