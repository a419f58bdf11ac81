"""Folders of InternVL under the names of the authors' class, InternVLChatModel, for tests."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

CLASSES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
SIZES = ("intermediate_size", "num_hidden_layers", "hidden_act")
PARTS = ("weight", "bias")
LAYER_NAMES = {
    "attention.projection_layer": "attn.proj",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
PROJECTOR = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}


def write_chat_folder(place: Path, folder: Path, **changes: Any) -> Path:
    """The same weights under the names of the authors' class."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    inner = {key: vision[key] for key in (*SIZES, "hidden_size", "num_attention_heads", "norm_type", "layer_norm_eps")}
    inner |= {"image_size": vision["image_size"][0], "patch_size": vision["patch_size"][0]}
    inner |= {"qkv_bias": vision["attention_bias"], "qk_normalization": vision["use_qk_norm"]}
    outer = {"architectures": ["InternVLChatModel"], "vision_config": inner, "downsample_ratio": 0.5}
    text = config["text_config"] | {"tie_word_embeddings": config["tie_word_embeddings"]}
    outer |= {"llm_config": {"architectures": [CLASSES[text["model_type"]]], **text}, "ps_version": "v2", **changes}
    shutil.copytree(folder, place)
    (place / "config.json").write_text(json.dumps(outer))
    save_file(
        chat_tensors(load_file(folder / "model.safetensors"), vision["num_hidden_layers"]), place / "model.safetensors"
    )
    return place


def chat_tensors(tensors: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    tower = {
        name.removeprefix("model.").removeprefix("vision_tower."): values
        for name, values in tensors.items()
        if "vision_tower" in name
    }
    found = {
        "embeddings.class_embedding": tower["embeddings.cls_token"],
        "embeddings.position_embedding": tower["embeddings.position_embeddings"],
        **{f"embeddings.patch_embedding.{p}": tower[f"embeddings.patch_embeddings.projection.{p}"] for p in PARTS},
    }
    for layer in range(layers):
        old, new = f"encoder.layer.{layer}.", f"encoder.layers.{layer}."
        for part in PARTS:
            if f"{old}attention.q_proj.{part}" in tower:
                each = [tower[f"{old}attention.{name}_proj.{part}"] for name in "qkv"]
                found[f"{new}attn.qkv.{part}"] = np.concatenate(each)
        for stored, ours in LAYER_NAMES.items():
            for part in PARTS:
                if f"{old}{stored}.{part}" in tower:
                    found[f"{new}{ours}.{part}"] = tower[f"{old}{stored}.{part}"]
        found |= {f"{new}ls{number}": tower[f"{old}lambda_{number}"] for number in (1, 2)}
    found = {f"vision_model.{name}": values for name, values in found.items()}
    for stored, ours in PROJECTOR.items():
        names = [name for name in tensors if f"multi_modal_projector.{stored}." in name]
        found |= {f"{ours}.{name.rpartition('.')[2]}": tensors[name] for name in names}
    for name, values in tensors.items():
        if name.startswith("language_model."):  # as transformers writes them, whatever its modules are called
            found[name] = values
    return {name: np.ascontiguousarray(values) for name, values in found.items()}
