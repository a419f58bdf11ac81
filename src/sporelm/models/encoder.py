"""The base class of encoders: they read whole texts at once, in both directions, and return hidden states or scores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from sporelm import ops
from sporelm.models.blocks import Classifier, Embedding, EncoderLayer, LayerNorm, Memory, NormKind, RowBlock
from sporelm.models.blocks.linear import Linear, scale_rows
from sporelm.models.config import ModelConfig
from sporelm.models.dense_layers import dense_params
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.encoder_inputs import EncoderInputs
from sporelm.models.params import Param
from sporelm.models.position_tables import position_tables
from sporelm.quant.stored_tensor import StoredTensor

WIDENED = "embedding_widened"  # the projection of narrow embeddings to the model's width


Config = TypeVar("Config", bound=EncoderConfig)


class Encoder(ABC, Generic[Config]):
    """The base class of encoders; an architecture gives `layer`."""

    name = ""  # of the architecture
    config_class: type[ModelConfig] = EncoderConfig
    norms: NormKind = LayerNorm  # the kind of its norms
    outer_norms = ("embedding_norm", "")  # before the first layer, and after the last; "": there is none
    has_position_table = True  # positions are embedded, unless they are rotary or linear biases
    extra_values_per_token = 0  # values that a step holds for each token, beyond those of all encoders
    passes = 1  # how often a text passes the layers

    def __init__(self, config: Config) -> None:
        self.config = config
        width = config.embedding_width or config.width
        self.embedding = Embedding("embedding", config.vocab, width)
        self.types = Embedding("types", config.token_types, width) if config.token_types else None
        learned = self.has_position_table and not (config.rotary or config.alibi)
        self.positions = Embedding("positions", config.context_length, width) if learned else None
        first, last = self.outer_norms
        self.first_norm = self.norms(first, width, config.eps) if first else None
        self.widened = Linear(WIDENED, config.width, width, bias=True) if config.embedding_width else None
        self.last_norm = self.norm(last) if last else None
        self.layers = [self.layer(config, index) for index in range(config.layers // self.passes)]
        self.classifier = self.head(config) if config.head_labels else None

    @abstractmethod
    def layer(self, config: Config, index: int) -> EncoderLayer:
        """Return the layer of this number."""

    def norm(self, name: str) -> RowBlock:
        """Return a norm of the kind that this model has."""
        return self.norms(name, self.config.width, self.config.eps)

    def head(self, config: Config) -> Classifier:
        """Return the head of a model that has one: BERT's."""
        dense = config.has_head_dense
        return Classifier(config.head_labels, config.width, dense=dense, bias=True, activation="tanh")

    def params(self) -> list[Param]:
        """Return all parameters, each once."""
        first = (self.embedding, self.types, self.positions, self.first_norm, self.widened)
        parts = (*first, *self.layers, self.last_norm, self.classifier)
        found = [param for part in parts if part is not None for param in part.params()]
        return [*found, *dense_params(self.config.dense)]

    def memory(self) -> list[Memory]:
        """Return the memory that layers keep from step to step: none."""
        return []

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return constants that follow from the configuration, for `context` positions; they join the weights."""
        return position_tables(self.config, context)

    def learned_tables(self, weights: Mapping[str, Any], context: int) -> dict[str, np.ndarray]:
        """Return constants that follow from weights, for `context` positions; they join the weights."""
        return {}

    def learned_weights(self, weights: Mapping[str, Any]) -> dict[str, StoredTensor]:
        """Return weights that are computed from weights on a back-end, to be packed beside them."""
        return {}

    def embedded(self, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:
        """Return the sum of the rows of each token, its type and its position: float32 [tokens, width]."""
        x = scale_rows(self.embedding(texts.tokens, weights), self.config.scales.embedding)
        if self.types is not None:
            x = ops.add(x, self.types(texts.types, weights))
        return x if self.positions is None else ops.add(x, self.positions(texts.positions, weights))

    def hidden(self, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:
        """Return the last hidden states: float32 [tokens, width]."""
        x = self.embedded(texts, weights)
        x = x if self.first_norm is None else self.first_norm(x, weights)
        x = x if self.widened is None else self.widened(x, weights)
        for layer in self.layers * self.passes:
            x = layer(x, texts, weights)
        return x if self.last_norm is None else self.last_norm(x, weights)

    def embed(self, texts: EncoderInputs, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return "hidden", float32 [tokens, width]."""
        return {"hidden": self.hidden(texts, weights)}

    def score(self, texts: EncoderInputs, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return "scores", float32 [texts, labels], of a model with a head."""
        assert self.classifier is not None
        x = self.hidden(texts, weights)
        if self.config.head_pooling == "late":
            return {"scores": ops.mean_rows(self.classifier(x, weights), texts.firsts, texts.stops)}
        first = self.config.head_pooling == "cls"
        x = ops.select_rows(x, texts.firsts) if first else ops.mean_rows(x, texts.firsts, texts.stops)
        return {"scores": self.classifier(x, weights)}
