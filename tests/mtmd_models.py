"""Tiny models of each family whose two GGUF files llama.cpp's libmtmd reads too, with the pictures and the prompts of a
comparison. They follow what libmtmd takes as given: tables of 70 x 70 positions, sizes of pictures, names of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vision_folders import token_ids

MARKER = "<__media__>"  # of a picture in libmtmd's prompts
# Mistakes of libmtmd. The class embedding is the last row of a tile, with the position of the last patch; each patch
# has the position of the one before it, and LLaVA's tower returns the class embedding's row instead of the first
# patch's (llama.cpp's issue 25814).
CLASS_LAST = "class last"
# Patches of MiniCPM-Llama3-V 2.5 have positions in two dimensions, where the authors' code has them in one row.
IN_A_GRID = "in a grid"
Files = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PeerCase:
    """A tiny model.

    config, files   its config.json, and the settings of its processor
    tokens          control tokens besides those of turns
    placeholder     of a picture in our prompts
    front           text in front of it
    theirs          what stands for the picture in libmtmd's prompts, which writes the tokens around it itself
    exact, other    (width, height) of pictures that need no resizing, and that do
    is_rows_only    their text models read the rows differently, so that only rows can be compared
    same_rows       of the first ones, if their numbers differ; 0: all
    mistake         of libmtmd: CLASS_LAST or IN_A_GRID
    """

    config: Mapping[str, Any]
    files: Files
    tokens: tuple[str, ...]
    placeholder: str
    exact: tuple[int, int]
    other: tuple[int, int]
    front: str = "See "
    theirs: str = MARKER
    is_rows_only: bool = False
    same_rows: int = 0
    mistake: str = ""


TEXT: dict[str, Any] = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
VIT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
CLIP_VIT = VIT | {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, "projection_dim": 8}
SIGLIP_VIT = VIT | {"model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14}
IMAGE = ("<image>",)
PROCESSOR, WHOLE = "preprocessor_config.json", "processor_config.json"
CENTER = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 56}, "crop_size": 56}
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SQUARE = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 56, "width": 56}, **HALVES}


def llava(vision: Mapping[str, Any], settings: Mapping[str, Any], **changes: Any) -> PeerCase:
    """LLaVA with one of its towers."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "vision_config": vision,
        "text_config": TEXT | {"model_type": "llama"},
        "image_token_index": token_ids(IMAGE)["<image>"],
        **changes,
    }
    files: Files = {PROCESSOR: settings, WHOLE: {"patch_size": 14}}
    is_clip = vision["model_type"] == "clip_vision_model"
    return PeerCase(config, files, IMAGE, "<image>", (56, 56), (90, 50), mistake=CLASS_LAST * is_clip)


def llava_next() -> PeerCase:
    """LLaVA-NeXT: libmtmd shows a picture as a whole only, or as its tiles, and ends no lines."""
    pinpoints = [[56, 112], [112, 56], [112, 112]]
    config = {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "model_type": "llava_next",
        "vision_config": SIGLIP_VIT,
        "text_config": TEXT | {"model_type": "llama"},
        "image_token_index": token_ids(IMAGE)["<image>"],
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "image_grid_pinpoints": pinpoints,
    }
    settings = {"size": {"height": 56, "width": 56}, "crop_size": {"height": 56, "width": 56}, **HALVES}
    files: Files = {PROCESSOR: settings | {"image_grid_pinpoints": pinpoints}, WHOLE: {"patch_size": 14}}
    return PeerCase(config, files, IMAGE, "<image>", (56, 56), (90, 50), is_rows_only=True, same_rows=16)


def gemma3() -> PeerCase:
    """Gemma 3, whose line breaks around a picture libmtmd leaves to the prompt."""
    tokens = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
    ids = token_ids(tokens)
    text = TEXT | {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "vision_config": SIGLIP_VIT,
        "text_config": text | {"layer_types": ["sliding_attention", "full_attention"]},
        "mm_tokens_per_image": 4,
        "boi_token_index": ids[tokens[0]],
        "image_token_index": ids[tokens[1]],
        "eoi_token_index": ids[tokens[2]],
    }
    files: Files = {PROCESSOR: {"size": {"height": 56, "width": 56}, **HALVES}, WHOLE: {"image_seq_length": 4}}
    return PeerCase(config, files, tokens, tokens[0], (56, 56), (90, 50), theirs=f"\n\n{MARKER}\n\n")


QWEN_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
QWEN_TOWERS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2vl": ("Qwen2VL", "qwen2_vl", {"depth": 3, "embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2}),
    "qwen25vl": (
        "Qwen2_5_VL",
        "qwen2_5_vl",
        {"depth": 4, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 64, "window_size": 112}
        | {"fullatt_block_indexes": [1, 3]},
    ),
    "qwen3vl": (
        "Qwen3VL",
        "qwen3_vl",
        {"depth": 3, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 64}
        | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 36},
    ),
}


def qwen(name: str) -> PeerCase:
    """Qwen's vision models, whose text model rotates by three positions."""
    title, kind, vision = QWEN_TOWERS[name]
    ids = token_ids(QWEN_TOKENS)
    # llama.cpp does not rotate pairs of Qwen3-VL past three times their section.
    sections = [3, 3, 2] if name == "qwen3vl" else [2, 3, 3]
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    text = TEXT | {"rope_theta": 10000.0, "rope_scaling": rope, "model_type": f"{kind}_text"}
    text |= {"head_dim": 16, "rope_parameters": rope | {"mrope_interleaved": True}} if name == "qwen3vl" else {}
    config = {
        "architectures": [f"{title}ForConditionalGeneration"],
        "model_type": kind,
        "vision_config": {"num_heads": 4, "patch_size": 14, **vision},
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        **({"text_config": text} if name == "qwen3vl" else text),
        "tie_word_embeddings": False,
    }
    config["model_type"] = kind
    area = 28 * 28
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    settings |= {"temporal_patch_size": 2, "size": {"shortest_edge": 8 * area, "longest_edge": 4096 * area}}
    placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    return PeerCase(config, {PROCESSOR: settings}, QWEN_TOKENS, placeholder, (168, 140), (150, 100))


def idefics3() -> PeerCase:
    """SmolVLM with two tiles and the whole picture. libmtmd cuts pictures of one tile, too."""
    tags = tuple(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))
    tokens = ("<fake_token_around_image>", "<image>", "<global-img>", *tags, "\n\n")
    config = {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "vision_config": VIT | {"image_size": 56, "patch_size": 14, "model_type": "smolvlm_vision"},
        "text_config": TEXT | {"model_type": "llama"},
        "scale_factor": 2,
        "image_token_id": token_ids(tokens)["<image>"],
        "tie_word_embeddings": False,
    }
    settings = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
    return PeerCase(config, {PROCESSOR: settings, WHOLE: {"image_seq_len": 4}}, tokens, "<image>", (112, 56), (90, 81))


def internvl() -> PeerCase:
    """InternVL under its authors' class, with the norms of the 300M's tower. (libmtmd knows the other by its size.)"""
    vision = VIT | {"image_size": 56, "patch_size": 14, "hidden_act": "gelu", "layer_norm_eps": 1e-6}
    vision |= {"norm_type": "layer_norm", "qkv_bias": True, "qk_normalization": False}
    tokens = ("<img>", "</img>", "<IMG_CONTEXT>")
    config = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "vision_config": vision,
        "llm_config": TEXT | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "max_dynamic_patch": 4,
    }
    return PeerCase(config, {PROCESSOR: {}}, tokens, "<IMG_CONTEXT>", (56, 56), (150, 70), mistake=CLASS_LAST)


def minicpmv(version: str, **text: Any) -> PeerCase:
    """MiniCPM-V without the tags of numbers, which libmtmd does not write."""
    tokens = ("<image>", "</image>", "<slice>", "</slice>", "<unk>")
    vision = VIT | {"image_size": 980, "patch_size": 14, "model_type": "siglip"}
    config = TEXT | {
        "architectures": ["MiniCPMV"],
        "model_type": "minicpmv",
        "version": version,
        "hidden_size": 128,
        "query_num": 64 if version != "2.5" else 96,
        "drop_vision_last_layer": False,
        "vision_config": vision,
        "image_size": 56,
        "slice_config": {"max_slice_nums": 9, "patch_size": 14},
        **text,
    }
    settings = {"max_slice_nums": 9, "scale_resolution": 56, "patch_size": 14, "use_image_id": False}
    settings |= {"image_feature_size": config["query_num"]}
    return PeerCase(
        config,
        {PROCESSOR: settings},
        tokens,
        "(<image>./</image>)",
        (56, 56),
        (90, 50),
        mistake=IN_A_GRID * (version == "2.5"),
    )


def cogvlm() -> PeerCase:
    """The first CogVLM: libmtmd counts a position for each row, and takes the last one for a patch."""
    vision = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_heads": 4, "hidden_act": "gelu"}
    vision |= {"patch_size": 14, "image_size": 56, "num_positions": 17, "in_channels": 3, "layer_norm_eps": 1e-6}
    text = {name: value for name, value in TEXT.items() if name != "num_key_value_heads"}
    config = text | {"architectures": ["CogVLMForCausalLM"], "hidden_act": "silu", "vision_config": vision}
    config |= {"tie_word_embeddings": False}
    row = "<IMAGE_TOKEN>"
    return PeerCase(config, {}, (), row, (56, 56), (90, 50), is_rows_only=True, mistake=CLASS_LAST)


CASES: Mapping[str, PeerCase] = {
    "llava-clip": llava(CLIP_VIT, CENTER),
    "llava-siglip": llava(SIGLIP_VIT, SQUARE, vision_feature_layer=-1, vision_feature_select_strategy="full"),
    "llava-several-layers": llava(CLIP_VIT, CENTER, vision_feature_layer=[1, -2]),
    "llava-next": llava_next(),
    "gemma3": gemma3(),
    **{name: qwen(name) for name in QWEN_TOWERS},
    "smolvlm": idefics3(),
    "internvl": internvl(),
    "cogvlm": cogvlm(),
    "minicpmv-2.5": minicpmv("2.5"),
    "minicpmv-2.6": minicpmv("2.6"),
    "minicpmv-4.0": minicpmv("4.0"),
    "minicpmv-4.5": minicpmv("4.5", head_dim=32),
}
