"""Hugging Face folders of CLIP: its image encoder."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.towers.clip_folders import CLIP_VISION, ClipHfSchema, read_vit, spell_names, vit_tensors
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import inner_values
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.clip import ClipTower

TOWER: Final = "vision_model."
PROJECTION_WIDTH: Final = 512  # of transformers' configurations
UNPROJECTED: Final = "CLIPVisionModel"


@register_tower
class ClipHf(ClipHfSchema):
    """`CLIPModel`, `CLIPVisionModelWithProjection` and `CLIPVisionModel`."""

    architecture = ClipTower
    prefixes = (TOWER, "visual_projection.", "embeddings.", "pre_layrnorm.", "encoder.", "post_layernorm.")
    prefix_variants = ((TOWER, ""),)
    ignored_tensors = spell_names("", ("",), ("", TOWER), ("embeddings.position_ids",))
    tensors = {
        **vit_tensors(TOWER),
        **{f"last_norm.{part}": f"{TOWER}post_layernorm.{part}" for part in PARTS},
        "projection.weight": "visual_projection.weight",
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision = inner_values(values, "vision_config") if values.has("vision_config") else values
        fields: dict[str, Any] = read_vit(vision, CLIP_VISION)
        names = values.get("architectures")
        has_projection = names != [UNPROJECTED]
        # CLIPModel has the width in the outer part.
        width = values.integer("projection_dim", 1, MAX_WIDTH, PROJECTION_WIDTH)
        return self.tower_config(
            **fields, has_projection=has_projection, out_width=width if has_projection else fields["width"]
        )
