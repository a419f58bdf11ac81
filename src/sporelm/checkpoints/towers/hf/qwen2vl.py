"""Hugging Face folders of Qwen2-VL: its vision tower."""

from math import inf, isclose, nextafter
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE, FolderLayout, TowerHfSchema, inner_values
from sporelm.checkpoints.transforms import Shape, TakeFrame, TakeRows
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_HEADS, MAX_LAYERS, MAX_WIDTH
from sporelm.models.tower import Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.qwen2vl import FRAMES, Qwen2VLTower

EPS: Final = 1e-6  # of all norms; folders have no key for it
DEFAULT_THETA: Final = 1e4
MAX_MERGE: Final = 8  # patches of a side
MAX_THETA: Final = 1e12
QWEN_TOKENS: Final = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
QWEN_NAMES: Final = ("visual.", "model.visual.")
ACTIVATIONS: Final = {"quick_gelu": "gelu_quick", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}


def frames_kernel(config: TowerConfig) -> Shape:
    """Return the shape of one output's weight in the convolution over the frames of patches."""
    return (config.channels, config.frames, config.patch, config.patch)


# The patches of two frames, and attention.
QWEN_TENSORS: Final[TensorTable] = {
    "patches.weight": StoredAs("visual.patch_embed.proj.weight", TakeFrame(0, frames_kernel)),
    "later_patches.weight": StoredAs("visual.patch_embed.proj.weight", TakeFrame(1, frames_kernel)),
    **{
        f"layers.{{}}.attn_{name}.{part}": StoredAs(f"visual.blocks.{{}}.attn.qkv.{part}", TakeRows(rows))
        for name, rows in QKV_ROWS.items()
        for part in PARTS
    },
    **{f"layers.{{}}.attn_o.{part}": f"visual.blocks.{{}}.attn.proj.{part}" for part in PARTS},
}


def read_qwen_shape(values: ConfigValues, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a tower that the folders of all Qwen vision models share.

    Raises UnsupportedModel for another temporal patch size or activation.
    """
    layers = values.integer("depth", 1, MAX_LAYERS, defaults["depth"])
    heads = values.integer("num_heads", 1, MAX_HEADS, defaults["num_heads"])
    frames = values.get("temporal_patch_size", FRAMES)
    if frames != FRAMES:
        raise UnsupportedModel(
            f"{values.where}: temporal_patch_size is not supported (got {format_value(frames)}; allowed {FRAMES})"
        )
    activation = values.text("hidden_act", defaults["hidden_act"])
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(
            f"{values.where}: hidden_act is not supported (got {format_value(activation)}; allowed {known})"
        )
    return {
        "layers": layers,
        "heads": heads,
        "eps": EPS,
        "rope_theta": inner_values(values, "rope_parameters").number("rope_theta", 1.0, MAX_THETA, DEFAULT_THETA),
        "patch": values.integer("patch_size", 1, MAX_IMAGE_SIZE, defaults["patch_size"]),
        "channels": values.integer("in_channels", 1, 4, 3),
        "frames": FRAMES,
        "merge": values.integer("spatial_merge_size", 1, MAX_MERGE, 2),
        "activation": ACTIVATIONS[activation],
    }


def qwen_json(config: TowerConfig) -> dict[str, Any]:
    """Return the keys of a `vision_config` that the folders of all Qwen vision models share.

    Raises UnsupportedModel for values that transformers hard-codes differently.
    """
    for what, value, allowed in (("eps", config.eps, EPS), ("rope_theta", config.rope_theta, DEFAULT_THETA)):
        if not isclose(value, allowed, rel_tol=1e-6):
            raise UnsupportedModel(f"vision tower: folders have no key for {what} (got {value:g}; allowed {allowed:g})")
    names = {ours: stored for stored, ours in ACTIVATIONS.items()}
    return {
        "depth": config.layers,
        "num_heads": config.heads,
        "patch_size": config.patch,
        "in_channels": config.channels,
        "temporal_patch_size": config.frames,
        "spatial_merge_size": config.merge,
        "hidden_act": names[config.activation],
    }


def check_heads(where: str, width: int, heads: int) -> None:
    """Raise UnsupportedModel unless the head dimension is a multiple of four: rotary pairs for rows and for columns."""
    if width % (4 * heads):
        raise UnsupportedModel(
            f"{where}: {heads} heads of a width of {width} are not supported: each must be a multiple of 4"
        )


@register_tower
class Qwen2VLTowerHf(TowerHfSchema):
    """`Qwen2VLForConditionalGeneration`."""

    architecture: type[Tower[Any]] = Qwen2VLTower
    layout = FolderLayout("Qwen2VLForConditionalGeneration", "qwen2_vl", "", QWEN_NAMES, QWEN_TOKENS)
    prefixes = ("visual.", "model.visual.")
    optional_prefixes = ("model.",)
    ignored_tensors = ("visual.rotary_pos_emb.inv_freq", "model.visual.rotary_pos_emb.inv_freq")
    tensors = QWEN_TENSORS | {
        **{
            f"layers.{{}}.{ours}.{part}": f"visual.blocks.{{}}.{stored}.{part}"
            for ours, stored in (
                ("attn_norm", "norm1"),
                ("ffn_norm", "norm2"),
                ("ffn_up", "mlp.fc1"),
                ("ffn_down", "mlp.fc2"),
            )
            for part in PARTS
        },
        **{
            f"projector_{ours}.{part}": f"visual.merger.{stored}.{part}"
            for ours, stored in (("norm", "ln_q"), ("up", "mlp.0"), ("down", "mlp.2"))
            for part in PARTS
        },
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision = inner_values(values, "vision_config")
        width = vision.integer("embed_dim", 1, MAX_WIDTH, 1280)
        shape = read_qwen_shape(vision, {"depth": 32, "num_heads": 16, "patch_size": 14, "hidden_act": "quick_gelu"})
        check_heads(vision.where, width, shape["heads"])
        return self.tower_config(
            **shape,
            width=width,
            ffn=int(width * vision.number("mlp_ratio", 1 / width, MAX_WIDTH / width, 4)),
            out_width=vision.integer("hidden_size", 1, MAX_WIDTH, 3584),
        )

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        ratio = config.ffn / config.width
        if int(config.width * ratio) != config.ffn:  # the quotient was rounded down
            ratio = nextafter(ratio, inf)
        return {
            "vision_config": {
                **qwen_json(config),
                "embed_dim": config.width,
                "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
                "hidden_size": config.out_width,
            }
        }
