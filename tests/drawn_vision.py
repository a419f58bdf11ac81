"""Folders of tiny models that see, with drawn weights: written by the package's own schemas, without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from hf_folders import stored, write_safetensors
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.multimodal_text import find_multimodal_class, select_text_model, with_multimodal_names
from sporelm.checkpoints.schema_registry import find_hf_schema
from sporelm.checkpoints.towers.open_tower import find_tower, tower_hf_schema
from sporelm.models import build
from sporelm.models.tower_registry import build_tower
from sporelm.quant import F32, QuantFormat
from vision_folders import token_ids, write_vision_tokenizer

QWEN_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_SETTINGS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "min_pixels": 28 * 28 * 4,
    "max_pixels": 28 * 28 * 40,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.3, 0.25, 0.2],
}
QWEN2VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]},
    "tie_word_embeddings": False,
    "vocab_size": 270,
    "image_token_id": token_ids(QWEN_TOKENS)["<|image_pad|>"],
    "vision_config": {
        "depth": 2,
        "embed_dim": 40,
        "hidden_size": 48,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers that are the same everywhere, by a tensor's name; vectors named after norms lie near 1."""
    random = np.random.RandomState(crc32(name.encode())).random_sample(shape) * 2 - 1
    if len(shape) == 1:
        return ((1 if "norm" in name and name.endswith("weight") else 0) + 0.3 * random).astype(np.float32)
    return (random * np.sqrt(3 / np.prod(shape[1:]))).astype(np.float32)


def rename(name: str, prefixes: Mapping[str, str]) -> str:
    """Return a tensor's name with another prefix."""
    old = next((each for each in prefixes if name.startswith(each)), "")
    return prefixes.get(old, "") + name.removeprefix(old)


def write_drawn_folder(
    folder: Path,
    config: Mapping[str, Any],
    tokens: tuple[str, ...],
    placeholder: str,
    files: Mapping[str, Mapping[str, Any]],
    number_format: type[QuantFormat] = F32,
    text_prefixes: Mapping[str, str] | None = None,
) -> Path:
    """Write the folder of a config.json, with a tokenizer and further JSON files such as preprocessor_config.json.

    number_format   of the weights: F32, F16 or BF16
    text_prefixes   prefixes of the text model's tensor names in its schema -> those in the file, where they differ
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    where = str(folder / "config.json")
    text = select_text_model(dict(config), where)
    schema = find_hf_schema(text["architectures"][0], where)
    text_config = schema.config_from_json(schema.complete_values(text, where))
    if multimodal_class := find_multimodal_class(config):
        schema = with_multimodal_names(schema, multimodal_class)
    shapes = {
        rename(name, text_prefixes or {}): shape
        for name, shape in schema.resolve(build(text_config).params(), text_config).source_shapes().items()
    }
    family = find_tower(folder)
    assert family is not None
    tower_schema = tower_hf_schema(family.module)
    tower_config = tower_schema.config_from_json(ConfigValues(dict(config), where))
    shapes |= tower_schema.resolve(build_tower(tower_config).params(), tower_config).source_shapes()
    write_safetensors(
        folder / "model.safetensors",
        {name: (number_format.name, shape, stored(draw(name, shape), number_format)) for name, shape in shapes.items()},
    )
    write_vision_tokenizer(folder, tokens, placeholder)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder


def write_qwen2vl(folder: Path, **changes: Any) -> Path:
    """Write a tiny Qwen2-VL; `changes` replace keys of its config.json."""
    return write_drawn_folder(
        folder, {**QWEN2VL, **changes}, QWEN_TOKENS, QWEN_PICTURE, {"preprocessor_config.json": QWEN_SETTINGS}
    )
