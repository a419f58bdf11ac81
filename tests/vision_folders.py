"""Tiny folders of models that see, with a tokenizer of bytes and a few control tokens."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NUM_BYTES = 256  # the first ids are bytes; control tokens follow
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}PLACEHOLDER{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN_TOKENS = ("<|im_start|>", "<|im_end|>")


def token_ids(control_tokens: Sequence[str]) -> dict[str, int]:
    """Return the ids of control tokens in the tokenizers that `write_vision_folder` writes."""
    return {text: NUM_BYTES + number for number, text in enumerate((*TURN_TOKENS, *control_tokens))}


def write_vision_folder(
    folder: Path,
    model: Any,
    control_tokens: Sequence[str],
    placeholder: str,
    files: Mapping[str, Mapping[str, Any]],
) -> Path:
    """Write a model of transformers, a tokenizer and further JSON files, such as preprocessor_config.json.

    control_tokens   besides those of turns; the model's vocabulary has at least 258 ids more than these
    placeholder      of a picture in the chat template
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_vision_tokenizer(folder, control_tokens, placeholder)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder


def write_vision_tokenizer(folder: Path, control_tokens: Sequence[str], placeholder: str) -> None:
    """Write a tokenizer of bytes and control tokens, and a chat template with the placeholder of a picture."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [AddedToken(text, special=True, normalized=False) for text in (*TURN_TOKENS, *control_tokens)]
    tokenizer.add_special_tokens(tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE.replace("PLACEHOLDER", placeholder),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def draw_weights(model: Any, seed: int = 0, scale: float = 0.15) -> Any:
    """Fill a model of transformers with random weights, and return it for evaluation."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, scale)
    return model.eval()


def draw_picture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return a picture with smooth and sharp parts: uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(2, 20) + y / rng.uniform(2, 20) + rng.uniform(0, 6)) for _ in range(3)]
    picture = np.stack(waves, axis=-1) * 100 + 128 + rng.normal(0, 12, (height, width, 3))
    picture[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return np.clip(picture, 0, 255).astype(np.uint8)
