"""A decoder: embedding, layers, norm, and the scores of the next token."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from sporelm import ops
from sporelm.models.blocks import Embedding, Layer, Linear, Memory, NormKind, RMSNorm, RowBlock, pre_norm
from sporelm.models.blocks.block_memory import list_memories
from sporelm.models.blocks.linear import scale_rows
from sporelm.models.config import ModelConfig
from sporelm.models.dense_layers import dense_params
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.position_tables import position_tables
from sporelm.models.tower_inputs import ImageInput

CLASSIFIER = "classifier.weight"  # the classification head of a reranker's file


Config = TypeVar("Config", bound=ModelConfig)


class Decoder(Generic[Config]):
    """The base class of decoders, with Llama's layers; an architecture overrides what differs."""

    name = ""  # of the architecture
    config_class: type[ModelConfig] = ModelConfig
    norms: NormKind = RMSNorm  # the kind of its norms
    passes = 1  # how often a token passes the layers
    has_rope_positions = False  # rows have three rotary positions: time, height and width (M-RoPE)
    attends_images_both_ways = False  # the rows of an image attend to all of it

    def __init__(self, config: Config) -> None:
        self.config = config
        self.embedding = Embedding("embedding", config.vocab, config.width)
        self.layers: Sequence[Layer] = [self.layer(config, index) for index in range(config.layers)]
        self.norm = self.last_norm(config)
        output, bias = "embedding" if config.tie_embeddings else "output", config.output_bias
        self.output = Linear(output, config.vocab, config.width, bias=bias)

    def layer(self, config: Config, index: int) -> Layer:
        """Return the layer of this number."""
        return pre_norm(config, index, norm=self.norms)

    def last_norm(self, config: Config) -> RowBlock:
        """Return the norm after the last layer."""
        return self.norms("output_norm", config.width, config.eps)

    def params(self) -> list[Param]:
        """Return all parameters, each once; a tied output has none of its own."""
        output = [] if self.config.tie_embeddings else self.output.params()
        layers = [param for layer in self.layers for param in layer.params()]
        head = [Param(CLASSIFIER, (self.config.labels, self.config.width), plain=True)] if self.config.labels else []
        head += dense_params(self.config.dense)
        return [*self.embedding.params(), *layers, *self.norm.params(), *output, *head]

    def memory(self) -> list[Memory]:
        """Return the memory that layers keep from step to step; `forward` takes one cache for each."""
        return [each for _, each in self.memory_by_layer()]

    def memory_by_layer(self) -> list[tuple[int, Memory]]:
        """Return the memory that layers keep, each with the index of its layer."""
        return [(index, each) for index, layer in enumerate(self.layers) for each in list_memories(layer.memory())]

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return constants that follow from the configuration, for `context` positions; they join the weights."""
        return position_tables(self.config, context)

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        """Return the input of the first layer: float32 [tokens, width]."""
        x = scale_rows(self.embedding(step.tokens, weights), self.config.scales.embedding)
        return x if step.image_rows is None else ops.replace_rows(x, step.image_values, step.image_rows)

    @property
    def image_columns(self) -> int:
        """The values of an image's row: the input of the first layer, and what later layers add."""
        return self.config.width

    def image_positions(self, image: ImageInput) -> np.ndarray:
        """Return the rotary positions of an image's rows from that of the first, int32 [num_rows, 3]; for models with
        `has_rope_positions`."""
        raise NotImplementedError

    def hidden(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        """Return the last hidden states of the requested rows: float32 [rows, width]."""
        x = self.through(self.embedded(step, weights), step, weights, caches)
        # The last norm and the output read only the requested rows.
        return self.norm(ops.select_rows(x, step.rows), weights)

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        """Return x [tokens, width] after all layers."""
        left = iter(caches)
        for layer in self.layers:
            x = layer(x, step, weights, *islice(left, len(list_memories(layer.memory()))))
        return x

    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        """Return "logits" of the requested rows, float32 [rows, vocab], and "tokens", int32 [rows], the argmax of each
        row."""
        x, factor = self.hidden(step, weights, caches), self.config.scales.output / self.config.scales.logits
        logits = self.output(scale_rows(x, factor), weights)
        if self.config.logit_cap is not None:
            logits = ops.softcap(logits, cap=self.config.logit_cap)
        return {"logits": logits, "tokens": ops.argmax(logits)}

    def embed(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        """Return "hidden" of the requested rows, float32 [rows, width]."""
        return {"hidden": self.hidden(step, weights, caches)}
