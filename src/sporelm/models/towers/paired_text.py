"""The text encoders of CLIP and SigLIP, whose vectors share a space with those of the image encoders.

They have the layers of a ViT. The ids of texts take the place of patches: `ImageInput.patches` [tokens, 1], and a grid
(1, 1, tokens) for each text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import MLP, Embedding, LayerNorm, Linear
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.params import Param
from sporelm.models.tower import SPANS, Arrays, ParameterOwner, Tower, TowerStage, add_positions
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower

TOKENS: Final = "tokens"  # int32 [tokens]
POSITIONS: Final = "positions"  # int32 [tokens]
POOLED_ROWS: Final = "pooled_rows"  # int32 [texts]: the row of each text that becomes its vector
LEGACY_END: Final = 2  # end token id in old CLIP configurations, which was not that of their tokenizer


@dataclass(frozen=True, kw_only=True)
class PairedTextConfig(TowerConfig):
    """The fields of these text encoders.

    is_causal   CLIP: attention is causal, and the first end token is pooled; else attention is bidirectional, and the
                last token is pooled, after padding to the context length
    end_token   id; LEGACY_END: the token with the highest id
    pad_token   id
    """

    is_causal: bool
    end_token: int
    pad_token: int


@tower("paired_text", PairedTextConfig)
class PairedTextTower(Tower[PairedTextConfig]):
    """One row for each text: one of its rows, normalized and projected."""

    is_encoder = True

    def __init__(self, config: PairedTextConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding("embedding", config.vocab, config.width)
        self.positions = Embedding("positions", config.context_length, config.width)
        self.last_norm = LayerNorm("last_norm", config.width, config.eps)
        self.projection = Linear("projection", config.out_width, config.width, bias=not config.is_causal)

    def layer(self, config: PairedTextConfig, index: int) -> TowerLayer:
        name = f"layers.{index}"
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        return TowerLayer(norms[0], TowerAttention(name, config), norms[1], MLP(name, config, config.activation))

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [self.embedding, self.positions, self.last_norm, self.projection]

    def params(self) -> list[Param]:
        return [param for owner in (*self.layers, *self.blocks) for param in owner.params()]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        starts, tokens = image.tile_starts(), image.patches[:, 0].astype(np.int32)
        lengths = np.diff(starts)
        firsts = starts[:-1].repeat(lengths)
        positions = np.arange(len(tokens)) - firsts
        stops = firsts + positions + 1 if self.config.is_causal else starts[1:].repeat(lengths)
        texts = np.split(tokens, starts[1:-1])
        pooled = starts[:-1] + [self.find_pooled_row(text) for text in texts]
        arrays = {TOKENS: tokens, POSITIONS: positions, SPANS: np.stack([firsts, stops], axis=1), POOLED_ROWS: pooled}
        return {name: array.astype(np.int32) for name, array in arrays.items()}

    def find_pooled_row(self, text: NDArray[np.int32]) -> int:
        """Return the position of the token in a text that becomes its vector."""
        if not self.config.is_causal:
            return len(text) - 1
        end = self.config.end_token
        return int(np.argmax(text if end == LEGACY_END else text == end))

    def embed_arrays(self) -> tuple[str, ...]:
        return (TOKENS, POSITIONS)

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        return add_positions(self.embedding(arrays[TOKENS], weights), weights["positions.weight"], arrays[POSITIONS])

    def stages(self) -> list[TowerStage]:
        return [*self.layer_stages(), TowerStage(self._pool, (POOLED_ROWS,), ("x",))]

    def _pool(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        return {"rows": self.project(ops.select_rows(arrays["x"], arrays[POOLED_ROWS]), weights)}

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.projection(self.last_norm(x, weights), weights)


def texts_as_input(texts: Sequence[Sequence[int]]) -> ImageInput:
    """Return the ids of texts as the input of this tower."""
    ids = np.array([token for text in texts for token in text], np.float32).reshape(-1, 1)
    return ImageInput(ids, tuple((1, 1, len(text)) for text in texts), len(texts))
