"""mmproj files of Qwen2-VL, as llama.cpp's conversion/qwenvl.py writes them."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.hf.qwen2vl import DEFAULT_THETA, MAX_MERGE, check_heads
from sporelm.checkpoints.towers.mmproj import LAYER_NAMES, VISION, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import patch_kernel
from sporelm.checkpoints.transforms import FlattenKernel
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.qwen2vl import Qwen2VLTower

MERGE_SIZE: Final = f"{VISION}spatial_merge_size"
DEFAULT_MERGE: Final = 2
FFN_LENGTH: Final = f"{VISION}feed_forward_length"
IMAGE_SIZE: Final = 560  # what the converter writes; nothing depends on it

QWEN_TENSORS: Final[TensorTable] = {
    "patches.weight": StoredAs("v.patch_embd.weight", FlattenKernel(patch_kernel)),
    "later_patches.weight": StoredAs("v.patch_embd.weight.1", FlattenKernel(patch_kernel)),
    **{f"projector_norm.{part}": f"v.post_ln.{part}" for part in PARTS},
    **{
        f"projector_{ours}.{part}": f"mm.{stored}.{part}" for ours, stored in (("up", 0), ("down", 2)) for part in PARTS
    },
}
LAYER_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.{ours}.{part}": f"v.blk.{{}}.{stored}.{part}"
    for ours, stored in LAYER_NAMES.items()
    for part in PARTS
}


def read_qwen_metadata(gguf: GgufModel) -> dict[str, Any]:
    """Return the fields of a tower that the mmproj files of all Qwen vision models share."""
    values = ConfigValues(gguf.metadata, gguf.where)
    # Files of Qwen2-VL have the text model's width, or 0, as the width of feed-forward blocks: the tensors decide.
    sides = [gguf.shapes.get(f"v.blk.0.ffn_{name}.bias", ()) for name in ("up", "down")]
    if all(sides):
        gguf = replace(gguf, metadata={**gguf.metadata, FFN_LENGTH: _ffn_width(values, sides[0][0], sides[1][0])})
    shape = read_vit_metadata(gguf)
    check_heads(gguf.where, shape["width"], shape["heads"])
    return {
        **shape,
        "rope_theta": DEFAULT_THETA,
        "merge": values.integer(MERGE_SIZE, 1, MAX_MERGE, DEFAULT_MERGE),
        "out_width": values.integer(f"{VISION}projection_dim", 1, MAX_WIDTH),
    }


def _ffn_width(values: ConfigValues, up: int, down: int) -> int:
    """Return the width of feed-forward blocks; `up` and `down` are the lengths of their biases, in either order."""
    width = values.integer(f"{VISION}embedding_length", 1, MAX_WIDTH)
    return down if up == width else up


def qwen_metadata(config: TowerConfig, projector: str) -> dict[str, MetadataEntry]:
    """Return the metadata of a file under full keys. Raises UnsupportedModel for values that files have no key for."""
    for what, value, allowed in (("rope_theta", config.rope_theta, DEFAULT_THETA), ("in_channels", config.channels, 3)):
        if value != allowed:
            raise UnsupportedModel(
                f"vision tower: mmproj files have no key for {what} (got {value:g}; allowed {allowed:g})"
            )
    found = vit_metadata(config, projector)
    return {**found, f"{VISION}image_size": ("u32", config.image_size or IMAGE_SIZE), MERGE_SIZE: ("u32", config.merge)}


@register_tower
class Qwen2VLTowerGguf(VitGgufSchema):
    """`clip.projector_type` "qwen2vl_merger"."""

    architecture = Qwen2VLTower
    projectors = ("qwen2vl_merger",)
    tensors = QWEN_TENSORS | LAYER_TENSORS

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        return self.tower_config(**{**read_qwen_metadata(gguf), "image_size": 0})

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        return qwen_metadata(config, self.projectors[0])
