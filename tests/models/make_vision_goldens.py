"""Writes the logits and pixels of `drawn_families` by transformers into goldens/vision. Needs torch and transformers:

    PYTHONPATH=src:tests python tests/models/make_vision_goldens.py [NAME ...]

transformers reads the folders that are written without it. It lacks CogVLM and these versions of MiniCPM-V: their
logits are those of tests/models/paper and of tests/models/towers/test_minicpmv.py. A golden file names the versions of
its references.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
import transformers
from PIL import Image
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from drawn_families import (  # noqa: E402
    ENCODERS,
    FAMILIES,
    MINICPM_TOKENS,
    SIZES,
    TEXT_IDS,
    DrawnEncoder,
    DrawnFamily,
    compared_positions,
    compared_tokens,
    draw_pixels,
    probe,
)
from models.paper.cogvlm import forward as cogvlm_logits  # noqa: E402
from models.paper.cogvlm_tower import tower_rows as cogvlm_rows  # noqa: E402
from models.towers.test_minicpmv import Reference, Tiny, as_pixels  # noqa: E402
from qwen_vision import IMAGE_PAD  # noqa: E402
from sporelm.checkpoints.towers.open_tower import open_tower  # noqa: E402
from sporelm.vision.image_processor import cut_patches  # noqa: E402
from sporelm.vision.processor_registry import open_processor  # noqa: E402
from vision_folders import token_ids  # noqa: E402

GOLDENS = HERE / "goldens" / "vision"
VERSIONS = [f"{each.__name__} {each.__version__}" for each in (transformers, torch, PIL, np)]
MIN_EFFECT = 0.01  # of the range of logits, by which black pictures must change them
# Tensors of transformers' classes that the compared results do not depend on: tied ones, LLaVA's last layer, scales.
IDLE: tuple[str, ...] = (
    "vision_tower.head.",
    "vision_tower.post_layernorm.",
    "lm_head.weight",
    "vision_tower.encoder.layers.2.",
)
IDLE += ("logit_scale", "logit_bias")
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
Pictures = Sequence[np.ndarray]


class Theirs(NamedTuple):
    """A family by its reference.

    logits  of a prompt: [tokens, vocab]
    pixels  the rows of a picture in the prompt, and its patches [patches, values]
    """

    logits: Callable[[str, Pictures], np.ndarray]
    pixels: Callable[[np.ndarray], tuple[int, np.ndarray]]


def load_model(name: str, folder: Path) -> Any:
    """A model of transformers, all of whose weights come from the folder."""
    kind: Any = getattr(transformers, name)
    plain = {"attn_implementation": "eager", "dtype": torch.float32}
    model, info = kind.from_pretrained(folder, output_loading_info=True, **plain)
    idle = {each for each in info["missing_keys"] if any(part in each for part in IDLE)}
    strange = {kind: found for kind, found in info.items() if found and (kind != "missing_keys" or set(found) - idle)}
    assert not strange, f"{folder.name}: transformers reports {strange}"
    return model.eval()


def as_images(pictures: Pictures) -> list[Any]:
    return [Image.fromarray(each) for each in pictures]


def cut_tiles(tiles: np.ndarray, patch: int) -> np.ndarray:
    """The whole patches of tiles [tiles, channels, height, width]."""
    height, width = (side // patch * patch for side in tiles.shape[2:])
    return np.concatenate([cut_patches(each[:, :height, :width], patch) for each in np.asarray(tiles, np.float32)])


def without_type(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "image_processor_type"}


def joint_processor(family: DrawnFamily, folder: Path) -> Any:
    """transformers' processor of texts and pictures, with Pillow."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
    from transformers.models.llava.processing_llava import LlavaProcessor
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    is_clip = family.vision.get("model_type") == "clip_vision_model"
    images, kind = {
        "llava": (CLIPImageProcessorPil if is_clip else SiglipImageProcessorPil, LlavaProcessor),
        "llava_next": (LlavaNextImageProcessorPil, LlavaNextProcessor),
        "gemma3": (Gemma3ImageProcessorPil, Gemma3Processor),
        "idefics3": (Idefics3ImageProcessorPil, Idefics3Processor),
    }[family.module]
    names = {"gemma3": ("boi_token", "image_token", "eoi_token"), "idefics3": ()}.get(family.module, ("image_token",))
    special = dict(zip(names, family.tokens, strict=False))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=special
    )
    options = {key: value for key, value in family.files["processor_config.json"].items() if key not in special}
    processor = kind(images(**without_type(family.settings)), tokenizer, **options)
    if family.module == "gemma3":  # the class passes its own defaults on, whatever the settings of the folder are
        given = {key: value for key, value in family.settings.items() if "pan_and_scan" in key}
        vars(processor)["images_kwargs"] = {**processor.images_kwargs, **given}
    return processor


def by_joint_processor(family: DrawnFamily, folder: Path) -> Theirs:
    """LLaVA, LLaVA-NeXT, Gemma 3, Idefics3, SmolVLM."""
    processor, model = joint_processor(family, folder), load_model(family.config["architectures"][0], folder)
    row = token_ids(family.tokens)["<image_soft_token>" if family.module == "gemma3" else "<image>"]

    def read(text: str, pictures: Pictures) -> Any:
        images = as_images(pictures)
        return processor(text=text, images=[images] if family.module == "idefics3" else images, return_tensors="pt")

    def logits(text: str, pictures: Pictures) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(model(**read(text, pictures)).logits[0])

    def pixels(picture: np.ndarray) -> tuple[int, np.ndarray]:
        inputs = read(family.picture, [picture])
        values = inputs["pixel_values"]
        tiles = values.reshape(-1, *values.shape[-3:])
        return int((inputs["input_ids"] == row).sum()), cut_tiles(tiles.numpy(), family.patch)

    return Theirs(logits, pixels)


def by_qwen(family: DrawnFamily, folder: Path) -> Theirs:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(**without_type(family.settings))
    model, tokenizer = load_model(family.config["architectures"][0], folder), tokenizer_of(folder)
    pad = token_ids(family.tokens)[IMAGE_PAD]

    def count_rows(grid: Any) -> int:
        return int(np.prod(np.asarray(grid))) // processor.merge_size**2

    def logits(text: str, pictures: Pictures) -> np.ndarray:
        inputs = processor(as_images(pictures), return_tensors="pt")
        first, *others = text.split(IMAGE_PAD)
        for grid, part in zip(inputs["image_grid_thw"], others, strict=True):
            first += IMAGE_PAD * count_rows(grid) + part
        ids = torch.tensor([tokenizer.encode(first).ids])
        with torch.no_grad():
            model.model.rope_deltas = None
            return np.asarray(model(input_ids=ids, mm_token_type_ids=(ids == pad).int(), **inputs).logits[0])

    def pixels(picture: np.ndarray) -> tuple[int, np.ndarray]:
        inputs = processor(as_images([picture]), return_tensors="np")
        return count_rows(inputs["image_grid_thw"][0]), inputs["pixel_values"]

    return Theirs(logits, pixels)


def by_internvl(family: DrawnFamily, folder: Path) -> Theirs:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    processor = GotOcr2ImageProcessorPil(**family.settings)
    model, tokenizer = load_model(family.config["architectures"][0], folder), tokenizer_of(folder)
    tile_rows = (family.vision["image_size"][0] // family.patch // 2) ** 2
    opening, closing, row = family.tokens

    def logits(text: str, pictures: Pictures) -> np.ndarray:
        inputs = processor(as_images(pictures), return_tensors="pt")
        first, *others = text.split(row)
        for tiles, part in zip(np.ravel(inputs["num_patches"]), others, strict=True):
            first += opening + row * tile_rows * int(tiles) + closing + part
        ids = torch.tensor([tokenizer.encode(first).ids])
        with torch.no_grad():
            return np.asarray(model(input_ids=ids, pixel_values=inputs["pixel_values"].float()).logits[0])

    def pixels(picture: np.ndarray) -> tuple[int, np.ndarray]:
        inputs = processor(as_images([picture]), return_tensors="np")
        return tile_rows * int(inputs["num_patches"][0]), cut_tiles(inputs["pixel_values"], family.patch)

    return Theirs(logits, pixels)


def tokenizer_of(folder: Path) -> Any:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def by_minicpm(family: DrawnFamily, folder: Path) -> Theirs:
    """Pixels and texts by our processor, which tests/data/minicpmv_goldens.json compares with the authors'."""
    config = family.config
    kind = {"2.5": "Llama", "2.6": "Qwen2", "4.5": "Qwen3"}[str(config["version"])]
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    text = {key: config[key] for key in keys if key in config}
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    vision = {key: family.vision[key] for key in sizes}
    tiny = Tiny("MiniCPMV", config["version"], kind, text, vision, config.get("drop_vision_last_layer", False))
    reference, tensors = Reference(tiny), load_file(folder / "model.safetensors")
    for name in ("llm", "vpm", "resampler"):
        part = {key.removeprefix(f"{name}."): each for key, each in tensors.items() if key.startswith(f"{name}.")}
        getattr(reference, name).load_state_dict({key: torch.from_numpy(each) for key, each in part.items()})
    source = open_tower(folder)
    processor, tokenizer = open_processor(source, lambda text: text in MINICPM_TOKENS), tokenizer_of(folder)
    source.close()

    def logits(text: str, pictures: Pictures) -> np.ndarray:
        processed = [processor.process(each) for each in pictures]
        for number, each in enumerate(processed):
            text = text.replace(family.picture, processor.text_in_prompt(each, number), 1)
        rows = [reference.rows(as_pixels(image)) for each in processed for image in each.images]
        return reference.logits(tokenizer.encode(text).ids, np.concatenate(rows))

    def pixels(picture: np.ndarray) -> tuple[int, np.ndarray]:
        text, images = processor.process(picture)
        return text.count("<unk>"), np.concatenate([each.patches for each in images])

    return Theirs(logits, pixels)


def by_cogvlm(family: DrawnFamily, folder: Path) -> Theirs:
    """Pixels as the authors' torchvision transforms compute them, which resize by Pillow."""
    tensors, tokenizer = load_file(folder / "model.safetensors"), tokenizer_of(folder)
    size = family.vision["image_size"]
    side = size // family.patch * family.patch

    def normalize(picture: np.ndarray) -> np.ndarray:
        resized = np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.BICUBIC), np.float32)
        normal = (resized / 255 - np.array(CLIP_MEAN, np.float32)) / np.array(CLIP_STD, np.float32)
        return normal.transpose(2, 0, 1)[:, :side, :side]

    def logits(text: str, pictures: Pictures) -> np.ndarray:
        rows = [cogvlm_rows(family.config, tensors, normalize(picture)) for picture in pictures]
        ids: list[int] = []
        places: Any = []  # of all rows; texts stand between the pictures
        for part, each in zip(text.split(family.picture), [*rows, rows[0][:0]], strict=True):
            ids += tokenizer.encode(part).ids
            places += range(len(ids), len(ids) + len(each))
            ids += [0] * len(each)
        return np.asarray(cogvlm_logits(family.config, tensors, ids, places, np.concatenate(rows)))

    def pixels(picture: np.ndarray) -> tuple[int, np.ndarray]:
        values = normalize(picture)
        return len(cogvlm_rows(family.config, tensors, values)), cut_patches(values, family.patch)

    return Theirs(logits, pixels)


READERS: dict[str, Callable[[DrawnFamily, Path], Theirs]] = {
    **dict.fromkeys(("llava", "llava_next", "gemma3", "idefics3"), by_joint_processor),
    **dict.fromkeys(("qwen2vl", "qwen25vl", "qwen3vl"), by_qwen),
    "internvl": by_internvl,
    "minicpmv": by_minicpm,
    "cogvlm": by_cogvlm,
}


def compute_family(family: DrawnFamily, folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a golden file:

    logits  float32 [prompts, positions, tokens]: those of `compared_positions` and `compared_tokens`
    ranges  float32 [prompts]: of all logits of a prompt
    counts  int32 [prompts]: its tokens
    rows    int32 [pictures]: image rows of a picture of `SIZES`
    pixels  float32 [pictures, values]: `probe` of its patches
    """
    theirs = READERS[family.module](family, folder)
    logits, ranges, counts = [], [], []
    for text, pictures in family.prompts():
        found = theirs.logits(text, pictures)
        black = theirs.logits(text, [each * 0 for each in pictures])
        compared = found[compared_positions(len(found)), compared_tokens(found.shape[1])]
        effect = np.abs(found - black)[-1].max() / np.ptp(found)
        assert effect > MIN_EFFECT, f"{family.name}: black pictures change logits by {effect:.1e} of the range"
        logits.append(compared)
        ranges.append(np.ptp(found))
        counts.append(len(found))
    processed = [theirs.pixels(draw_pixels(*size)) for size in SIZES]
    return {
        "logits": np.stack(logits).astype(np.float32),
        "ranges": np.array(ranges, np.float32),
        "counts": np.array(counts, np.int32),
        "rows": np.array([rows for rows, _ in processed], np.int32),
        "pixels": np.stack([probe(patches) for _, patches in processed]).astype(np.float32),
    }


def compute_encoder(encoder: DrawnEncoder, folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a golden file: vectors of pictures and texts, `images` and `texts`, and `pixels` as above."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    kind = CLIPImageProcessorPil if encoder.module == "clip" else SiglipImageProcessorPil
    processor, model = kind(**encoder.settings), load_model(encoder.config["architectures"][0], folder)
    values = [processor(as_images([draw_pixels(*size)]), return_tensors="pt")["pixel_values"] for size in SIZES]
    with torch.no_grad():
        images = model.get_image_features(torch.cat(values)).pooler_output
        texts = [model.get_text_features(torch.tensor([ids])).pooler_output for ids in TEXT_IDS]
    return {
        "images": np.asarray(images),
        "texts": np.concatenate([np.asarray(each) for each in texts]),
        "pixels": np.stack([probe(cut_tiles(each.numpy(), encoder.patch)) for each in values]),
    }


def main(names: list[str]) -> None:
    GOLDENS.mkdir(exist_ok=True)
    cases: list[DrawnFamily | DrawnEncoder] = [*FAMILIES, *ENCODERS]
    for each in cases:
        if names and each.name not in names:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = each.write(Path(place) / each.name)
            arrays = compute_encoder(each, folder) if isinstance(each, DrawnEncoder) else compute_family(each, folder)
        path = GOLDENS / f"{each.name}.npz"
        np.savez_compressed(path, allow_pickle=False, versions=np.array(VERSIONS), **arrays)
        print(f"{each.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
