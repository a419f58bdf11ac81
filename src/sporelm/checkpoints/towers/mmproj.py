"""Metadata and tensor names that the mmproj files of most ViTs share.

Keys: llama.cpp's tools/mtmd/clip-impl.h, as its conversion/base.py (class MmprojModel) writes them. Names: gguf-py's
constants.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_mapping import TensorInfo
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.tower_schema import CLIP, MAX_IMAGE_SIZE, MIN_EPS, TowerGgufSchema, patch_kernel
from sporelm.checkpoints.transforms import FlattenKernel
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_HEADS, MAX_LAYERS, MAX_WIDTH
from sporelm.models.tower_config import TowerConfig

VISION: Final = "clip.vision."
USE_GELU, USE_SILU = "clip.use_gelu", "clip.use_silu"
LAYER_NAMES: Final = {
    **{f"attn_{part}": f"attn_{part}" for part in "qkv"},
    "attn_o": "attn_out",
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
}
VIT_TENSORS: Final[TensorTable] = {
    "patches.weight": StoredAs("v.patch_embd.weight", FlattenKernel(patch_kernel)),
    "patches.bias": "v.patch_embd.bias",
    "positions.weight": "v.position_embd.weight",
    **{
        f"layers.{{}}.{ours}.{part}": f"v.blk.{{}}.{stored}.{part}"
        for ours, stored in LAYER_NAMES.items()
        for part in PARTS
    },
}
_SWAPPED: Final = {"v.blk.{}.ffn_up": "v.blk.{}.ffn_down", "v.blk.{}.ffn_down": "v.blk.{}.ffn_up"}


def read_vit_metadata(gguf: GgufModel) -> dict[str, Any]:
    """Return the shape of a ViT as fields of `TowerConfig`. Raises ModelFileError for a missing or impossible value."""
    values = ConfigValues(gguf.metadata, gguf.where)
    patch = values.integer(f"{VISION}patch_size", 1, MAX_IMAGE_SIZE)
    width = values.integer(f"{VISION}embedding_length", 1, MAX_WIDTH)
    heads = values.integer(f"{VISION}attention.head_count", 1, MAX_HEADS)
    if width % heads:
        raise ModelFileError(f"{gguf.where}: {VISION}embedding_length is {width}; it must be whole heads, of {heads}")
    return {
        "width": width,
        "ffn": values.integer(f"{VISION}feed_forward_length", 1, MAX_WIDTH),
        "layers": values.integer(f"{VISION}block_count", 1, MAX_LAYERS),
        "heads": heads,
        "eps": values.number(f"{VISION}attention.layer_norm_epsilon", MIN_EPS, 1.0),
        "patch": patch,
        "image_size": values.integer(f"{VISION}image_size", patch, MAX_IMAGE_SIZE),
        "activation": read_activation(values),
    }


def read_activation(values: ConfigValues) -> str:
    """Return the activation of feed-forward blocks: llama.cpp's clip.cpp has flags for two, and defaults to CLIP's
    quick GELU. Its GELU is the tanh approximation."""
    if values.flag(USE_GELU, False):
        return "gelu_tanh"
    return "silu" if values.flag(USE_SILU, False) else "gelu_quick"


def vit_metadata(config: TowerConfig, projector: str) -> dict[str, MetadataEntry]:
    """Return the metadata of a file under full keys. Raises UnsupportedModel for an activation that files cannot
    express."""
    flags = {"gelu_tanh": USE_GELU, "gelu": USE_GELU, "silu": USE_SILU, "gelu_quick": ""}
    if config.activation not in flags:
        raise UnsupportedModel(
            f"vision tower: mmproj files cannot express its activation (got {config.activation}; allowed "
            f"{', '.join(flags)})"
        )
    flag = flags[config.activation]
    return {
        "general.architecture": ("str", CLIP),
        "general.type": ("str", "mmproj"),
        "clip.has_vision_encoder": ("bool", True),
        "clip.projector_type": ("str", projector),
        f"{VISION}projection_dim": ("u32", config.out_width),
        f"{VISION}image_size": ("u32", config.image_size),
        f"{VISION}patch_size": ("u32", config.patch),
        f"{VISION}embedding_length": ("u32", config.width),
        f"{VISION}feed_forward_length": ("u32", config.ffn),
        f"{VISION}block_count": ("u32", config.layers),
        f"{VISION}attention.head_count": ("u32", config.heads),
        f"{VISION}attention.layer_norm_epsilon": ("f32", config.eps),
        **({flag: ("bool", True)} if flag else {}),
    }


class VitGgufSchema(TowerGgufSchema):
    """mmproj files in which the names of the two feed-forward matrices may be swapped, as older converters of llama.cpp
    wrote them."""

    def for_file(self, names: Iterable[str]) -> Self:
        found = super().for_file(names)
        is_swapped = isinstance(names, Mapping) and has_swapped_ffn(names)
        return found.with_attributes(tensors=swap_ffn(found.tensors)) if is_swapped else found


def has_swapped_ffn(tensors: Mapping[str, TensorInfo]) -> bool:
    """Return whether the matrices of feed-forward blocks have swapped names. clip.cpp checks the shapes, too."""
    down, norm = (tensors.get(f"v.blk.0.{name}.weight") for name in ("ffn_down", "ln1"))
    return down is not None and norm is not None and down.shape[0] != norm.shape[0] == down.shape[-1]


def swap_ffn(table: TensorTable) -> TensorTable:
    """Return a table with the names of such a file."""

    def swap(name: str) -> str:
        front, _, part = name.rpartition(".")
        return f"{_SWAPPED.get(front, front)}.{part}"

    return {key: swap(row) if isinstance(row, str) else row for key, row in table.items()}
