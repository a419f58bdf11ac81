"""Atomic removal of models from the store."""

import os
from collections.abc import Sequence
from pathlib import Path

from sporelm import settings
from sporelm.errors import ModelError, ModelNotFound
from sporelm.files.store.folder_lock import LOCK, lock_model_folder, make_scratch_folder
from sporelm.files.store.hub_address import HUB_MARK, parse, select_gguf
from sporelm.files.store.store_entries import COMPLETE, Entry, Unfinished, entries, listing, unfinished
from sporelm.files.store.store_folders import HUB, is_name

Removable = Entry | Unfinished


def plan_removal(names: Sequence[str]) -> list[Removable]:
    """Return the models of these names, without duplicates. Raises ModelNotFound for an unknown name.

    `hf:owner/name` selects all models of that repository, unfinished downloads included.
    """
    found: dict[str, Removable] = {}
    for name in names:
        for each in _named(name):
            found[f"{type(each).__name__} {each.name}"] = each
    # A repository and a model of it, both named: the repository holds the model.
    whole = [set(each.files) for each in found.values() if isinstance(each, Entry)]
    return [
        each
        for each in found.values()
        if isinstance(each, Unfinished) or not any(set(each.files) < more for more in whole)
    ]


def _named(name: str) -> list[Removable]:
    stored = entries()
    exact: list[Removable] = [entry for entry in stored if entry.name == name]
    if name.startswith(HUB_MARK):
        address = parse(name)
        folder = settings.MODEL_STORE.path / HUB / address.owner / address.folder_name
        files = tuple(sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink()))
        if address.file is None:
            exact = [Entry(name, folder, files, folder)] if files else []
            exact += [left for left in unfinished() if left.name == name]
        elif not exact:
            inside = [entry for entry in stored if entry.folder == folder]
            held = {path.relative_to(folder).as_posix(): entry for entry in inside for path in entry.files}
            first = select_gguf(held, address)
            exact = [] if first is None else [held[first]]
    elif not is_name(name):
        raise ModelNotFound(
            f"{name[:100]!r} is not the name of a stored model: only what 'spore list' shows can be removed"
        )
    if not exact:
        from difflib import get_close_matches

        near = get_close_matches(name[:200], [entry.name for entry in stored], n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}" if near else f"; stored: {listing()}"
        raise ModelNotFound(f"no stored model {name[:200]!r}{hint}")
    return exact


def remove(models: Sequence[Removable]) -> int:
    """Remove stored models and return the number of bytes freed.

    Each is first moved to a scratch folder, so that no reader finds half a model, and then deleted. The targets of
    links are kept. Raises ModelError for a model that cannot be moved, ModelNotFound for one that is being downloaded;
    that model is unchanged, the models before it are removed.
    """
    store, freed = settings.MODEL_STORE.path, 0
    for model in models:
        nbytes = model.nbytes
        with make_scratch_folder(store, ".remove-") as scratch:
            try:
                _move_out(model, scratch)
            except OSError as error:
                raise ModelError(f"{model.name} cannot be removed: {error.strerror or error}") from None
        freed += nbytes
    return freed


def _move_out(model: Removable, scratch: Path) -> None:
    """Move a model's files into a folder. If one cannot be moved, move the others back."""
    if isinstance(model, Unfinished):
        with lock_model_folder(model.folder, model.name):
            _move([path for path in model.folder.iterdir() if path.name != LOCK], scratch)
        _remove_empty_folders(model.folder)
        return
    if model.folder.parent == settings.MODEL_STORE.path:
        model.folder.rename(scratch / "model")  # of a link, the link itself
        return
    # The marker and the first file are moved first: without them the rest is not a model.
    _move(sorted(model.files, key=lambda path: path.name != COMPLETE), scratch)
    for file in model.files:
        _remove_empty_folders(file.parent)


def _move(files: Sequence[Path], scratch: Path) -> None:
    """Move all files into a folder, or none."""
    moves = [(file, scratch / str(number)) for number, file in enumerate(files)]
    try:
        for here, there in moves:
            here.rename(there)
    except BaseException:  # an interrupt too
        for here, there in reversed(moves):
            if os.path.lexists(there):
                there.rename(here)
        raise


def _remove_empty_folders(folder: Path) -> None:
    """Remove empty folders, up to the store. The .cache folder of the huggingface_hub package is ignored."""
    import shutil

    hub = settings.MODEL_STORE.path / HUB
    while folder.is_relative_to(hub) and folder != hub:
        if any(path.name != ".cache" for path in folder.iterdir()) if folder.is_dir() else False:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder = folder.parent
