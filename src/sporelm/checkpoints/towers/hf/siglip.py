"""Hugging Face folders of SigLIP: its image encoder."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.clip_folders import SIGLIP_VISION, ClipHfSchema, read_vit, spell_names, vit_tensors
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import inner_values
from sporelm.checkpoints.transforms import Squeeze, TakeRows
from sporelm.errors import UnsupportedModel
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.siglip import SiglipTower

TOWER: Final = "vision_model."
HEAD: Final = f"{TOWER}head."
HEAD_NAMES: Final = {
    "head.attn_o": "attention.out_proj",
    "head_norm": "layernorm",
    "head.ffn_up": "mlp.fc1",
    "head.ffn_down": "mlp.fc2",
}


@register_tower
class SiglipHf(ClipHfSchema):
    """`SiglipModel` and `SiglipVisionModel`. The head's queries, keys and values are one tensor (PyTorch's
    MultiheadAttention)."""

    architecture = SiglipTower
    prefixes = (TOWER, "embeddings.", "encoder.", "post_layernorm.", "head.")
    prefix_variants = ((TOWER, ""),)
    ignored_tensors = spell_names("", ("",), ("", TOWER), ("embeddings.position_ids",))
    tensors = {
        **vit_tensors(TOWER),
        **{f"last_norm.{part}": f"{TOWER}post_layernorm.{part}" for part in PARTS},
        "head_probe.weight": StoredAs(f"{HEAD}probe", Squeeze((0,))),
        **{
            f"head.attn_{name}.{part}": StoredAs(f"{HEAD}attention.in_proj_{part}", TakeRows(rows))
            for name, rows in QKV_ROWS.items()
            for part in PARTS
        },
        **{f"{ours}.{part}": f"{HEAD}{stored}.{part}" for ours, stored in HEAD_NAMES.items() for part in PARTS},
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision = inner_values(values, "vision_config") if values.has("vision_config") else values
        if not vision.flag("vision_use_head", True):
            raise UnsupportedModel(
                f"{vision.where}: vision_use_head is not supported for an image encoder (got False; allowed True)"
            )
        fields: dict[str, Any] = read_vit(vision, SIGLIP_VISION)
        return self.tower_config(**fields, out_width=fields["width"])
