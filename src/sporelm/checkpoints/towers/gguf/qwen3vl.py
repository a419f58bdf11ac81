"""mmproj files of Qwen3-VL, as llama.cpp's conversion/qwen3vl.py writes them."""

from typing import Any, Final

from sporelm.checkpoints.config_values import format_value
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.gguf.qwen2vl import LAYER_TENSORS, QWEN_TENSORS, qwen_metadata, read_qwen_metadata
from sporelm.checkpoints.towers.mmproj import VISION
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import TowerGgufSchema
from sporelm.checkpoints.transforms import TakeRows
from sporelm.errors import ModelFileError
from sporelm.models.config import ModelConfig
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.qwen3vl import TABLE, Qwen3VLTower

DEEPSTACK: Final = f"{VISION}is_deepstack_layers"
LEVEL_NAMES: Final = (("norm", "norm"), ("up", "fc1"), ("down", "fc2"))


@register_tower
class Qwen3VLTowerGguf(TowerGgufSchema):
    """`clip.projector_type` "qwen3vl_merger"."""

    architecture = Qwen3VLTower
    projectors = ("qwen3vl_merger",)
    tensors = (
        QWEN_TENSORS
        | LAYER_TENSORS
        | {"patches.bias": "v.patch_embd.bias", TABLE: "v.position_embd.weight"}
        | {
            f"layers.{{}}.attn_{name}.{part}": StoredAs(f"v.blk.{{}}.attn_qkv.{part}", TakeRows(rows))
            for name, rows in QKV_ROWS.items()
            for part in PARTS
        }
    )

    def tensor_table(self, config: ModelConfig) -> TensorTable:
        """Add the mergers of the DeepStack levels, which are named by layer index."""
        assert isinstance(config, TowerConfig)
        return self.tensors | {
            f"level{level}_{ours}.{part}": f"v.deepstack.{layer}.{stored}.{part}"
            for level, layer in enumerate(config.deepstack)
            for ours, stored in LEVEL_NAMES
            for part in PARTS
        }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        shape = read_qwen_metadata(gguf)
        side = shape["image_size"] // shape["patch"]
        return self.tower_config(**shape, context_length=side**2, deepstack=_read_levels(gguf, shape["layers"]))

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        is_level = [layer in config.deepstack for layer in range(config.layers)]
        return {**qwen_metadata(config, self.projectors[0]), DEEPSTACK: ("[bool]", is_level)}


def _read_levels(gguf: GgufModel, layers: int) -> tuple[int, ...]:
    """Return the layers with a DeepStack merger. Without the key they are found by their tensors, as in clip.cpp.

    Raises ModelFileError unless the key is true or false for each layer.
    """
    given: Any = gguf.metadata.get(DEEPSTACK)
    if given is None:
        return tuple(layer for layer in range(layers) if f"v.deepstack.{layer}.norm.weight" in gguf.shapes)
    flags = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(flags, list) or len(flags) != layers or any(type(flag) is not bool for flag in flags):
        raise ModelFileError(
            f"{gguf.where}: {DEEPSTACK} is {format_value(flags)}; it must be a list of {layers} booleans"
        )
    return tuple(layer for layer, flag in enumerate(flags) if flag)
