"""mmproj files of Idefics3, SmolVLM and SmolVLM2, as llama.cpp's conversion/smolvlm.py writes them."""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.towers.hf.idefics3 import MAX_MERGE, check_merge
from sporelm.checkpoints.towers.mmproj import VISION, VIT_TENSORS, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.idefics3 import Idefics3Tower

SCALE_FACTOR: Final = f"{VISION}projector.scale_factor"


@register_tower
class Idefics3Gguf(VitGgufSchema):
    """`clip.projector_type` "idefics3"."""

    architecture = Idefics3Tower
    projectors = ("idefics3",)
    tensors = {
        **VIT_TENSORS,
        **{f"last_norm.{part}": f"v.post_ln.{part}" for part in PARTS},
        "projector.weight": "mm.model.fc.weight",
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        values, shape = ConfigValues(gguf.metadata, gguf.where), read_vit_metadata(gguf)
        side, merge = shape["image_size"] // shape["patch"], values.integer(SCALE_FACTOR, 1, MAX_MERGE)
        check_merge(gguf.where, SCALE_FACTOR, side, merge)
        return self.tower_config(
            **shape,
            has_class_row=False,
            merge=merge,
            out_width=values.integer(f"{VISION}projection_dim", 1, MAX_WIDTH),
        )

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        return {**vit_metadata(config, self.projectors[0]), SCALE_FACTOR: ("u32", config.merge)}
