"""Hugging Face folders of Gemma 3: the ViT of SigLIP, average pooling, and a projector."""

from math import isqrt
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.clip_folders import (
    SIGLIP_VISION,
    ClipHfSchema,
    read_vit,
    spell_names,
    spell_prefix,
    vit_json,
    vit_tensors,
)
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import FolderLayout, inner_values
from sporelm.checkpoints.transforms import AddConstant, Transpose
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.gemma3 import Gemma3Tower, Gemma3TowerConfig

TOWER, FRONTS, INNER = "vision_tower.", ("", "model."), ("", "vision_model.")
MAX_ROWS = 1 << 14  # image rows of one picture


@register_tower
class Gemma3Hf(ClipHfSchema):
    """`Gemma3ForConditionalGeneration`."""

    architecture = Gemma3Tower
    layout = FolderLayout(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        "language_model.",
        (TOWER, f"{TOWER}vision_model."),
        {
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
    )
    prefixes = tuple(f"{front}{name}" for front in FRONTS for name in (TOWER, "multi_modal_projector."))
    optional_prefixes = ("model.",)
    prefix_variants = spell_prefix(TOWER, FRONTS, INNER)
    ignored_tensors = spell_names(TOWER, FRONTS, INNER, ("embeddings.position_ids", "head.*"))
    tensors = {
        **vit_tensors(TOWER),
        **{f"last_norm.{part}": f"{TOWER}post_layernorm.{part}" for part in PARTS},
        "projector_norm.weight": StoredAs("multi_modal_projector.mm_soft_emb_norm.weight", AddConstant(1.0)),
        "projector.weight": StoredAs("multi_modal_projector.mm_input_projection_weight", Transpose()),
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        text = inner_values(values, "text_config")
        fields: dict[str, Any] = read_vit(inner_values(values, "vision_config"), SIGLIP_VISION)
        rows = values.integer("mm_tokens_per_image", 1, MAX_ROWS, 256)
        merge = square_side(values.where, fields["image_size"] // fields["patch"], rows)
        return self.tower_config(**fields, merge=merge, out_width=text.integer("hidden_size", 1, MAX_WIDTH, 2304))

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        assert isinstance(config, Gemma3TowerConfig)
        return {"vision_config": vit_json(config), "mm_tokens_per_image": config.tile_outputs}


def square_side(where: str, grid: int, rows: int) -> int:
    """Return the side of the squares of patches that become one row each.

    Raises ModelFileError if `rows` is not the number of such squares in grid x grid patches.
    """
    side = grid // isqrt(rows)
    if side < 1 or (grid // side) ** 2 != rows:
        raise ModelFileError(
            f"{where}: mm_tokens_per_image is {rows}; {grid}x{grid} patches cannot be averaged to as many rows"
        )
    return side
