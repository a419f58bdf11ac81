"""Random models of the families with the ViT of CLIP or SigLIP, in transformers and as folders, for tests."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vision_folders import draw_weights, write_vision_folder

MISSING = "transformers and torch are not installed: pip install 'sporelm[live]' compares live"
TEXT = {"vocab_size": 300, "pad_token_id": 0, "max_position_embeddings": 1024}
CLIP: dict[str, Any] = {"model_type": "clip_vision_model", "projection_dim": 8}
SIGLIP: dict[str, Any] = {"model_type": "siglip_vision_model"}
VIT = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 3}
ODD_VIT = {"hidden_size": 44, "intermediate_size": 52, "num_hidden_layers": 4, "num_attention_heads": 2}
LLAMA = {**TEXT, "model_type": "llama", "hidden_size": 40, "intermediate_size": 64, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 1}
QWEN = {**TEXT, "model_type": "qwen2", "hidden_size": 56, "intermediate_size": 40, "num_hidden_layers": 3}
QWEN |= {"num_attention_heads": 7, "num_key_value_heads": 7}


class Tiny(NamedTuple):
    """A random model.

    family    of its classes in transformers
    tokens    its special tokens, by their names in tokenizer_config.json
    outer     further keys of config.json
    settings  of the image processor
    processor of the whole processor
    """

    name: str
    family: str
    tokens: dict[str, str]
    vision: dict[str, Any]
    text: dict[str, Any]
    outer: dict[str, Any]
    settings: dict[str, Any]
    processor: dict[str, Any]

    @property
    def side(self) -> int:
        """The patches of a side."""
        side: int = self.vision["image_size"] // self.vision["patch_size"]
        return side


def model_of(tiny: Tiny) -> Any:
    """The model in transformers, made once."""
    import transformers

    key = tiny.family, tiny.name
    if key not in MADE:
        kind = getattr(transformers, f"{tiny.family}Config")
        config = kind(vision_config=tiny.vision, text_config=tiny.text, **tiny.outer)
        MADE[key] = draw_weights(getattr(transformers, f"{tiny.family}ForConditionalGeneration")(config))
    return MADE[key]


MADE: dict[tuple[str, str], Any] = {}  # by family and name


def write_tiny(tiny: Tiny, folder: Path, placeholder: str) -> Path:
    """Write the folder of a model with its processor."""
    files = {"preprocessor_config.json": tiny.settings, "processor_config.json": {**tiny.processor, **tiny.tokens}}
    return write_vision_folder(folder, model_of(tiny), tuple(tiny.tokens.values()), placeholder, files)


def their_logits(tiny: Tiny, processor: Any, text: str, pictures: list[np.ndarray]) -> np.ndarray:
    """The logits of a prompt by transformers' processor and model: [tokens, vocab]."""
    import torch
    from PIL import Image

    inputs = processor(text=text, images=[Image.fromarray(each) for each in pictures], return_tensors="pt")
    with torch.no_grad():
        logits: np.ndarray = model_of(tiny)(**inputs).logits[0].numpy()
    return logits


def their_tokenizer(tiny: Tiny, folder: Path) -> Any:
    """The tokenizer of a folder in transformers."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=tiny.tokens)


def draw_pixels(tiny: Tiny, count: int, seed: int = 0) -> np.ndarray:
    """Tiles as the tower reads them: float32 [count, 3, image_size, image_size]."""
    size = tiny.vision["image_size"]
    return np.random.default_rng(seed).normal(size=(count, 3, size, size)).astype(np.float32)
