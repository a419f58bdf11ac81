"""mmproj files of Qwen2.5-VL, as llama.cpp's conversion/qwenvl.py writes them."""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.towers.gguf.qwen2vl import LAYER_TENSORS, QWEN_TENSORS, qwen_metadata, read_qwen_metadata
from sporelm.checkpoints.towers.mmproj import VISION, VitGgufSchema
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_LAYERS
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.qwen25vl import Qwen25VLTower, Qwen25VLTowerConfig

PATTERN: Final = f"{VISION}n_wa_pattern"  # every n-th layer attends to the whole picture; 0: all layers do
WINDOW_SIZE: Final = f"{VISION}window_size"
DEFAULT_WINDOW_SIZE: Final = 112
WITHOUT_BIAS: Final = ("projector_norm.bias", "layers.{}.attn_norm.bias", "layers.{}.ffn_norm.bias")


@register_tower
class Qwen25VLTowerGguf(VitGgufSchema):
    """`clip.projector_type` "qwen2.5vl_merger"."""

    architecture = Qwen25VLTower
    projectors = ("qwen2.5vl_merger",)
    tensors = {name: row for name, row in (QWEN_TENSORS | LAYER_TENSORS).items() if name not in WITHOUT_BIAS} | {
        f"layers.{{}}.ffn_gate.{part}": f"v.blk.{{}}.ffn_gate.{part}" for part in PARTS
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        values, shape = ConfigValues(gguf.metadata, gguf.where), read_qwen_metadata(gguf)
        pattern, layers = values.integer(PATTERN, 0, MAX_LAYERS), shape["layers"]
        smallest = shape["patch"] * shape["merge"]
        return self.tower_config(
            **{**shape, "image_size": 0},
            full_layers=frozenset(range(pattern - 1, layers, pattern) if pattern else range(layers)),
            window_size=values.integer(WINDOW_SIZE, smallest, MAX_IMAGE_SIZE, max(smallest, DEFAULT_WINDOW_SIZE)),
        )

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Qwen25VLTowerConfig)
        found = qwen_metadata(config, self.projectors[0]) | {PATTERN: ("u32", _find_pattern(config))}
        return found | ({WINDOW_SIZE: ("u32", size)} if (size := config.window_size) != DEFAULT_WINDOW_SIZE else {})


def _find_pattern(config: Qwen25VLTowerConfig) -> int:
    """Return the distance between layers without windows. Raises UnsupportedModel if it varies."""
    full = sorted(config.full_layers)
    pattern = 0 if len(full) == config.layers else full[0] + 1 if full else config.layers + 1
    if pattern and full != list(range(pattern - 1, config.layers, pattern)):
        raise UnsupportedModel(
            f"vision tower: mmproj files cannot list its layers without windows (got {full}; allowed every n-th layer)"
        )
    return pattern
