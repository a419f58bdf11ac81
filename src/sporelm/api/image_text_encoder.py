"""CLIP and SigLIP: vectors of pictures, and of texts in the same space."""

import re
import string
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sporelm import settings
from sporelm.api.backend_choice import AUTO, TokenCost, choose_backend
from sporelm.api.cpu_count import choose_threads
from sporelm.api.embeddings import truncate_ids
from sporelm.api.image_embeddings import embed_images, finish_rows
from sporelm.api.open_device import HOST_DTYPES, open_device
from sporelm.api.user_paths import parse_path
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints.loader import ModelSource, load_parameters
from sporelm.checkpoints.towers.open_tower import find_image_encoder, open_paired_text, open_tower
from sporelm.engine.tower_runner import TowerRunner
from sporelm.errors import ContextOverflow, RequestError, safe_repr
from sporelm.files.json_object import read_object
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_registry import build_tower
from sporelm.models.towers.paired_text import PairedTextConfig, texts_as_input
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.vision.image_sources import check_picture_list, load_frames
from sporelm.vision.processor_registry import note_missing_settings, open_processor

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def is_image_encoder(path: Path) -> bool:
    """Return whether a path is a Hugging Face folder of an image encoder."""
    return (path / "config.json").is_file() and find_image_encoder(path) is not None


class ImageTextEncoder:
    """The image encoder of a Hugging Face folder, and its text encoder if it has one."""

    def __init__(
        self,
        path: str | Path,
        *,
        backend: str | None = None,
        device: str = "cpu",
        dtype: str = "auto",
        threads: int | None = None,
        eager: bool = False,
        strict: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Load both encoders. Options are those of `LLM`. Raises ModelNotFound, ModelFileError, UnsupportedModel,
        BackendError, MemoryShortage, RequestError."""
        self.path, self.notes = parse_path("the path of an image encoder", path), list[str]()
        chosen_threads = choose_threads(threads)
        with ExitStack() as files, ExitStack() as opened:
            sources = [files.enter_context(closing(open_tower(self.path)))]
            if (text_source := open_paired_text(self.path)) is not None:
                sources.append(files.enter_context(closing(text_source)))
            name = backend or settings.BACKEND.value
            if name == AUTO:
                choice = choose_for_encoders(sources, device, chosen_threads, dtype, strict=strict)
                self.notes.append(str(choice))
                name, device = choice.name, choice.device
            self.backend = open_device(name, device, chosen_threads, dtype, strict=strict)
            opened.callback(self.backend.close)
            self.runners = [_load(each, self.backend, chosen_threads, progress, eager=eager) for each in sources]
            self.config: TowerConfig = self.runners[0].tower.config
            self.processor = open_processor(sources[0], lambda text: False)
            self.notes += note_missing_settings(sources[0], self.processor)
            self._tokenizer: Tokenizer | None = None
            opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the programs and the weights."""
        for runner in self.runners:
            runner.close()
        self.backend.close()

    @property
    def has_text(self) -> bool:
        """Whether there is a text encoder."""
        return len(self.runners) > 1

    def embed_images(self, images: Sequence[Any], *, normalize: bool = True) -> NDArray[np.float32]:
        """Return a vector for each picture: float32 [pictures, width].

        images   paths, bytes of files, PIL images, uint8 arrays [height, width, 3], or lists of frames, whose vectors
                 are averaged

        Raises RequestError.
        """
        frames = [load_frames(image) for image in check_picture_list(images)]
        return embed_images(self.runners[0], self.processor, frames, normalize=normalize)

    def embed_texts(
        self, texts: str | Sequence[str], *, normalize: bool = True, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Return a vector for each text: float32 [texts, width].

        truncate   truncate longer texts to the context; else they raise ContextOverflow

        Raises RequestError for a folder without a text encoder, and for other types.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list | tuple):
            raise RequestError(f"texts: not a list (got {safe_repr(texts)}). Give a text or a list of texts.")
        if not texts:
            raise RequestError("there is nothing to embed: give at least one text")
        runner = self._text_runner()
        ids = [self.text_ids(text, truncate=truncate) for text in texts]
        rows = [runner.compute(texts_as_input([each]))[0].astype(np.float64) for each in ids]
        return finish_rows(rows, normalize=normalize)

    def text_ids(self, text: str, *, truncate: bool = False) -> list[int]:
        """Return the ids of a text as the text encoder reads them: with SigLIP, padded to the context.

        Raises ContextOverflow for a text that is too long, RequestError for another type.
        """
        if not isinstance(text, str):
            raise RequestError(f"text: not a string (got {safe_repr(text)}). Give a string.")
        config = self._text_runner().tower.config
        assert isinstance(config, PairedTextConfig)
        tokenizer = self._load_tokenizer()
        values = read_object(self.path / "tokenizer_config.json") if self._has("tokenizer_config.json") else {}
        if str(values.get("tokenizer_class")).startswith("SiglipTokenizer"):
            text = canonicalize(text, lowercase=values.get("do_lower_case", True) is not False)
        ids = tokenizer.encode(text, parse_special=False)
        context = config.context_length
        if len(ids) > context and not truncate:
            raise ContextOverflow(
                f"text: it is too long (got {len(ids)} tokens; allowed {context}). Shorten it, or set the option "
                "truncate.",
                context=context,
            )
        ids = truncate_ids(ids, context, tokenizer.special.suffix)
        if config.is_causal:
            return ids
        return [*ids, *[self._find_padding(tokenizer, values, config)] * (context - len(ids))]

    def _text_runner(self) -> TowerRunner:
        if not self.has_text:
            raise RequestError(
                f"texts: {self.path} has an image encoder but no text encoder. Give pictures only, or the folder of "
                "a full model such as CLIPModel."
            )
        return self.runners[1]

    def _load_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.path)
        return self._tokenizer

    def _find_padding(self, tokenizer: Tokenizer, values: Mapping[str, Any], config: PairedTextConfig) -> int:
        token = values.get("pad_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        found = tokenizer.control_id(token) if isinstance(token, str) else None
        return config.pad_token if found is None else found

    def _has(self, name: str) -> bool:
        return (self.path / name).is_file()


def canonicalize(text: str, *, lowercase: bool) -> str:
    """Return a text without punctuation, as SigLIP was trained with. Source: transformers' tokenization_siglip.py,
    `canonicalize_text`."""
    text = text.lower() if lowercase else text
    return re.sub(r"\s+", " ", text.translate(_NO_PUNCTUATION)).strip()


def choose_for_encoders(
    sources: Sequence[ModelSource], device: str, threads: int, dtype: str, *, strict: bool = False
) -> Any:
    """Return the back-end and device of `--backend auto`. Encoding a picture is limited by matrix multiplications."""
    params = [param for source in sources for param in build_tower(_tower_config(source)).params()]
    values = sum(prod(param.shape) for param in params)

    def open_candidate(name: str, place: str) -> Backend:
        return open_device(name, place, threads, dtype)

    return choose_backend(
        device,
        open_candidate,
        lambda backend: TokenCost(0, 2 * values, 4 * values),
        allows_host=dtype in HOST_DTYPES,
        strict=strict,
    )


def _load(
    source: ModelSource, backend: Backend, threads: int, progress: Progress | None, *, eager: bool
) -> TowerRunner:
    """Return the runner of an encoder, with its weights."""
    tower = build_tower(_tower_config(source))
    weights: dict[str, Any] = dict(load_parameters(source, tower.params(), backend, progress, threads=threads))
    weights |= {name: backend.tensor(table) for name, table in tower.tables().items()}
    return TowerRunner(tower, weights, backend, eager=eager)


def _tower_config(source: ModelSource) -> TowerConfig:
    config = source.config
    assert isinstance(config, TowerConfig)
    return config
