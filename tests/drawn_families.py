"""Tiny models of every family that sees, as folders of drawn weights, and the prompts that are compared.

Their configurations hold what differs from the defaults of their classes, so the defaults are compared, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clip_folders import CLIP_SETTINGS, CLIP_TEXT, SIGLIP_SETTINGS, SIGLIP_TEXT
from clip_folders import VIT as ENCODER_VIT
from drawn_vision import draw, rename, write_drawn_folder
from hf_folders import stored, write_safetensors
from llava_models import CLIP, LLAMA, ODD_VIT, QWEN, SIGLIP, TEXT, VIT
from qwen_vision import CLASSES, CONTROL_TOKENS, EXPERTS, IMAGE_PAD, MEAN, SECTIONS, STD, TEXTS, TOWERS
from qwen_vision import IDS as QWEN_IDS
from qwen_vision import PLACEHOLDER as QWEN_PICTURE
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.towers.open_tower import tower_hf_schema
from sporelm.models.tower_registry import build_tower
from sporelm.quant import F32
from vision_folders import token_ids

Values = dict[str, Any]
PICTURE = "PICTURE"  # in prompts
# A prompt, and the sizes (width, height) of its pictures: of one pixel, very long, several; first, last and alone.
PROMPTS: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("PICTUREab", ((1, 1),)),
    ("aPICTURE", ((200, 3),)),
    ("PICTURE", ((2, 90),)),
    ("PICTUREa\nPICTUREbcPICTURE", ((50, 30), (42, 42), (16, 9))),
    ("abPICTUREc", ((150, 90),)),
)
SIZES = ((1, 1), (200, 3), (2, 90), (42, 42), (91, 130))  # of the pictures whose pixels are compared
EACH_TOKEN = 11  # of the vocabulary that is compared
NUM_POSITIONS = 6
NUM_PROBES = 13


# Prefixes of the text model's names in published folders, for schemas with those of the text model alone.
INNER = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
PUBLISHED_PREFIXES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("llava", "llava_next", "gemma3", "internvl"), INNER),
    "idefics3": {"model.": "model.text_model."},
    "minicpmv": {"model.": "llm.model.", "lm_head.": "llm.lm_head."},
}
CLIP_PREFIXES = {"text_model.head.": "text_projection."}


class DrawnFamily(NamedTuple):
    """A tiny model.

    module   its family in `supported_towers`
    config   of config.json
    tokens   the control tokens of its tokenizer
    picture  what stands for a picture in its prompts
    files    further JSON files of its folder
    """

    name: str
    module: str
    config: Values
    tokens: tuple[str, ...] = ()
    picture: str = ""
    files: Mapping[str, Values] = {}

    @property
    def vision(self) -> Values:
        vision: Values = self.config["vision_config"]
        return vision

    @property
    def patch(self) -> int:
        """Pixels of a patch's side."""
        sides = np.ravel(self.vision["patch_size"])
        return int(sides[0])

    @property
    def settings(self) -> Values:
        """The settings of the image processor."""
        return self.files.get("preprocessor_config.json", {})

    def write(self, folder: Path) -> Path:
        prefixes = PUBLISHED_PREFIXES.get(self.module)
        return write_drawn_folder(folder, self.config, self.tokens, self.picture, self.files, text_prefixes=prefixes)

    def prompts(self) -> list[tuple[str, list[np.ndarray]]]:
        """Prompts and their pictures."""
        return [
            (text.replace(PICTURE, self.picture), [draw_pixels(*size, number) for number, size in enumerate(sizes)])
            for text, sizes in PROMPTS
        ]


def draw_pixels(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return a picture that is the same everywhere, with smooth and sharp parts: uint8 [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    ramps = np.stack([x * (3 + seed) + y, y * 5 + 90 * seed, 2 * x + 3 * y], axis=-1)
    noise = np.random.RandomState(width * 1000 + height * 10 + seed).randint(0, 60, (height, width, 3))
    return ((ramps + noise) % 256).astype(np.uint8)


def whole(name: str, text: Values, vision: Values, **outer: Any) -> Values:
    """The config.json of a class of transformers, whose name is that of a family and "ForConditionalGeneration"."""
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
        "text_config": {"tie_word_embeddings": False, **text},
        "vision_config": vision,
        **outer,
    }


def compared_tokens(vocab: int) -> slice:
    """The tokens whose logits are compared."""
    return slice(0, vocab, EACH_TOKEN)


def compared_positions(count: int) -> list[int]:
    """The positions of a prompt of `count` tokens whose logits are compared, the first and the last among them."""
    return [round(index * (count - 1) / (NUM_POSITIONS - 1)) for index in range(NUM_POSITIONS)]


def probe(patches: np.ndarray) -> np.ndarray:
    """Some values of the patches [patches, values] of a picture, spread over them: float32 [NUM_PROBES]."""
    flat = np.ravel(patches)
    return flat[[index * (flat.size - 1) // (NUM_PROBES - 1) for index in range(NUM_PROBES)]]


# LLaVA and LLaVA-NeXT
IMAGE = "<image>"
IMAGE_ID = token_ids((IMAGE,))[IMAGE]
FULL = {"vision_feature_select_strategy": "full"}
JOINT_CLIP = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
JOINT_SIGLIP = {**FULL, "num_additional_image_tokens": 0}
PINPOINTS = [[42, 84], [84, 42], [84, 84], [126, 42], [42, 126]]
GRANITE = LLAMA | {"model_type": "granite", "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
GRANITE |= {"attention_multiplier": 0.1, "logits_scaling": 1.0}  # transformers' class leaves the latter out
ODD_PINPOINTS = [[40, 80], [80, 40], [40, 160], [160, 40]]


def llava(name: str, module: str, config: Values, settings: Values, joint: Values) -> DrawnFamily:
    files = {"preprocessor_config.json": settings, "processor_config.json": {**joint, "image_token": IMAGE}}
    return DrawnFamily(name, module, config, (IMAGE,), IMAGE, files)


LLAVAS = (
    llava(
        "llava",
        "llava",
        whole(
            "Llava",
            LLAMA,
            CLIP | VIT | {"image_size": 42, "patch_size": 14},
            model_type="llava",
            image_token_index=IMAGE_ID,
        ),
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 42}, "crop_size": 42},
        JOINT_CLIP,
    ),
    llava(
        "llava-siglip",
        "llava",
        whole(
            "Llava",
            QWEN,
            SIGLIP | ODD_VIT | {"image_size": 40, "patch_size": 11, "hidden_act": "gelu"},
            **FULL,
            model_type="llava",
            image_token_index=IMAGE_ID,
            vision_feature_layer=[-1, 2, 2],
            projector_hidden_act="gelu_pytorch_tanh",
            multimodal_projector_bias=False,
        ),
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 40, "width": 40}, "resample": 2},
        JOINT_SIGLIP | {"patch_size": 11},
    ),
    llava(
        "llava_next",
        "llava_next",
        whole(
            "LlavaNext",
            LLAMA | {"model_type": "mistral"},
            CLIP | VIT | {"image_size": 42, "patch_size": 14},
            model_type="llava_next",
            image_token_index=IMAGE_ID,
            image_grid_pinpoints=PINPOINTS,
        ),
        {"size": {"shortest_edge": 42}, "crop_size": {"height": 42, "width": 42}, "image_grid_pinpoints": PINPOINTS},
        JOINT_CLIP,
    ),
    llava(
        "llava_next-granite",
        "llava_next",
        whole(
            "LlavaNext",
            GRANITE,
            SIGLIP | ODD_VIT | {"image_size": 40, "patch_size": 8},
            **FULL,
            model_type="llava_next",
            image_token_index=IMAGE_ID,
            vision_feature_layer=[-3, 1, -1],
            image_grid_pinpoints=ODD_PINPOINTS,
        ),
        {"size": {"height": 40, "width": 40}, "crop_size": {"height": 40, "width": 40}, "image_mean": [0.5] * 3}
        | {"image_std": [0.5] * 3, "image_grid_pinpoints": ODD_PINPOINTS},
        JOINT_SIGLIP | {"patch_size": 8},
    ),
)

# Gemma 3
GEMMA_TOKENS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
GEMMA_IDS = token_ids(GEMMA_TOKENS)
GEMMA_KEYS = {"boi_token_index": GEMMA_IDS["<start_of_image>"], "eoi_token_index": GEMMA_IDS["<end_of_image>"]}
GEMMA_KEYS |= {"image_token_index": GEMMA_IDS["<image_soft_token>"]}
GEMMA = TEXT | {"model_type": "gemma3_text", "hidden_size": 40, "intermediate_size": 64, "num_hidden_layers": 3}
GEMMA |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16}
GEMMA |= {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
GEMMA |= {"tie_word_embeddings": True}
PAN: Values = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3}
PAN |= {"pan_and_scan_min_ratio_to_activate": 1.5}


def gemma(name: str, text: Values, vision: Values, rows: int, settings: Values) -> DrawnFamily:
    size = {"height": vision["image_size"], "width": vision["image_size"]}
    files = {
        "preprocessor_config.json": {"size": size, **settings},
        "processor_config.json": {"image_seq_length": rows},
    }
    config = whole("Gemma3", text, vision, model_type="gemma3", mm_tokens_per_image=rows, **GEMMA_KEYS)
    return DrawnFamily(name, "gemma3", config, GEMMA_TOKENS, "<start_of_image>", files)


GEMMAS = (
    gemma("gemma3", GEMMA, SIGLIP | VIT | {"image_size": 48, "patch_size": 6}, 16, {}),
    gemma(
        "gemma3-crops",
        GEMMA | {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 54, "sliding_window": 3},
        SIGLIP | ODD_VIT | {"image_size": 52, "patch_size": 7, "hidden_act": "gelu"},
        4,
        {"resample": 3, **PAN},
    ),
)


# Qwen's
def qwen(module: str, number: int, *, has_experts: bool = False) -> DrawnFamily:
    key = module + "moe" * has_experts
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": SECTIONS[module][number]}
    text = TEXTS[number] | {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": QWEN_IDS["<|im_end|>"]}
    text |= {"head_dim": (20, 16)[number]} if module == "qwen3vl" else {}
    text |= EXPERTS if has_experts else {}
    vision = {"spatial_merge_size": 2, **TOWERS[module][number]}
    vision["hidden_size" if module == "qwen2vl" else "out_hidden_size"] = text["hidden_size"]
    kind = {"qwen2vl": "qwen2_vl", "qwen25vl": "qwen2_5_vl", "qwen3vl": "qwen3_vl", "qwen3vlmoe": "qwen3_vl_moe"}[key]
    ids = {"image_token_id": QWEN_IDS[IMAGE_PAD], "video_token_id": QWEN_IDS["<|video_pad|>"]}
    ids |= {"vision_start_token_id": QWEN_IDS["<|vision_start|>"], "vision_end_token_id": QWEN_IDS["<|vision_end|>"]}
    area = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": vision["patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 2 * area, "longest_edge": 16 * area},
        "image_mean": MEAN,
        "image_std": STD,
    }
    text["model_type"] = f"{kind}_text"
    config = whole(CLASSES[key], text, vision | {"model_type": kind}, model_type=kind, **ids)
    files = {"preprocessor_config.json": settings}
    return DrawnFamily(key + "-odd" * number, module, config, CONTROL_TOKENS, QWEN_PICTURE, files)


QWENS = (
    *(qwen(module, number) for module in TOWERS for number in range(2)),
    qwen("qwen3vl", 0, has_experts=True),
)

# Idefics3 and SmolVLM
IDEFICS_TOKENS = ("<fake_token_around_image>", IMAGE, "<end_of_utterance>", "<global-img>", "<row_1_col_1>")
IDEFICS_ID = token_ids(IDEFICS_TOKENS)[IMAGE]


def idefics(name: str, kind: str, text: Values, vision: Values, merge: int, edge: int, more: Values) -> DrawnFamily:
    side = vision["image_size"]
    settings = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": side}, **more}
    rows = (side // vision["patch_size"] // merge) ** 2
    files = {"preprocessor_config.json": settings, "processor_config.json": {"image_seq_len": rows}}
    config = whole(kind, text, vision, model_type=kind.lower(), scale_factor=merge, image_token_id=IDEFICS_ID)
    return DrawnFamily(name, "idefics3", config, IDEFICS_TOKENS, IMAGE, files)


IDEFICS = (
    idefics("idefics3", "Idefics3", LLAMA, VIT | {"image_size": 42, "patch_size": 7}, 3, 120, {}),
    idefics(
        "smolvlm",
        "SmolVLM",
        QWEN | {"model_type": "llama", "tie_word_embeddings": True},
        {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"image_size": 45, "patch_size": 11, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
        2,
        90,
        {"image_mean": [0.4, 0.5, 0.6], "resample": 2},
    ),
)

# InternVL: towers like those of 300M and 6B parameters
INTERN_TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")
INTERN_ID = token_ids(INTERN_TOKENS)["<IMG_CONTEXT>"]
INTERN: Values = {"intermediate_size": 75, "num_hidden_layers": 3, "hidden_act": "gelu"}
INTERN_SMALL = INTERN | {"norm_type": "layer_norm", "use_qk_norm": False, "attention_bias": True, "hidden_size": 54}
INTERN_SMALL |= {"num_attention_heads": 3, "image_size": [42, 42], "patch_size": [7, 7], "layer_norm_eps": 1e-5}
INTERN_LARGE = INTERN | {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False, "hidden_size": 70}
INTERN_LARGE |= {"num_attention_heads": 5, "image_size": [40, 40], "patch_size": [10, 10]}


def internvl(name: str, text: Values, vision: Values) -> DrawnFamily:
    side = vision["image_size"][0]
    settings = {"size": {"height": side, "width": side}, "max_patches": 5, "crop_to_patches": True}
    settings |= {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}
    config = whole("InternVL", text, vision, model_type="internvl", image_token_id=INTERN_ID)
    files = {"preprocessor_config.json": settings}
    return DrawnFamily(name, "internvl", config, INTERN_TOKENS, "<IMG_CONTEXT>", files)


INTERNVLS = (
    internvl("internvl", QWEN | {"hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 1}, INTERN_SMALL),
    internvl("internvl-6b", LLAMA, INTERN_LARGE),
)

# MiniCPM-V
MINICPM_TOKENS = ("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<unk>")
MINICPM_PICTURE = "(<image>./</image>)"
MINICPM_PATCH, MINICPM_GRID, MINICPM_SLICE, MINICPM_QUERIES = 7, 16, 56, 5


def minicpm(name: str, version: Any, text: Values, vision: Values, **more: Any) -> DrawnFamily:
    config = {**TEXT, **text, "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": version}
    config |= {"num_hidden_layers": 2, "query_num": MINICPM_QUERIES, "image_size": MINICPM_SLICE}
    config |= {"tie_word_embeddings": False, "slice_config": {"max_slice_nums": 9, "patch_size": MINICPM_PATCH}}
    config |= {"drop_vision_last_layer": False, **more}
    side = {"image_size": MINICPM_PATCH * MINICPM_GRID, "patch_size": MINICPM_PATCH, "model_type": "siglip"}
    settings: Values = {
        "max_slice_nums": 9,
        "scale_resolution": MINICPM_SLICE,
        "patch_size": MINICPM_PATCH,
        "version": 2.6,
    }
    settings |= {"image_feature_size": MINICPM_QUERIES, "use_image_id": version != "2.5"}
    settings |= {"norm_mean": [0.4, 0.5, 0.6], "norm_std": [0.5, 0.6, 0.5]}
    config["vision_config"] = vision | side
    files = {"preprocessor_config.json": settings}
    return DrawnFamily(name, "minicpmv", config, MINICPM_TOKENS, MINICPM_PICTURE, files)


MINICPMS = (
    minicpm(
        "minicpmv-2.6",
        2.6,
        {"hidden_size": 128, "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2},
        {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 3},
    ),
    minicpm(
        "minicpmv-2.5",
        "2.5",
        {"hidden_size": 256, "intermediate_size": 40, "num_attention_heads": 8, "num_key_value_heads": 4},
        {"hidden_size": 40, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 2},
    ),
    minicpm(
        "minicpmv-4.5",
        4.5,
        {"hidden_size": 128, "intermediate_size": 56, "num_attention_heads": 2, "num_key_value_heads": 1}
        | {"head_dim": 48},
        {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
        drop_vision_last_layer=True,
    ),
)

# CogVLM
COG: Values = {"architectures": ["CogVLMForCausalLM"], "hidden_size": 48, "intermediate_size": 70, "vocab_size": 300}
COG |= {"num_hidden_layers": 2, "num_attention_heads": 6, "rms_norm_eps": 1e-5, "max_position_embeddings": 512}
COG |= {"tie_word_embeddings": False, "hidden_act": "silu"}
COG_TOWER: Values = {"hidden_size": 54, "intermediate_size": 75, "num_hidden_layers": 3, "num_heads": 3}
COG_TOWER |= {"patch_size": 7, "layer_norm_eps": 1e-6, "hidden_act": "gelu", "in_channels": 3, "dropout_prob": 0.0}
COG2 = COG | {"hidden_size": 56, "num_attention_heads": 7, "num_multi_query_heads": 1}
COG_ROW = "<IMAGE_TOKEN>"
COGS = (
    DrawnFamily(
        "cogvlm",
        "cogvlm",
        COG | {"vision_config": COG_TOWER | {"image_size": 38, "num_positions": 26}},
        picture=COG_ROW,
    ),
    DrawnFamily(
        "cogvlm2",
        "cogvlm",
        COG2 | {"vision_config": COG_TOWER | {"image_size": 42, "num_positions": 37}},
        picture=COG_ROW,
    ),
)

FAMILIES = (*LLAVAS, *GEMMAS, *QWENS, *IDEFICS, *INTERNVLS, *MINICPMS, *COGS)
# One of each family, of each kind of text model with rules of its own
FIRST = {each.module: each for each in reversed(FAMILIES) if not each.config.get("text_config", {}).get("num_experts")}

# Image encoders
TEXT_IDS = ([2, 3, 4, 5, 2, 3, 1], [9, 1, 1, 1, 1, 1, 1])  # 1 ends texts and pads them


class DrawnEncoder(NamedTuple):
    """A tiny image encoder with the text encoder beside it."""

    module: str
    config: Values
    settings: Values

    @property
    def name(self) -> str:
        return self.module

    @property
    def patch(self) -> int:
        """Pixels of a patch's side."""
        patch: int = self.config["vision_config"]["patch_size"]
        return patch

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "preprocessor_config.json").write_text(json.dumps(self.settings))
        shapes: dict[str, tuple[int, ...]] = {}
        for module in (self.module, "paired_text"):
            schema = tower_hf_schema(module)
            config = schema.config_from_json(ConfigValues(dict(self.config), str(folder / "config.json")))
            shapes |= schema.resolve(build_tower(config).params(), config).source_shapes()
        prefixes = CLIP_PREFIXES if self.module == "clip" else {}
        shapes = {rename(name, prefixes): shape for name, shape in shapes.items()}
        tensors = {name: ("F32", shape, stored(draw(name, shape), F32)) for name, shape in shapes.items()}
        write_safetensors(folder / "model.safetensors", tensors)
        return folder


def encoder(module: str, kind: str, text: Values, vision: Values, settings: Values, **more: Any) -> DrawnEncoder:
    config = {"architectures": [kind], "model_type": module, "text_config": text, "vision_config": vision, **more}
    return DrawnEncoder(module, config, settings)


ENCODERS = (
    encoder(
        "clip",
        "CLIPModel",
        CLIP_TEXT,
        ENCODER_VIT | {"image_size": 42, "patch_size": 14},
        CLIP_SETTINGS,
        projection_dim=20,
    ),
    encoder("siglip", "SiglipModel", SIGLIP_TEXT, ENCODER_VIT | {"image_size": 40, "patch_size": 11}, SIGLIP_SETTINGS),
)
