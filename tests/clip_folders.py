"""Tiny folders of CLIP and SigLIP, with their tokenizers, for tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vision_folders import draw_weights

VIT = {"hidden_size": 48, "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 3}
TEXT = {"hidden_size": 36, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP_ENDS = ("<|startoftext|>", "<|endoftext|>")
WORDS = ("a</w>", "cat</w>", "of</w>", "ca", "t</w>", "c", "a", "t", "d", "o", "g", "d</w>", "g</w>", "o</w>", "c</w>")
CLIP_TEXT: dict[str, Any] = TEXT | {"vocab_size": 40, "max_position_embeddings": 9, "eos_token_id": 1}
SIGLIP_TEXT: dict[str, Any] = TEXT | {"vocab_size": 30, "max_position_embeddings": 7, "projection_size": 48}
CLIP_SETTINGS: dict[str, Any] = {"size": {"shortest_edge": 42}, "crop_size": {"height": 42, "width": 42}}
SIGLIP_SETTINGS: dict[str, Any] = {"size": {"height": 40, "width": 40}, "image_mean": [0.5, 0.5, 0.5]}
SIGLIP_SETTINGS |= {"image_std": [0.5, 0.5, 0.5], "resample": 3}


def make_clip() -> Any:
    """A random CLIPModel of transformers."""
    from transformers import CLIPConfig, CLIPModel

    vision = VIT | {"image_size": 42, "patch_size": 14}
    return draw_weights(CLIPModel(CLIPConfig(vision_config=vision, text_config=CLIP_TEXT, projection_dim=20)))


def make_siglip() -> Any:
    """A random SiglipModel of transformers, whose pictures have pixels past the last patch."""
    from transformers import SiglipConfig, SiglipModel

    vision = VIT | {"image_size": 40, "patch_size": 11}
    return draw_weights(SiglipModel(SiglipConfig(vision_config=vision, text_config=SIGLIP_TEXT)))


def clip_tokenizer() -> Any:
    """A tokenizer like CLIP's with a few words, in transformers."""
    from transformers import CLIPTokenizer

    vocab = {text: number for number, text in enumerate((*CLIP_ENDS, *WORDS))}
    merges: Any = [("c", "a"), ("ca", "t</w>")]
    return CLIPTokenizer(vocab=vocab, merges=merges)


def write_clip(folder: Path, model: Any) -> Path:
    """Write the folder of a CLIPModel."""
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    clip_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(CLIP_SETTINGS))
    return folder


def write_siglip(folder: Path, model: Any) -> Path:
    """Write the folder of a SiglipModel. Its tokenizer has whole words only; 1 ends texts and pads them."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "cat": 3, "dog": 4}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<unk>", special=True)])
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "SiglipTokenizer", "pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps(SIGLIP_SETTINGS))
    return folder


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Path, Any], Path]]] = {
    "clip": (make_clip, write_clip),
    "siglip": (make_siglip, write_siglip),
}
