"""mmproj files of LLaVA-NeXT (LLaVA 1.6) and Granite Vision: those of LLaVA with a list of sizes.

The rows of the tiles are arranged as in transformers. llama.cpp's mtmd (2026) concatenates the rows of all tiles,
including those of the padding, without newline rows.
"""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.towers.gguf.llava import LlavaGguf, flat_values, read_llava_metadata
from sporelm.checkpoints.towers.hf.llava_next import check_pinpoints
from sporelm.checkpoints.towers.mmproj import VISION
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.supported_towers import PINPOINTS_KEY
from sporelm.errors import ModelFileError
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.llava_next import NEWLINE, LlavaNextConfig, LlavaNextTower

MERGE_TYPE: Final = f"{VISION}mm_patch_merge_type"
SPATIAL_UNPAD: Final = "spatial_unpad"


@register_tower
class LlavaNextGguf(LlavaGguf):
    """`mlp` with `image_grid_pinpoints`."""

    architecture = LlavaNextTower
    tensors = {**LlavaGguf.tensors, NEWLINE: ("v.image_newline", "model.image_newline")}

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        fields = read_llava_metadata(gguf)
        flat = flat_values(gguf, PINPOINTS_KEY) or []
        if len(flat) % 2:
            raise ModelFileError(f"{gguf.where}: {PINPOINTS_KEY} has {len(flat)} numbers; it must be pairs")
        pairs = [flat[index : index + 2] for index in range(0, len(flat), 2)]
        pinpoints = check_pinpoints(gguf.where, pairs, fields["image_size"])
        merge_type = ConfigValues(gguf.metadata, gguf.where).text(MERGE_TYPE, "")
        return self.tower_config(**fields, pinpoints=pinpoints, has_newline=merge_type == SPATIAL_UNPAD)

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, LlavaNextConfig)
        found = {
            **super().metadata_from_config(config),
            PINPOINTS_KEY: ("[i32]", [side for pair in config.pinpoints for side in pair]),
        }
        return {**found, MERGE_TYPE: ("str", SPATIAL_UNPAD)} if config.has_newline else found
