"""LLaVA-NeXT's tower: LLaVA's, over tiles that keep the aspect ratio, with a learned newline row (Liu et al. 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.models.params import Param
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.towers.llava import LlavaTowerBase, LlavaTowerConfig

NEWLINE: Final = "newline"


@dataclass(frozen=True, kw_only=True)
class LlavaNextConfig(LlavaTowerConfig):
    """The fields of LLaVA-NeXT.

    pinpoints     sizes in pixels, (height, width); a picture is resized to fit one of these
    has_newline   rows of padding are left out, and a learned row follows each line ("spatial_unpad"); else the rows of
                  all tiles are concatenated
    """

    pinpoints: tuple[tuple[int, int], ...]
    has_newline: bool = True


class TileLayout(NamedTuple):
    """The grid of the tiles after the first, and the picture in it: `ImageInput.layout`.

    down, across          number of tiles
    y, x                  padding above and to the left, in patches
    height, width         size of the picture without padding, in patches
    """

    down: int
    across: int
    y: int
    x: int
    height: int
    width: int


@tower("llava_next", LlavaNextConfig)
class LlavaNextTower(LlavaTowerBase[LlavaNextConfig]):
    """The first tile is the whole picture; the others are cut from a larger copy."""

    def __init__(self, config: LlavaNextConfig) -> None:
        super().__init__(config)
        if config.has_newline:
            self.host_weights = (NEWLINE,)

    def params(self) -> list[Param]:
        newline = [Param(NEWLINE, (self.config.out_width,), plain=True)] if self.config.has_newline else []
        return [*super().params(), *newline]

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Arrange the rows of the tiles into lines, drop the padding, and append the newline row to each line."""
        rows = super().finish(rows, image, host)
        if not image.layout:
            return rows
        layout, grid = TileLayout(*image.layout), self.config.grid
        whole, parts = rows[: grid**2], rows[grid**2 :]
        lines = parts.reshape(layout.down, layout.across, grid, grid, -1).swapaxes(1, 2)
        lines = lines.reshape(layout.down * grid, layout.across * grid, -1)
        lines = lines[layout.y : layout.y + layout.height, layout.x : layout.x + layout.width]
        ends = np.broadcast_to(host[NEWLINE], (layout.height, 1, lines.shape[2]))
        return np.concatenate([whole, np.concatenate([lines, ends], axis=1).reshape(-1, lines.shape[2])])
