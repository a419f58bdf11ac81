"""Entries of the store: every model under the name that MODEL accepts, and unfinished downloads."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sporelm import settings
from sporelm.errors import ModelNotFound
from sporelm.files.store.hub_address import Address, gguf_models, of_folder, splits_of
from sporelm.files.store.store_folders import HUB, folder_content, holds_model, is_name

COMPLETE = ".complete"  # marks a Hugging Face folder with all its files
SCRATCH = ".pull-"  # begins the name of the folder in which a model of the hub is gathered


@dataclass(frozen=True)
class Entry:
    """A stored model.

    name    what MODEL takes: `smollm2`, `hf:owner/name`, `hf:owner/name:file.gguf`
    path    what it resolves to; the folder itself where that is not clear (several models in one folder)
    files   all that is the model's, and nothing else's
    folder  what goes away with its last file
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    folder: Path

    @property
    def nbytes(self) -> int:
        return sum(size_of(path) for path in self.files)

    @property
    def modified(self) -> float:
        """When the latest of its files was written, in seconds since 1970."""
        return max((_written(path) for path in self.files), default=0.0)


@dataclass(frozen=True)
class Unfinished:
    """A model of the hub that was not fetched to its end: its address without a file, and where the parts are."""

    name: str
    folder: Path

    @property
    def nbytes(self) -> int:
        return sum(size_of(path) for path in self.folder.rglob("*"))


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 for a missing file or another kind."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _written(path: Path) -> float:
    """When a file was written; 0 for one that has gone meanwhile."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def entries() -> list[Entry]:
    """Every stored model, by name."""
    return [*_named(settings.MODEL_STORE.path), *_of_hub(settings.MODEL_STORE.path)]


def names() -> list[str]:
    """The names of the stored models, sorted; those of the hub are not among them."""
    return [entry.name for entry in _named(settings.MODEL_STORE.path)]


def listing() -> str:
    """The stored models for a message."""
    found = [entry.name for entry in entries()]
    more = f" and {len(found) - 20} more" if len(found) > 20 else ""
    return ", ".join(found[:20]) + more or "nothing"


def unfinished() -> list[Unfinished]:
    """Return the downloads that `pull` began and did not finish."""
    found = []
    for owner in _folders(settings.MODEL_STORE.path / HUB):
        for folder in sorted(owner.glob(f"{SCRATCH}*")):
            address = _address(owner.name, folder.name.removeprefix(SCRATCH))
            if address is not None and folder.is_dir():
                found.append(Unfinished(address.whole, folder))
    return found


def _folders(place: Path) -> list[Path]:
    """The folders in one that are not hidden; none where it cannot be read."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _address(owner: str, folder_name: str) -> Address | None:
    try:
        return of_folder(owner, folder_name)
    except ModelNotFound:
        return None


def _named(store: Path) -> Iterator[Entry]:
    for folder in _folders(store):
        if is_name(folder.name) and holds_model(folder):
            try:
                path = folder_content(folder)
            except ModelNotFound:  # several models
                path = folder
            files = tuple(sorted(file for file in folder.rglob("*") if file.is_file() or file.is_symlink()))
            yield Entry(folder.name, path, files, folder)


def _of_hub(store: Path) -> Iterator[Entry]:
    for owner in _folders(store / HUB):
        for folder in _folders(owner):
            address = _address(owner.name, folder.name)
            if address is not None:
                yield from _of_repository(folder, address)


def _of_repository(folder: Path, address: Address) -> Iterator[Entry]:
    """The models in the folder of one repository: a Hugging Face folder, and GGUF models beside it."""
    held = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    held = {name: path for name, path in held.items() if not name.startswith(".cache/")}
    models = gguf_models(held)
    is_folder = COMPLETE in held
    if is_folder:
        of_models = {file for model in models for file in splits_of(model)}
        yield Entry(address.whole, folder, tuple(path for name, path in held.items() if name not in of_models), folder)
    for model in models:
        name = address.whole if len(models) == 1 and not is_folder else f"{address.whole}:{model}"
        yield Entry(name, held[model], tuple(held[file] for file in splits_of(model)), folder)
