"""Loads the vision tower of a model, and connects it with the model's engine."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.api.image_inputs import ImageReader
from sporelm.api.user_paths import parse_path
from sporelm.backends.backend_parts import parts_of
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints.loader import ModelSource, load_parameters
from sporelm.checkpoints.towers.open_tower import find_tower, open_tower
from sporelm.engine import Engine
from sporelm.engine.image_encoder import ImageEncoder
from sporelm.engine.ranks.message_handler import use_images
from sporelm.engine.ranks.worker_group import AnyWorker, WorkerGroup
from sporelm.engine.tower_runner import TowerRunner
from sporelm.errors import ModelError, ModelNotFound, RequestError, UnsupportedModel, safe_repr
from sporelm.files.store import resolve
from sporelm.files.store.hub_address import HUB_MARK
from sporelm.models import build
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.tower import Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_registry import build_tower
from sporelm.text import Tokenizer
from sporelm.vision.processor_registry import open_processor

SAMPLE_BYTES = 64  # of each tensor


class LoadedTower(NamedTuple):
    """A tower whose weights are loaded. Its files are open until it is connected; the caller closes them."""

    source: ModelSource
    tower: Tower[Any]
    weights: Mapping[str, Any]
    backend: Backend


def load_tower(
    mmproj: str | Path | None,
    source: ModelSource,
    backend: Backend,
    threads: int,
    progress: Progress | None,
    *,
    dequantize: bool = False,
) -> LoadedTower | None:
    """Return the tower in an mmproj file, or in the model's folder; None if there is none.

    The caller closes the tower's files. Raises ModelNotFound, ModelFileError, UnsupportedModel, MemoryShortage;
    RequestError if the model's folder has a tower too.
    """
    if not check_single_tower(mmproj, source):
        return None
    path = source.path if mmproj is None else resolve_mmproj(mmproj, progress)
    with ExitStack() as files:
        tower_source = files.enter_context(closing(open_tower(path)))
        config = tower_source.config
        assert isinstance(config, TowerConfig)
        tower = build_tower(config)
        model = build(source.config)
        if not isinstance(model, Decoder) or tower.config.columns != model.image_columns:
            columns = model.image_columns if isinstance(model, Decoder) else "none"
            raise UnsupportedModel(
                f"{path}: the vision tower does not fit the model (got rows of {tower.config.columns} values; allowed "
                f"{columns}). Give the mmproj file that was made with this model."
            )
        place = parts_of(backend)[-1]  # of a split model: the CPU
        weights: dict[str, Any] = dict(
            load_parameters(tower_source, tower.params(), place, progress, dequantize=dequantize, threads=threads)
        )
        weights |= {name: place.tensor(table) for name, table in tower.tables().items()}
        files.pop_all()
    return LoadedTower(tower_source, tower, weights, place)


def resolve_mmproj(mmproj: str | Path, progress: Progress | None = None, *, fetch: bool = True) -> Path:
    """Return the path of an mmproj file as `store.resolve` does. Raises ModelNotFound, which names the option."""
    path = parse_path("mmproj", mmproj)
    if path.suffix == ".gguf" and not str(mmproj).startswith(HUB_MARK) and not path.exists():
        raise ModelNotFound(f"mmproj: no such file (got {safe_repr(str(mmproj), 200)}). Give the path of the file.")
    return resolve(path, progress, fetch=fetch)


def check_single_tower(mmproj: str | Path | None, source: ModelSource) -> bool:
    """Return whether a model has a vision tower, of its own or in a file. Raises RequestError if it has both."""
    has_own = source.path.is_dir() and find_tower(source.path) is not None
    if mmproj is not None and has_own:
        raise RequestError(f"mmproj: {source.path} has a vision tower of its own. Leave the option mmproj out.")
    return has_own or mmproj is not None


def find_mmproj(path: Path, config: ModelConfig) -> Path | None:
    """Return the first file beside a model's file with a vision tower whose rows are as wide as the model's; None if
    there is none. A relative path gives a relative one."""
    model = build(config)
    if not isinstance(model, Decoder) or not path.is_file():
        return None
    for file in sorted(path.parent.glob("*mmproj*.gguf")):
        try:
            with closing(open_tower(file)) as source:
                if isinstance(source.config, TowerConfig) and source.config.columns == model.image_columns:
                    return file
        except ModelError:  # damaged, or of another kind
            continue
    return None


def connect_tower(
    loaded: LoadedTower, worker: AnyWorker, engine: Engine, tokenizer: Tokenizer, eager: bool
) -> ImageReader:
    """Enable images in an engine, and return their reader. The tower's files must still be open."""
    processor = open_processor(loaded.source, lambda text: tokenizer.control_id(text) is not None)
    key = tower_key(loaded.source)
    model: Any = worker.runner.model  # a decoder, or one rank of it
    with ExitStack() as cleanup:
        runner = TowerRunner(loaded.tower, loaded.weights, loaded.backend, eager=eager)
        cleanup.callback(runner.close)
        sample = processor.process(np.zeros((64, 64, 3), np.uint8)).images[0]
        runner.prepare(sample)  # compiled now, since compilation at the first picture would stall other streams
        if isinstance(worker, WorkerGroup):
            worker.use_images(loaded.tower.config.columns)
        else:
            use_images(worker, loaded.tower.config.columns)
        engine.use_image_encoder(ImageEncoder(runner), attends_both_ways=model.attends_images_both_ways)
        cleanup.pop_all()
    positions_of = model.image_positions if model.has_rope_positions else None
    return ImageReader(processor, key, tokenizer, positions_of, worker.limits.max_context, runner.check)


def tower_key(source: ModelSource) -> bytes:
    """Return a hash of a tower's configuration and of samples of its tensors, which distinguishes towers in session
    files and prefix caches."""
    digest = blake2b(repr(source.config).encode(), digest_size=16)
    for name in sorted(source.files.tensors):
        info = source.files.tensors[name]
        digest.update(repr((name, info.shape, info.type_name)).encode())
        digest.update(source.files.tensor(name).blocks.reshape(-1)[:SAMPLE_BYTES].tobytes())
    return digest.digest()
