"""mmproj files of CogVLM, as llama.cpp's conversion/cogvlm.py writes them.

llama.cpp does not support CogVLM2's convolution; files written here name it "mm.conv".
"""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.hf.cogvlm import MERGE, merge_columns, merge_kernel
from sporelm.checkpoints.towers.hf.internvl import check_squares
from sporelm.checkpoints.towers.mmproj import VISION, VIT_TENSORS, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.transforms import FlattenKernel, LeadingOnes, PermuteColumns, TakeRows
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_WIDTH
from sporelm.models.grouped_tower import CLASS, POSITIONS
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.cogvlm import BEGIN, END, CogVLMTower

UP: Final = "mm.up.weight"
CONV: Final = "mm.conv.weight"
# Means and standard deviations of channels in the authors' code, which are CLIP's.
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@register_tower
class CogVLMGgufTower(VitGgufSchema):
    """`clip.projector_type` "cogvlm"."""

    architecture = CogVLMTower
    projectors = ("cogvlm",)
    tensors = {
        **{name: row for name, row in VIT_TENSORS.items() if "attn_q" not in name},
        CLASS: StoredAs("v.class_embd", LeadingOnes()),
        POSITIONS: StoredAs("v.position_embd.weight", LeadingOnes()),
        **{
            f"layers.{{}}.attn_{name}.{part}": StoredAs(f"v.blk.{{}}.attn_qkv.{part}", TakeRows(rows))
            for name, rows in QKV_ROWS.items()
            for part in PARTS
        },
        "merge.weight": StoredAs(CONV, FlattenKernel(merge_kernel), PermuteColumns(merge_columns)),
        "merge.bias": "mm.conv.bias",
        "projector_input.weight": "mm.model.fc.weight",
        **{f"projector_norm.{part}": f"mm.post_fc_norm.{part}" for part in PARTS},
        "projector_gate.weight": "mm.gate.weight",
        "projector_up.weight": UP,
        "projector_down.weight": "mm.down.weight",
        BEGIN: StoredAs("v.boi", LeadingOnes()),
        END: StoredAs("v.eoi", LeadingOnes()),
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        values, shape = ConfigValues(gguf.metadata, gguf.where), read_vit_metadata(gguf)
        merge, side = MERGE if CONV in gguf.shapes else 1, shape["image_size"] // shape["patch"]
        check_squares(gguf.where, side, merge, CONV)
        up = gguf.shapes.get(UP, ())
        if len(up) != 2:
            raise ModelFileError(f"{gguf.where}: {UP} is {list(up)}; it must be a matrix, of the projector")
        # Files do not name the activation: llama.cpp's converter leaves it out.
        return self.tower_config(
            **{**shape, "activation": "gelu"},
            grid_side=side,
            merge=merge,
            out_width=values.integer(f"{VISION}projection_dim", 1, MAX_WIDTH),
            projector_ffn=up[0],
        )

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        return {
            **vit_metadata(config, self.projectors[0]),
            f"{VISION}image_mean": ("[f32]", list(MEAN)),
            f"{VISION}image_std": ("[f32]", list(STD)),
        }
