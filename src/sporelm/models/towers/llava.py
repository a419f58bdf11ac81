"""LLaVA's tower: the ViT of CLIP or SigLIP up to one of its layers, and a projector of two layers (Liu et al. 2023)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import Linear
from sporelm.models.tower import Arrays, ParameterOwner, TowerStage
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.vit_tower import VitConfig, VitTower


@dataclass(frozen=True, kw_only=True)
class LlavaTowerConfig(VitConfig):
    """The fields of LLaVA's towers. `layers` counts the layers up to the last feature; later ones are not computed.

    features          1-based indices of the layers whose concatenated outputs the projector reads
    drops_first_row   the first row of each tile, CLIP's class embedding, is left out
    projector_act     the activation between the projector's layers
    projector_bias    the projector's layers have biases
    """

    features: tuple[int, ...]
    drops_first_row: bool = True
    projector_act: str = "gelu"
    projector_bias: bool = True

    @property
    def kept_rows(self) -> int:
        """The number of image rows for one tile."""
        return self.tile_rows - self.drops_first_row


Config = TypeVar("Config", bound=LlavaTowerConfig)


class LlavaTowerBase(VitTower[Config]):
    """The base class of the towers of LLaVA 1.5 and LLaVA-NeXT."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width * len(config.features)
        self.up = Linear("projector_up", config.out_width, width, bias=config.projector_bias)
        self.down = Linear("projector_down", config.out_width, config.out_width, bias=config.projector_bias)
        self.is_single = config.features == (config.layers,)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [*super().blocks, self.up, self.down]

    def stages(self) -> list[TowerStage]:
        stages = self.layer_stages()  # stage n ends with layer n
        if self.is_single:
            return [*stages, TowerStage(self._project_rows, ("x",))]
        for number in set(self.config.features):
            stages[number] = stages[number]._replace(compute=with_feature(stages[number].compute, number))
        return [
            *stages,
            TowerStage(self._project_features, tuple(map(feature_name, sorted(set(self.config.features))))),
        ]

    def _project_features(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        first, *others = (arrays[feature_name(number)] for number in self.config.features)
        for other in others:
            first = ops.join_columns(first, other)
        return {"rows": self.project(first, weights)}

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.down(ops.activate(self.up(x, weights), kind=self.config.projector_act), weights)

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        return np.delete(rows, self.tile_starts(image)[:-1], axis=0) if self.config.drops_first_row else rows


@tower("llava", LlavaTowerConfig)
class LlavaTower(LlavaTowerBase[LlavaTowerConfig]):
    """LLaVA 1.5: one tile."""


def feature_name(number: int) -> str:
    """Return the name of the array with the output of a layer, counted from 1."""
    return f"feature {number}"


def with_feature(compute: Callable[[Arrays, Arrays], dict[str, Any]], number: int) -> Callable[..., dict[str, Any]]:
    """Return a stage's computation that also returns its "x" under the name of a feature."""

    def with_copy(arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        found = compute(arrays, weights)
        return {**found, feature_name(number): found["x"]}

    return with_copy
