"""The configuration of a vision tower and its projector."""

from dataclasses import dataclass

from sporelm.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class TowerConfig(ModelConfig):
    """The fields of towers, in addition to those of all models. `context_length` is the number of learned positions.

    patch        side of a patch, in pixels
    channels     color channels
    frames       temporal patch size (Qwen2-VL: 2)
    image_size   side of the pictures for which positions were learned, in pixels; 0: positions are not learned
    merge        spatial merge size: the projector joins merge x merge patches to one row
    activation   of feed-forward blocks, a kind of `ops.activate`
    out_width    hidden size of the text model
    deepstack    indices of the layers whose projected outputs follow the last layer's (DeepStack, Meng et al. 2024)
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
        """The number of values in a patch."""
        return self.channels * self.frames * self.patch**2

    @property
    def columns(self) -> int:
        """The width of the projector's rows: `out_width` for the last layer and for each DeepStack layer."""
        return self.out_width * (1 + len(self.deepstack))
