"""The base class of vision towers: they turn the patches of a picture into embeddings, the image rows of a prompt.

A tower computes in stages. A stage reads some arrays in pieces of rows and others whole, and returns rows of new
arrays. The engine runs a stage piece by piece, so that a large picture does not delay other requests' streams. A layer
is split before attention, which needs the keys and values of all rows.
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

    compute  (arrays, weights) -> output arrays by name, with as many rows as the piece
    rows     names of the arrays that are read in pieces (slices of their rows)
    whole    names of the arrays that every piece reads whole, as attention reads keys; their row counts are equal
    group    adjacent rows that are joined to one: the arrays of `rows`, [rows, width], are read as [rows / group,
             group * width]
    """

    compute: Callable[[Arrays, Arrays], dict[str, Any]]
    rows: tuple[str, ...]
    whole: tuple[str, ...] = ()
    group: int = 1


class Tower(ABC, Generic[Config]):
    """The base class of towers, with the stages of a ViT (Dosovitskiy et al. 2021) and a projector.

    A subclass defines its layers and its projector, and overrides what differs.
    """

    name = ""  # of the architecture
    config_class: type[TowerConfig] = TowerConfig
    host_weights: tuple[str, ...] = ()  # unquantized parameters that `prepare` and `finish` read on the host
    has_patch_bias = True
    is_encoder = False  # one vector for each picture (CLIP), not image rows of a prompt
    row_arrays: tuple[str, ...] = ()  # arrays of `prepare` that layers read, besides spans

    def __init__(self, config: Config) -> None:
        self.config = config
        self.patches = Linear("patches", config.width, config.patch_values, bias=self.has_patch_bias)
        self.layers = [self.layer(config, index) for index in range(config.layers)]

    @abstractmethod
    def layer(self, config: Config, index: int) -> TowerLayer:
        """Return the layer with this index."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[ParameterOwner]:
        """The blocks with parameters, other than `patches` and `layers`."""

    def params(self) -> list[Param]:
        """Return all parameters, each once."""
        owners: list[ParameterOwner] = [self.patches, *self.layers, *self.blocks]
        return [param for owner in owners for param in owner.params()]

    @property
    def added_rows(self) -> int:
        """The rows that `prepare` adds to the patches of each tile."""
        return 0

    def tables(self) -> dict[str, NDArray[Any]]:
        """Return constant arrays computed from the configuration; callers add them to the weights."""
        return {}

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of the first stage, float32 or int32, with "patches" and SPANS among them.

        host   the weights listed in `host_weights`

        Overrides add or reorder rows. By default a row attends to all rows of its tile.
        """
        spans = image.tile_spans()
        return {"patches": image.patches, SPANS: spans.repeat(spans[:, 1] - spans[:, 0], axis=0)}

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Return the image rows of the prompt, float32 [image.num_rows, columns], from the output of the last stage."""
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
    """Return x [rows, width] plus table[positions]; table [num_positions, width], positions int32 [rows]."""
    return ops.add(x, ops.embedding(positions, table))
