"""Atomic writing of a folder: all its files or none, through temporary files beside their places."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.errors import RequestError
from sporelm.files.atomic_write import Job, write_beside
from sporelm.files.safetensors import SINGLE_NAME
from sporelm.tools.hf.shards import Shard, build_index, plan_shards, text_writer
from sporelm.tools.hf.to_hf import HfFolder
from sporelm.tools.output_file import CHUNKS_AHEAD, Progress, WrittenFile, check_space

# Files of other writers that would be read with ours, or instead of them.
FOREIGN_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf", "*.model", "chat_template.jinja"),
    *("quantize_config.json", "quant_config.json", "adapter_config.json"),  # which make other weights of ours
)


class FolderFile(NamedTuple):
    """A file that was written, or would be."""

    path: Path
    nbytes: int
    tensors: int

    def as_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "bytes": self.nbytes, "tensors": self.tensors}


def save_folder(
    found: HfFolder,
    folder: Path,
    *,
    shard_bytes: int,
    force: bool = False,
    dry_run: bool = False,
    threads: int = 2,
    progress: Progress = lambda phase, done, total: None,
) -> list[FolderFile]:
    """Write the folder, which may be there already if nothing in it is in the way.

    With `force` files of the same names are replaced. Raises RequestError for what is in the way, a disk that is too
    small, or a file that cannot be written: then the folder is as it was.
    """
    shards = plan_shards(found.tensors, folder, shard_bytes) if found.tensors else []
    texts = dict(found.texts)
    if len(shards) > 1 and (index := build_index(shards)) is not None:
        texts[index[0]] = index[1]
    shards += [Shard(folder / place / SINGLE_NAME, tensors) for place, tensors in found.modules.items()]
    files = [FolderFile(shard.path, shard.nbytes, len(shard.tensors)) for shard in shards]
    files += [FolderFile(folder / name, len(text.encode()), 0) for name, text in texts.items()]
    _check_folder(folder, {file.path for file in files}, force)
    if folder.parent.is_dir():
        check_space([WrittenFile(folder, sum(file.nbytes for file in files), 0, 0)])
    if dry_run:
        return files
    total = sum(tensor.nbytes for shard in shards for tensor in shard.tensors)
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress("writing", done, total)

    made: list[Path] = []  # folders
    try:
        with ThreadPoolExecutor(threads, "spore-convert") as pool:
            writes: list[Callable[[Any], object]] = [
                partial(shard.write, pool=pool, ahead=threads * CHUNKS_AHEAD, advance=advance) for shard in shards
            ]
            jobs = [Job(shard.path, write) for shard, write in zip(shards, writes, strict=True)]
            jobs += [Job(folder / name, text_writer(text)) for name, text in texts.items()]
            for place in _list_folders(folder, [job.path for job in jobs]):
                if not place.exists():
                    made.append(place)  # recorded first, so that no interrupt leaves it behind
                _make_folder(place)
            try:
                write_beside(jobs, replace=force)
            finally:
                pool.shutdown(cancel_futures=True)
    except BaseException:
        for place in reversed(made):
            with suppress(OSError):
                place.rmdir()  # empty, unless another program wrote into it
        raise
    return files


def _list_folders(folder: Path, files: Sequence[Path]) -> list[Path]:
    """List the folders that files need, the outer one first."""
    return [folder, *sorted({path.parent for path in files} - {folder})]


def _make_folder(folder: Path) -> None:
    """Create a folder unless it exists. Raises RequestError."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as reason:
        raise RequestError(f"cannot create folder {folder}: {reason}") from None


def _check_folder(folder: Path, ours: set[Path], force: bool) -> None:
    """Refuse a path that is not a folder, has no parent, holds these files (no `force`), or files of another model."""
    if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
        raise RequestError(f"{folder} is a file; name a folder with -o")
    if not folder.parent.is_dir():
        raise RequestError(f"{folder} cannot be written: there is no folder {folder.parent}; make it first")
    for path in sorted(ours):
        if path.is_dir():
            raise RequestError(f"{path} is a folder; name another place with -o")
        if not force and (path.exists() or path.is_symlink()):
            raise RequestError(f"{path} is there already; --force overwrites it, -o names another place")
    if folder.is_dir():
        others = sorted(path for pattern in FOREIGN_FILES for path in folder.glob(pattern) if path not in ours)
        others += [path for path in (folder / "additional_chat_templates",) if path.exists()]
        if others:
            raise RequestError(
                f"{folder} holds {others[0].name}, which is read together with the new files; take an empty folder"
            )
