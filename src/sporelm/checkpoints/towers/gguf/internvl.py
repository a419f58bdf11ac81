"""mmproj files of InternVL, as llama.cpp's conversion/internvl.py writes them."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.hf.internvl import MAX_MERGE, MAX_TILES, check_squares
from sporelm.checkpoints.towers.mmproj import VISION, VIT_TENSORS, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.transforms import LeadingOnes
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_WIDTH
from sporelm.models.grouped_tower import CLASS, POSITIONS
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.internvl import InternVLTower, InternVLTowerConfig

SCALE_FACTOR: Final = f"{VISION}projector.scale_factor"
MIN_TILES_KEY, MAX_TILES_KEY = f"{VISION}preproc_min_tiles", f"{VISION}preproc_max_tiles"
# Means and standard deviations of ImageNet's channels, with which all InternViTs were trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@register_tower
class InternVLGguf(VitGgufSchema):
    """`clip.projector_type` "internvl". Layers have layer norms if the file has their biases, else RMS norms."""

    architecture = InternVLTower
    projectors = ("internvl",)
    tensors = {
        **VIT_TENSORS,
        CLASS: StoredAs("v.class_embd", LeadingOnes()),
        POSITIONS: StoredAs("v.position_embd.weight", LeadingOnes()),
        **{f"layers.{{}}.attn_{name}_norm.weight": f"v.blk.{{}}.attn_{name}_norm.weight" for name in "qk"},
        "layers.{}.attn_scale.weight": "v.blk.{}.ls1.weight",
        "layers.{}.ffn_scale.weight": "v.blk.{}.ls2.weight",
        **{
            f"projector_{ours}.{part}": f"mm.model.mlp.{number}.{part}"
            for ours, number in (("norm", 0), ("up", 1), ("down", 3))
            for part in PARTS
        },
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        values, shape = ConfigValues(gguf.metadata, gguf.where), read_vit_metadata(gguf)
        side, merge = shape["image_size"] // shape["patch"], values.integer(SCALE_FACTOR, 1, MAX_MERGE, 2)
        check_squares(gguf.where, side, merge, SCALE_FACTOR)
        least = values.integer(MIN_TILES_KEY, 1, MAX_TILES, 1)
        # use_gelu means the exact GELU here, with which the models were trained; llama.cpp computes the tanh one.
        shape["activation"] = "gelu" if shape["activation"] == "gelu_tanh" else shape["activation"]
        return self.tower_config(
            **shape,
            grid_side=side,
            merge=merge,
            rms_norms="v.blk.{}.ln1.bias" not in gguf.templates,
            qk_eps=shape["eps"] if "v.blk.{}.attn_q_norm.weight" in gguf.templates else 0.0,
            attention_bias="v.blk.{}.attn_q.bias" in gguf.templates,
            out_width=values.integer(f"{VISION}projection_dim", 1, MAX_WIDTH),
            min_tiles=least,
            max_tiles=values.integer(MAX_TILES_KEY, least, MAX_TILES, max(12, least)),
        )

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, InternVLTowerConfig)
        _check_expressible(config)
        return {
            **vit_metadata(config, self.projectors[0]),
            SCALE_FACTOR: ("u32", config.merge),
            MIN_TILES_KEY: ("u32", config.min_tiles),
            MAX_TILES_KEY: ("u32", config.max_tiles),
            f"{VISION}image_mean": ("[f32]", list(MEAN)),
            f"{VISION}image_std": ("[f32]", list(STD)),
        }


def _check_expressible(config: InternVLTowerConfig) -> None:
    """Raise UnsupportedModel for a tower that files cannot describe."""
    settings: dict[str, tuple[Any, Any]] = {
        "ps_version": ("v1" if config.transposed else "v2", "v2"),
        "projector_hidden_act": (config.projector_act, "gelu"),
        "the epsilon of queries and keys": (config.qk_eps or config.eps, config.eps),
        "the number of positions": (config.grid_side, config.image_size // config.patch),
        "use_thumbnail": (config.has_thumbnail or config.max_tiles == 1, True),
    }
    for name, (value, allowed) in settings.items():
        if value != allowed:
            raise UnsupportedModel(
                f"vision tower: mmproj files cannot express {name} (got {value!r}; allowed {allowed!r})"
            )
