"""The image encoders of CLIP and SigLIP, and the text encoders beside them, against transformers."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import BACKENDS
from clip_folders import CLIP_SETTINGS, CLIP_TEXT, MODELS, SIGLIP_SETTINGS, VIT, clip_tokenizer
from close import assert_close
from mmproj_files import compute_rows, open_tower_config
from sporelm.api.image_text_encoder import ImageTextEncoder
from sporelm.checkpoints.towers.open_tower import find_tower, open_paired_text, open_tower
from sporelm.errors import ContextOverflow, ModelError, RequestError
from tower_tiles import tiles_as_image
from vision_folders import draw_picture, draw_weights

MISSING = "transformers and torch are not installed: pip install 'sporelm[live]' compares live"
SIZES = [(1, 1), (200, 3), (2, 90), (42, 42), (90, 61)]
FolderOf = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _needs_transformers() -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=MISSING)


@cache
def model_of(name: str) -> Any:
    return MODELS[name][0]()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Writes a model with its processor and tokenizer, once."""
    written: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in written:
            written[name] = MODELS[name][1](tmp_path_factory.mktemp(name), model_of(name))
        return written[name]

    return write


def their_processor(name: str) -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return CLIPImageProcessorPil(**CLIP_SETTINGS) if name == "clip" else SiglipImageProcessorPil(**SIGLIP_SETTINGS)


def their_images(name: str, pictures: list[np.ndarray]) -> np.ndarray:
    import torch

    process = their_processor(name)
    values = [process([each], return_tensors="pt", input_data_format="channels_last") for each in pictures]
    with torch.no_grad():
        rows = model_of(name).get_image_features(torch.cat([each["pixel_values"] for each in values])).pooler_output
    return np.asarray(rows)


def their_texts(name: str, texts: list[list[int]]) -> np.ndarray:
    import torch

    with torch.no_grad():
        rows = [model_of(name).get_text_features(torch.tensor([each])).pooler_output for each in texts]
    return np.concatenate([np.asarray(each) for each in rows])


def normalized(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("name", MODELS)
def test_pictures_have_the_vectors_of_transformers(name: str, folder_of: FolderOf) -> None:
    """A picture of one pixel, extreme ratios, and the tower's own size."""
    pictures = [draw_picture(*size, seed=number) for number, size in enumerate(SIZES)]
    wanted = their_images(name, pictures)
    with ImageTextEncoder(folder_of(name), backend="cpu", threads=1) as encoder:
        found = encoder.embed_images(pictures, normalize=False)
        assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")
        assert_close(encoder.embed_images(pictures), normalized(wanted), "logits")
        assert_close(encoder.embed_images(pictures[2:3]), encoder.embed_images(pictures)[2:3], "exact")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_tiles(name: str, backend: str, eager: bool, folder_of: FolderOf) -> None:
    config = open_tower_config(folder_of(name))
    side = config.image_size // config.patch * config.patch
    pixels = np.random.default_rng(0).normal(size=(3, 3, config.image_size, config.image_size)).astype(np.float32)
    import torch

    with torch.no_grad():
        wanted = np.asarray(model_of(name).get_image_features(torch.from_numpy(pixels)).pooler_output)
    image = tiles_as_image(pixels[:, :, :side, :side], config.patch, 3)
    found = compute_rows(folder_of(name), [image], backend, eager=eager)
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")
    if not eager and backend == "cpu":
        pieces = compute_rows(folder_of(name), [image], backend, eager=False, piece=4)
        assert_close(pieces, found, "exact")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
def test_texts_of_clip(eager: bool, folder_of: FolderOf) -> None:
    """Tokens and vectors; a text that is truncated keeps its end."""
    theirs, texts = clip_tokenizer(), ["A  cat", "cat of dog", "", "a dog of cat"]
    with ImageTextEncoder(folder_of("clip"), backend="cpu", threads=1, eager=eager) as encoder:
        ids = [encoder.text_ids(text) for text in texts]
        assert ids == [theirs(text)["input_ids"] for text in texts]
        wanted = their_texts("clip", ids)
        found = encoder.embed_texts(texts, normalize=False)
        assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")
        assert_close(encoder.embed_texts(texts[1:2]), normalized(wanted)[1:2], "logits")
        long = "cat " * 20
        assert encoder.text_ids(long, truncate=True) == theirs(long, truncation=True, max_length=9)["input_ids"]
        with pytest.raises(ContextOverflow, match=r"too long \(got 22 tokens; allowed 9\)"):
            encoder.embed_texts([long])


def test_texts_of_siglip(folder_of: FolderOf) -> None:
    """Texts lose capitals and punctuation and are padded to the context; all of it is read."""
    with ImageTextEncoder(folder_of("siglip"), backend="cpu", threads=1) as encoder:
        ids = [encoder.text_ids(text) for text in ("A, cat!", "dog")]
        assert ids == [[2, 3, 1, 1, 1, 1, 1], [4, 1, 1, 1, 1, 1, 1]]
        assert encoder.text_ids("a a a a a a a a a", truncate=True) == [2, 2, 2, 2, 2, 2, 1]
        wanted = their_texts("siglip", ids)
        found = encoder.embed_texts(["A, cat!", "dog"], normalize=False)
        assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


def test_similarities_are_those_of_clip(folder_of: FolderOf) -> None:
    import torch

    pictures, texts = [draw_picture(50, 40), draw_picture(30, 60, seed=1)], ["a cat", "dog"]
    with ImageTextEncoder(folder_of("clip"), backend="cpu", threads=1) as encoder:
        found = encoder.embed_images(pictures) @ encoder.embed_texts(texts).T
    inputs = clip_tokenizer()(texts, padding=True, return_tensors="pt")
    values = [
        their_processor("clip")([each], return_tensors="pt", input_data_format="channels_last") for each in pictures
    ]
    model = model_of("clip")
    with torch.no_grad():
        scaled = model(**inputs, pixel_values=torch.cat([each["pixel_values"] for each in values])).logits_per_image
        wanted = np.asarray(scaled / model.logit_scale.exp())
    assert_close(found, wanted, "logits")


def test_first_end_token_of_older_folders(tmp_path: Path) -> None:
    """With the end token 2, which was wrong in older configurations, the token with the highest id is the end."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    text = CLIP_TEXT | {"eos_token_id": 2}
    config = CLIPConfig(vision_config=VIT | {"image_size": 42, "patch_size": 14}, text_config=text, projection_dim=20)
    model = draw_weights(CLIPModel(config))
    MODELS["clip"][1](tmp_path, model)
    with ImageTextEncoder(tmp_path, backend="cpu", threads=1) as encoder:
        ids = encoder.text_ids("a cat of dog")
        with torch.no_grad():
            wanted = np.asarray(model.get_text_features(torch.tensor([ids])).pooler_output)
        found = encoder.embed_texts(["a cat of dog"], normalize=False)
    assert max(ids) != ids[-1]
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("kind", ["CLIPVisionModelWithProjection", "CLIPVisionModel", "SiglipVisionModel"])
def test_image_encoders_alone(kind: str, tmp_path: Path) -> None:
    import torch
    import transformers

    config = getattr(transformers, f"{kind.partition('Vision')[0]}VisionConfig")
    projection = {} if kind.startswith("Siglip") else {"projection_dim": 20}
    model = draw_weights(getattr(transformers, kind)(config(**VIT, image_size=42, patch_size=14, **projection)))
    model.save_pretrained(tmp_path)
    settings = CLIP_SETTINGS if kind.startswith("CLIP") else {"size": {"height": 42, "width": 42}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    pixels = np.random.default_rng(0).normal(size=(2, 3, 42, 42)).astype(np.float32)
    with torch.no_grad():
        output = model(torch.from_numpy(pixels))
    wanted = np.asarray(output.image_embeds if "Projection" in kind else output.pooler_output)
    found = compute_rows(tmp_path, [tiles_as_image(pixels, 14, 2)])
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")
    with ImageTextEncoder(tmp_path, backend="cpu", threads=1) as encoder:
        assert encoder.embed_images([draw_picture(9, 9)]).shape == (1, wanted.shape[1])
        assert not encoder.has_text
        with pytest.raises(RequestError, match="has an image encoder but no text encoder"):
            encoder.embed_texts(["a"])


def test_names_of_other_folders(folder_of: FolderOf, tmp_path: Path) -> None:
    """Folders of an image encoder alone, with the names of the whole model."""
    tensors = load_file(folder_of("clip") / "model.safetensors")
    kept = {name: values for name, values in tensors.items() if name.startswith("vis")}
    save_file(kept | {"vision_model.embeddings.position_ids": np.arange(10)[None]}, tmp_path / "model.safetensors")
    values = json.loads((folder_of("clip") / "config.json").read_text())
    inner = {**values["vision_config"], "architectures": ["CLIPVisionModelWithProjection"], "projection_dim": 20}
    (tmp_path / "config.json").write_text(json.dumps(inner))
    image = tiles_as_image(np.ones((1, 3, 42, 42), np.float32), 14, 1)
    assert_close(compute_rows(tmp_path, [image]), compute_rows(folder_of("clip"), [image]), "exact")


def test_image_encoders_do_not_answer_prompts(folder_of: FolderOf) -> None:
    assert find_tower(folder_of("clip")) is None


@pytest.mark.parametrize(
    ("name", "changes", "vision", "text", "message"),
    [
        ("clip", {}, {"model_type": "siglip_vision_model"}, {}, "model_type is not supported"),
        ("clip", {"projection_dim": 0}, {}, {}, "projection_dim is 0"),
        ("clip", {"projection_dim": 21}, {}, {}, "visual_projection.weight"),
        ("clip", {}, {}, {"hidden_act": "relu"}, "hidden_act is not supported"),
        ("clip", {}, {}, {"num_attention_heads": 5}, "hidden_size must be a multiple of num_attention_heads"),
        ("clip", {}, {}, {"max_position_embeddings": 10}, "position_embedding.weight"),
        ("clip", {}, {}, {"eos_token_id": -1}, "eos_token_id is -1"),
        ("siglip", {}, {"vision_use_head": False}, {}, "vision_use_head is not supported"),
        ("siglip", {}, {"image_size": 300}, {}, "position_embedding.weight"),
        ("siglip", {}, {}, {"projection_size": 47}, "head.weight"),
        ("siglip", {}, {}, {"vocab_size": 31}, "token_embedding.weight"),
    ],
)
def test_unusable_folders(
    name: str,
    changes: dict[str, Any],
    vision: dict[str, Any],
    text: dict[str, Any],
    message: str,
    folder_of: FolderOf,
    tmp_path: Path,
) -> None:
    values = json.loads((folder_of(name) / "config.json").read_text())
    changed = {**values, **changes}
    changed |= {"vision_config": values["vision_config"] | vision, "text_config": values["text_config"] | text}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    (tmp_path / "model.safetensors").symlink_to(folder_of(name) / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        ImageTextEncoder(tmp_path, backend="reference")


@pytest.mark.parametrize("missing", ["vision_model.head.probe", "vision_model.head.attention.in_proj_bias"])
def test_missing_tensors(missing: str, folder_of: FolderOf, tmp_path: Path) -> None:
    tensors = load_file(folder_of("siglip") / "model.safetensors")
    del tensors[missing]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder_of("siglip") / "config.json").read_text())
    with pytest.raises(ModelError, match=missing):
        compute_rows(tmp_path, [tiles_as_image(np.ones((1, 3, 33, 33), np.float32), 11, 1)])


def test_both_halves_of_a_folder(folder_of: FolderOf) -> None:
    source, text = open_tower(folder_of("siglip")), open_paired_text(folder_of("siglip"))
    assert text is not None
    assert (source.config.model, text.config.model) == ("siglip", "paired_text")
    source.close()
    text.close()
