"""The ViT of CLIP and SigLIP in Hugging Face folders: its keys, and the names of its tensors."""

from collections.abc import Iterable
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.rope_writing import to_shortest_float
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE, TowerHfSchema, patch_kernel, read_vit_shape
from sporelm.checkpoints.transforms import FlattenKernel, Unflatten
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.vit_tower import CLASS, VitConfig

CLIP_VISION, SIGLIP_VISION = "clip_vision_model", "siglip_vision_model"
# Defaults of transformers' CLIPVisionConfig and SiglipVisionConfig.
CLIP_DEFAULTS: Final[dict[str, Any]] = {
    "model_type": CLIP_VISION,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "layer_norm_eps": 1e-5,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
}
SIGLIP_DEFAULTS: Final[dict[str, Any]] = CLIP_DEFAULTS | {
    "model_type": SIGLIP_VISION,
    "layer_norm_eps": 1e-6,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
}
VISION_DEFAULTS: Final = {CLIP_VISION: CLIP_DEFAULTS, SIGLIP_VISION: SIGLIP_DEFAULTS}
ACTIVATIONS: Final = {"quick_gelu": "gelu_quick", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
ACTIVATION_NAMES: Final = {ours: stored for stored, ours in ACTIVATIONS.items()}
LAYER_NAMES: Final = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_o": "self_attn.out_proj",
    "attn_norm": "layer_norm1",
    "ffn_norm": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


def layer_tensors(prefix: str) -> TensorTable:
    """Return the tensors of the layers of CLIP and SigLIP, whose names begin with `prefix`."""
    return {
        f"layers.{{}}.{ours}.{part}": f"{prefix}encoder.layers.{{}}.{stored}.{part}"
        for ours, stored in LAYER_NAMES.items()
        for part in PARTS
    }


def vit_tensors(prefix: str) -> TensorTable:
    """Return the tensors of the whole ViT, up to its last layer."""
    return {
        CLASS: StoredAs(f"{prefix}embeddings.class_embedding", Unflatten()),
        "patches.weight": StoredAs(f"{prefix}embeddings.patch_embedding.weight", FlattenKernel(patch_kernel)),
        "patches.bias": f"{prefix}embeddings.patch_embedding.bias",
        "positions.weight": f"{prefix}embeddings.position_embedding.weight",
        **{f"first_norm.{part}": f"{prefix}pre_layrnorm.{part}" for part in PARTS},
        **layer_tensors(prefix),
    }


class ClipHfSchema(TowerHfSchema):
    """Folders whose tower is the ViT of CLIP or SigLIP. It may be truncated after one of its layers; the tensors
    of later ones are not read."""

    def find_ignored(self, names: Iterable[str], config: ModelConfig | None = None) -> set[str]:
        names = list(names)
        found = super().find_ignored(names, config)
        if config is None:
            return found
        kept = {str(layer) for layer in range(config.layers)}
        for name in names:
            _, marker, rest = name.partition("encoder.layers.")
            if marker and rest.partition(".")[0] not in kept:
                found.add(name)
        return found


def read_vit(values: ConfigValues, kind: str = CLIP_VISION, others: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of `VitConfig` in a `vision_config`.

    kind     the default model_type
    others   other model types that are supported

    Raises UnsupportedModel for an unsupported model_type, ModelFileError for a missing or impossible value.
    """
    allowed = (kind, *others)
    found = values.get("model_type") or kind
    if found not in allowed:
        raise UnsupportedModel(
            f"{values.where}: model_type is not supported (got {format_value(found)}; allowed {', '.join(allowed)})"
        )
    defaults = VISION_DEFAULTS[found]
    shape = read_vit_shape(values, defaults)
    check_heads(values.where, shape["width"], shape["heads"])
    patch = values.integer("patch_size", 1, MAX_IMAGE_SIZE, defaults["patch_size"])
    size = values.integer("image_size", patch, MAX_IMAGE_SIZE, max(patch, defaults["image_size"]))
    if values.integer("num_channels", 1, MAX_IMAGE_SIZE, 3) != 3:
        got = format_value(values.get("num_channels"))
        raise UnsupportedModel(f"{values.where}: num_channels is not supported (got {got}; allowed 3)")
    return {
        **shape,
        "patch": patch,
        "image_size": size,
        "activation": read_activation(values, "hidden_act", defaults["hidden_act"]),
        "has_class_row": found == CLIP_VISION,
    }


def vit_json(config: VitConfig) -> dict[str, Any]:
    """Return the `vision_config` of a ViT."""
    kind = CLIP_VISION if config.has_class_row else SIGLIP_VISION
    return {
        "model_type": kind,
        **({} if config.has_class_row else {"vision_use_head": False}),
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_channels": config.channels,
        "layer_norm_eps": to_shortest_float(config.eps),
        "image_size": config.image_size,
        "patch_size": config.patch,
        "hidden_act": ACTIVATION_NAMES[config.activation],
    }


def check_heads(where: str, width: int, heads: int) -> None:
    """Raise ModelFileError unless the width is a multiple of the number of heads."""
    if width % heads:
        raise ModelFileError(
            f"{where}: hidden_size must be a multiple of num_attention_heads (got {width} and {heads})"
        )


def read_activation(values: ConfigValues, key: str, default: str) -> str:
    """Return the activation that a key names. Raises UnsupportedModel for an unsupported one."""
    name = values.text(key, default)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(f"{values.where}: {key} is not supported (got {format_value(name)}; allowed {known})")
    return ACTIVATIONS[name]


def spell_prefix(prefix: str, fronts: tuple[str, ...], inner: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return alternatives of a prefix of names for `TensorSchema.prefix_variants`: each front, with each inner part."""
    return tuple((prefix, f"{front}{prefix}{part}") for front in fronts for part in inner if front or part)


def spell_names(
    prefix: str, fronts: tuple[str, ...], inner: tuple[str, ...], names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return these names with each spelling of a prefix."""
    return tuple(f"{front}{prefix}{part}{name}" for front in fronts for part in inner for name in names)
