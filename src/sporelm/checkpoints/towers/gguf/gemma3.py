"""mmproj files of Gemma 3, as llama.cpp's conversion/gemma.py writes them (class Gemma3VisionModel)."""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.mmproj import VISION, VIT_TENSORS, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.transforms import Transpose
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.gemma3 import Gemma3Tower

PROJECTOR: Final = "gemma3"
SCALE: Final = f"{VISION}projector.scale_factor"
USUAL_SCALE: Final = 4


@register_tower
class Gemma3Gguf(VitGgufSchema):
    """`gemma3`. Norms are stored as they are; the projection is stored transposed."""

    architecture = Gemma3Tower
    projectors = (PROJECTOR,)
    tensors = {
        **VIT_TENSORS,
        **{f"last_norm.{part}": f"v.post_ln.{part}" for part in PARTS},
        "projector_norm.weight": "mm.soft_emb_norm.weight",
        "projector.weight": StoredAs("mm.input_projection.weight", Transpose()),
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        fields, values = read_vit_metadata(gguf), ConfigValues(gguf.metadata, gguf.where)
        return self.tower_config(
            **fields,
            merge=values.integer(SCALE, 1, fields["image_size"] // fields["patch"], USUAL_SCALE),
            out_width=values.integer(f"{VISION}projection_dim", 1, MAX_WIDTH),
        )

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        found = vit_metadata(config, PROJECTOR)
        return found if config.merge == USUAL_SCALE else {**found, SCALE: ("u32", config.merge)}
