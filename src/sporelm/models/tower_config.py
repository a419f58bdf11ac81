"""The configuration of a vision tower and its projector."""

from dataclasses import dataclass

from sporelm.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class TowerConfig(ModelConfig):
    """The fields of towers, beyond those of all models. `context_length` is the number of learned positions.

    patch        side of a patch, in pixels
    channels     colors of a pixel
    frames       frames of a patch (Qwen2-VL: 2)
    image_size   side of the pictures for which positions were learned, in pixels; 0: positions are not learned
    merge        side of the square of patches that the projector joins to one row
    activation   of feed-forward blocks, a kind of `ops.activate`
    out_width    width of the text model
    deepstack    layers whose outputs the projector returns too, behind the last one's (DeepStack, Meng et al. 2024)
    """

    patch: int
    channels: int = 3
    frames: int = 1
    image_size: int = 0
    merge: int = 1
    activation: str = "gelu"
    out_width: int = 0
    deepstack: tuple[int, ...] = ()

    @property
    def patch_values(self) -> int:
        """The numbers of a patch."""
        return self.channels * self.frames * self.patch**2

    @property
    def columns(self) -> int:
        """The width of the rows that tower and projector return."""
        return self.out_width * (1 + len(self.deepstack))
