"""Tiny Qwen2-VL, Qwen2.5-VL and Qwen3-VL of transformers, with random weights: two configurations of each, of odd
shapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.models.tower_inputs import ImageInput
from vision_folders import draw_weights, token_ids, write_vision_folder

IMAGE_PAD = "<|image_pad|>"
CONTROL_TOKENS = ("<|vision_start|>", "<|vision_end|>", IMAGE_PAD, "<|video_pad|>")
IDS = token_ids(CONTROL_TOKENS)
PLACEHOLDER = f"<|vision_start|>{IMAGE_PAD}<|vision_end|>"
MEAN, STD = [0.48, 0.45, 0.4], [0.27, 0.26, 0.28]

# The text model, by its width: heads of 20, or of 16.
ODD_TEXT: dict[str, Any] = {"vocab_size": 267, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3}
ODD_TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
EVEN_TEXT = ODD_TEXT | {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 262}
TEXTS = (ODD_TEXT, EVEN_TEXT)
SECTIONS = {"qwen2vl": ([4, 3, 3], [2, 3, 3]), "qwen25vl": ([2, 5, 3], [4, 2, 2]), "qwen3vl": ([4, 3, 3], [3, 3, 2])}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}

# The vision tower: heads of 16 or 8, patches of 6, 5 or 7 pixels.
SMALL, OTHER = {"depth": 3, "num_heads": 3, "patch_size": 6}, {"depth": 4, "num_heads": 5, "patch_size": 5}
TOWERS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2vl": (
        SMALL | {"embed_dim": 48, "mlp_ratio": 2},
        OTHER | {"embed_dim": 40, "mlp_ratio": 3, "spatial_merge_size": 3, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "qwen25vl": (
        SMALL | {"hidden_size": 48, "intermediate_size": 70, "window_size": 24, "fullatt_block_indexes": [1]},
        OTHER | {"hidden_size": 40, "intermediate_size": 33, "window_size": 34, "fullatt_block_indexes": [1, 3]},
    ),
    "qwen3vl": (
        SMALL | {"hidden_size": 48, "intermediate_size": 70, "num_position_embeddings": 25}
        | {"deepstack_visual_indexes": [0, 2]},
        OTHER | {"hidden_size": 40, "intermediate_size": 33, "num_position_embeddings": 16, "spatial_merge_size": 3}
        | {"deepstack_visual_indexes": [1], "patch_size": 7},
    ),
}  # fmt: skip
CLASSES = {"qwen2vl": "Qwen2VL", "qwen25vl": "Qwen2_5_VL", "qwen3vl": "Qwen3VL", "qwen3vlmoe": "Qwen3VLMoe"}
FAMILIES = tuple(TOWERS)


def tiny_model(family: str, number: int, *, has_experts: bool = False) -> Any:
    """Return configuration 0 or 1 of a family, in evaluation mode. `has_experts`: Qwen3-VL's mixture."""
    import transformers

    name = CLASSES[family + "moe" * has_experts]
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": SECTIONS[family][number]}
    text = TEXTS[number] | {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": IDS["<|im_end|>"]}
    if family == "qwen3vl":
        text["head_dim"] = (20, 16)[number]
    text |= EXPERTS if has_experts else {}
    tower = dict(TOWERS[family][number])
    tower["hidden_size" if family == "qwen2vl" else "out_hidden_size"] = text["hidden_size"]
    ids = {"image_token_id": IDS[IMAGE_PAD], "video_token_id": IDS["<|video_pad|>"]}
    ids |= {"vision_start_token_id": IDS["<|vision_start|>"], "vision_end_token_id": IDS["<|vision_end|>"]}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=tower, **ids)
    return draw_weights(getattr(transformers, f"{name}ForConditionalGeneration")(config), seed=number)


def write_folder(folder: Path, model: Any, min_rows: int = 2, max_rows: int = 40) -> Path:
    """Write a model with its tokenizer and its processor, whose pictures have about this many rows."""
    vision = model.config.vision_config
    area = (vision.patch_size * vision.spatial_merge_size) ** 2
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": min_rows * area, "longest_edge": max_rows * area},
        "image_mean": MEAN,
        "image_std": STD,
    }
    return write_vision_folder(folder, model, CONTROL_TOKENS, PLACEHOLDER, {"preprocessor_config.json": processor})


def draw_image(config: Any, grid: tuple[int, int, int], seed: int = 0) -> ImageInput:
    """Return random patches of a grid (time, height, width), in squares that are merged."""
    count, merge = int(np.prod(grid)), config.merge
    patches = np.random.default_rng(seed).normal(0, 1, (count, config.patch_values)).astype(np.float32)
    return ImageInput(patches, (grid,), count // merge**2)


def expected_rows(model: Any, image: ImageInput) -> np.ndarray:
    """Return the rows of an image by transformers, with DeepStack's levels beside them: [rows, columns]."""
    import torch

    with torch.no_grad():
        found = model.model.get_image_features(torch.from_numpy(image.patches), torch.tensor(image.grids))
    parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
    return np.concatenate([torch.cat(list(part)).numpy() for part in parts], axis=1)
