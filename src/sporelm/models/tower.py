"""The base class of vision towers: they turn the patches of a picture into rows of a text model's input.

A tower computes in stages. A stage reads some arrays in pieces of rows and others whole, and returns rows of new
arrays. So that a large picture does not delay the streams of others, the engine runs a stage piece by piece: a layer is
cut where all rows must be known, between the projection to keys and values and attention.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.tower_layer import TowerLayer
from sporelm.models.params import Param
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput

Arrays = Mapping[str, Any]
Config = TypeVar("Config", bound=TowerConfig)
SPANS = "spans"  # int32 [rows, 2]: the rows to which a row attends


class ParameterOwner(Protocol):
    """A block that lists its parameters."""

    def params(self) -> list[Param]: ...


class TowerStage(NamedTuple):
    """One stage of a tower.

    compute  (arrays, weights) -> arrays by name, of as many rows as the arrays in pieces
    rows     the arrays that are cut: a piece has some of their rows
    whole    the arrays that each piece reads whole; they have equally many rows
    group    adjacent rows of the arrays in pieces that are one row of a piece: [rows, width] is read as [rows / group,
             group * width]
    """

    compute: Callable[[Arrays, Arrays], dict[str, Any]]
    rows: tuple[str, ...]
    whole: tuple[str, ...] = ()
    group: int = 1


class Tower(ABC, Generic[Config]):
    """The base class of towers, with the stages of a ViT (Dosovitskiy et al. 2021) and a projector.

    An architecture gives its layers and its projector, and overrides what differs.
    """

    name = ""  # of the architecture
    config_class: type[TowerConfig] = TowerConfig
    host_weights: tuple[str, ...] = ()  # plain parameters that `prepare` and `finish` read
    has_patch_bias = True
    is_encoder = False  # its rows are vectors of whole pictures, not inputs of a text model
    row_arrays: tuple[str, ...] = ()  # arrays of `prepare` that layers read, besides spans

    def __init__(self, config: Config) -> None:
        self.config = config
        self.patches = Linear("patches", config.width, config.patch_values, bias=self.has_patch_bias)
        self.layers = [self.layer(config, index) for index in range(config.layers)]

    @abstractmethod
    def layer(self, config: Config, index: int) -> TowerLayer:
        """Return the layer of this number."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[ParameterOwner]:
        """The blocks with parameters besides patches and layers."""

    def params(self) -> list[Param]:
        """Return all parameters, each once."""
        owners: list[ParameterOwner] = [self.patches, *self.layers, *self.blocks]
        return [param for owner in owners for param in owner.params()]

    @property
    def added_rows(self) -> int:
        """The rows that `prepare` adds to the patches of each tile."""
        return 0

    def tables(self) -> dict[str, NDArray[Any]]:
        """Return constants that follow from the configuration; they join the weights."""
        return {}

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of the first stage, float32 or int32, with "patches" and SPANS among them.

        host   the weights that `host_weights` names

        This is where rows are added or put into another order. By default a row attends to its tile.
        """
        spans = image.tile_spans()
        return {"patches": image.patches, SPANS: spans.repeat(spans[:, 1] - spans[:, 0], axis=0)}

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Return the rows of the prompt, float32 [image.num_rows, columns], from those of the last stage."""
        return rows

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        """Return the input of the first layer: float32 [rows, width]."""
        return self.patches(arrays["patches"], weights)

    def embed_arrays(self) -> tuple[str, ...]:
        """Return the arrays that `embedded` reads."""
        return ("patches",)

    @abstractmethod
    def project(self, x: Any, weights: Arrays) -> Any:
        """Return rows for the text model, float32 [rows / merge ** 2, columns], from x [rows / merge ** 2, merge ** 2 *
        width]."""

    def stages(self) -> list[TowerStage]:
        """Return all stages; the last one returns "rows"."""
        return [*self.layer_stages(), TowerStage(self._project_rows, ("x",), group=self.config.merge**2)]

    def layer_stages(self) -> list[TowerStage]:
        """Return the stages up to the last layer, which return "x"."""
        first, *others = self.layers

        def begin(arrays: Arrays, weights: Arrays) -> dict[str, Any]:
            x = self.embedded(arrays, weights)
            return {"x": x, **first.project(x, arrays, weights)}

        reads = (*self.row_arrays, SPANS)
        stages = [TowerStage(begin, (*self.embed_arrays(), *self.row_arrays))]
        for layer, following in zip(self.layers, [*others, None], strict=True):
            compute = self._between(layer, following)
            stages.append(TowerStage(compute, ("x", "q", *reads), ("k", "v")))
        return stages

    def _between(self, layer: TowerLayer, following: TowerLayer | None) -> Callable[[Arrays, Arrays], dict[str, Any]]:
        """Return the computation from one layer's attention to the next one's queries, keys and values."""

        def compute(arrays: Arrays, weights: Arrays) -> dict[str, Any]:
            x = layer.attend(arrays, weights)
            return {"x": x} if following is None else {"x": x, **following.project(x, arrays, weights)}

        return compute

    def _project_rows(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        return {"rows": self.project(arrays["x"], weights)}


def add_positions(x: Any, table: Any, positions: Any) -> Any:
    """Return x [rows, width] plus the rows of a table [positions, width] that `positions`, int32 [rows], names."""
    return ops.add(x, ops.embedding(positions, table))
