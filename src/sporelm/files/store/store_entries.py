"""Entries of the store: every model under the name that MODEL accepts, and unfinished downloads."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sporelm import settings
from sporelm.errors import ModelNotFound
from sporelm.files.store.hub_address import Address, address_of_folder, list_gguf_models, list_splits
from sporelm.files.store.store_folders import HUB, find_model_path, has_model, is_name

COMPLETE = ".complete"  # marks a Hugging Face folder with all its files
SCRATCH = ".pull-"  # prefix of the folders into which models of the hub are downloaded


@dataclass(frozen=True)
class Entry:
    """A stored model.

    name    the value of MODEL: `smollm2`, `hf:owner/name`, `hf:owner/name:file.gguf`
    path    the path that MODEL resolves to; the folder if it is ambiguous (several models in one folder)
    files   all files of the model, and no others
    folder  the folder to remove with its last file
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    folder: Path

    @property
    def nbytes(self) -> int:
        return sum(read_size(path) for path in self.files)

    @property
    def modified(self) -> float:
        """The time of its last modification, in seconds since 1970."""
        return max((_written(path) for path in self.files), default=0.0)


@dataclass(frozen=True)
class Unfinished:
    """An unfinished download from the hub: its address without a file, and the folder of the partial files."""

    name: str
    folder: Path

    @property
    def nbytes(self) -> int:
        return sum(read_size(path) for path in self.folder.rglob("*"))


def read_size(path: Path) -> int:
    """Return the bytes of a file; 0 for a missing file or another kind."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _written(path: Path) -> float:
    """Return the modification time of a file; 0 for a missing one."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def entries() -> list[Entry]:
    """Return all stored models, sorted by name."""
    return [*_named(settings.MODEL_STORE.path), *_of_hub(settings.MODEL_STORE.path)]


def names() -> list[str]:
    """Return the names of the stored models, sorted, without those of the hub."""
    return [entry.name for entry in _named(settings.MODEL_STORE.path)]


def listing() -> str:
    """Return the names of the stored models for a message."""
    found = [entry.name for entry in entries()]
    more = f" and {len(found) - 20} more" if len(found) > 20 else ""
    return ", ".join(found[:20]) + more or "nothing"


def unfinished() -> list[Unfinished]:
    """Return the unfinished downloads of `pull`."""
    found = []
    for owner in _folders(settings.MODEL_STORE.path / HUB):
        for folder in sorted(owner.glob(f"{SCRATCH}*")):
            address = _address(owner.name, folder.name.removeprefix(SCRATCH))
            if address is not None and folder.is_dir():
                found.append(Unfinished(address.whole, folder))
    return found


def _folders(place: Path) -> list[Path]:
    """Return the visible subfolders of a folder; none if it cannot be read."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _address(owner: str, folder_name: str) -> Address | None:
    try:
        return address_of_folder(owner, folder_name)
    except ModelNotFound:
        return None


def _named(store: Path) -> Iterator[Entry]:
    for folder in _folders(store):
        if is_name(folder.name) and has_model(folder):
            try:
                path = find_model_path(folder)
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
    """Yield the models in a repository's folder: a Hugging Face folder, and GGUF models beside it."""
    held = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    held = {name: path for name, path in held.items() if not name.startswith(".cache/")}
    models = list_gguf_models(held)
    is_folder = COMPLETE in held
    if is_folder:
        of_models = {file for model in models for file in list_splits(model)}
        yield Entry(address.whole, folder, tuple(path for name, path in held.items() if name not in of_models), folder)
    for model in models:
        name = address.whole if len(models) == 1 and not is_folder else f"{address.whole}:{model}"
        yield Entry(name, held[model], tuple(held[file] for file in list_splits(model)), folder)
