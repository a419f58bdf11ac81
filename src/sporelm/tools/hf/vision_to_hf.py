"""`spore gguf to-hf --mmproj`: adds the vision tower in an mmproj file to the Hugging Face folder of its text model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.towers.open_tower import open_tower, tower_hf_schema
from sporelm.checkpoints.towers.supported_towers import TOWERS
from sporelm.checkpoints.towers.tower_schema import FolderLayout
from sporelm.errors import RequestError, UnsupportedModel
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_registry import build_tower
from sporelm.tools.hf.from_hf import match_params
from sporelm.tools.hf.tensor_layout import TensorConverter
from sporelm.tools.hf.to_hf import HfFolder, choose_dtypes, json_text
from sporelm.tools.lazy_model import LazyTensor, open_lazy_model
from sporelm.vision.processor_registry import open_processor

TEXT_CONFIG = "text_config"
# Keys of a text model's config.json that the whole model has, too.
SHARED_KEYS = ("tie_word_embeddings", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")


def add_tower(text: HfFolder, path: Path, *, dtype: str = "auto") -> HfFolder:
    """Return the folder of a text model, as `to_hf` makes it, with the vision tower in an mmproj file.

    dtype   of the tower's tensors, as for `to_hf`

    Raises ModelNotFound, ModelFileError; UnsupportedModel for a family whose folders are not written, or settings that
    folders cannot express; RequestError for the tower of another model.
    """
    if path.is_dir():
        raise RequestError(f"{path}: not a file. Give a .gguf file with a vision tower.")
    source = open_tower(path)
    try:
        config = source.config
        assert isinstance(config, TowerConfig)
        schema = tower_hf_schema(config.model)
        if schema.layout is None:
            known = ", ".join(each.title for each in TOWERS if tower_hf_schema(each.module).layout is not None)
            raise UnsupportedModel(
                f"{path}: folders of this family cannot be written (got {config.model}; allowed {known})"
            )
        inner = json.loads(text.texts["config.json"])
        check_width(path, config, inner)
        token_ids = read_token_ids(text)
        processor = open_processor(source, lambda token: token in token_ids)
        outer = make_config(config.model, schema.layout, inner) | schema.json_from_config(config)
        notes = list(text.notes)
        for key, token in schema.layout.token_keys.items():
            if token in token_ids:
                outer[key] = token_ids[token]
            else:
                notes.append(
                    f"the vocabulary has no token {token!r}: config.json has no {key}, which transformers needs"
                )
        text_prefix = "" if TEXT_CONFIG in inner else schema.layout.text_prefix
        tensors = [
            *rename(text.tensors, "", text_prefix),
            *rename(convert_tower(source, config, dtype), *schema.layout.tower_names),
        ]
        files = {name: json_text(values) for name, values in processor.to_files().items()}
    finally:
        source.close()
    texts = {**text.texts, "config.json": json_text(outer), **files}
    return HfFolder(texts, tuple(tensors), tuple(notes), text.modules)


def convert_tower(source: ModelSource, config: TowerConfig, dtype: str) -> list[LazyTensor]:
    """Return a tower's tensors under the names of its folders' schema."""
    params = build_tower(config).params()
    mapping = match_params(source, params)
    stored = {tensor.name: tensor for tensor in open_lazy_model(source.path).tensors}
    target = tower_hf_schema(config.model).resolve(params, config)
    return choose_dtypes(TensorConverter(mapping, target, stored).tensors(), dtype)


def rename(tensors: Sequence[LazyTensor], old: str, new: str) -> list[LazyTensor]:
    """Return tensors, with another beginning of the names that begin so."""
    return [
        replace(tensor, name=new + tensor.name.removeprefix(old)) if tensor.name.startswith(old) else tensor
        for tensor in tensors
    ]


def make_config(module: str, layout: FolderLayout, text: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json around that of the text model, still without the tower.

    module   name of the family
    """
    classes = next(each.classes for each in TOWERS if each.module == module)
    if layout.is_flat:
        return dict(text)
    if TEXT_CONFIG not in text:
        shared = {key: text[key] for key in SHARED_KEYS if key in text}
        outer = {"architectures": [layout.class_name], "model_type": layout.model_type, **shared}
        return {**outer, TEXT_CONFIG: dict(text)}
    if text["architectures"][0] in classes:
        return dict(text)
    inner = text[TEXT_CONFIG] | {"model_type": f"{layout.model_type}_text"}
    return {**text, "architectures": [layout.class_name], "model_type": layout.model_type, TEXT_CONFIG: inner}


def check_width(path: Path, config: TowerConfig, text: Mapping[str, Any]) -> None:
    """Raise RequestError for a tower whose rows are not as wide as the text model."""
    width = text.get(TEXT_CONFIG, text).get("hidden_size")
    if width != config.out_width:
        raise RequestError(
            f"{path}: a vision tower of another model (its rows have {config.out_width} values; the model's {width}). "
            "Give the mmproj file that was made with this model."
        )


def read_token_ids(text: HfFolder) -> dict[str, int]:
    """Return the ids of the control tokens in a folder's tokenizer.json; none if it has no such file."""
    tokenizer = json.loads(text.texts.get("tokenizer.json", "{}"))
    return {token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}
