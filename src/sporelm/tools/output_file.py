"""Writing models: checks before the first byte, streams, and files that appear whole or not at all."""

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.errors import RequestError, SporeError, UnsupportedModel
from sporelm.files.atomic_write import Job, write_beside
from sporelm.files.gguf import GgufWriter
from sporelm.files.part_files import remove_abandoned
from sporelm.files.tensor_messages import quote
from sporelm.quant import FORMATS
from sporelm.tools.lazy_model import Blocks, LazyModel, LazyTensor

Progress = Callable[[str, int, int], None]  # phase, done, total; both in bytes

COPY_CHUNK_BYTES = 4 << 20  # at a time
COMPUTE_CHUNK_VALUES = 1 << 19  # at a time and thread: 2 MiB of float32
CHUNKS_AHEAD = 2  # chunks under way per thread


class OutputFile(NamedTuple):
    """One file to be written."""

    path: Path
    model: LazyModel


class WrittenFile(NamedTuple):
    """A file that was written (or, of a dry run, would be)."""

    path: Path
    nbytes: int
    keys: int
    tensors: int

    def as_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "bytes": self.nbytes, "metadata": self.keys, "tensors": self.tensors}


def save_models(
    outputs: Sequence[OutputFile],
    *,
    force: bool = False,
    dry_run: bool = False,
    has_data: bool = True,
    threads: int = 2,
    progress: Progress = lambda phase, done, total: None,
) -> list[WrittenFile]:
    """Write all files, or none: beside their places first, then renamed. `dry_run` checks and writes nothing.
    Without `has_data` each file ends after its header, and no tensor is read.

    An output may be one of the files it is read from: the old file stays until the new one is whole. Raises
    RequestError if a file is there already and `force` is not given, if the disk is too small, or if a file cannot be
    written; and whatever reading and computing the tensors raises.
    """
    check_output_paths([output.path for output in outputs], force)
    if not has_data:
        check_sources_remain(outputs)
    with ThreadPoolExecutor(threads, "spore-convert") as pool:  # starts none before there is something to compute
        writers = [_make_writer(output, has_data, pool, threads * CHUNKS_AHEAD) for output in outputs]
        written = [
            WrittenFile(output.path, writer.nbytes, len(output.model.metadata), len(output.model.tensors))
            for output, writer in zip(outputs, writers, strict=True)
        ]
        check_space(written)
        if dry_run:
            return written
        total = sum(tensor.nbytes for output in outputs for tensor in output.model.tensors if has_data)
        done = 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress("writing", done, total)

        jobs = [Job(writer.path, partial(writer.write_to, advance=advance)) for writer in writers]
        try:
            write_beside(jobs, replace=force)
        finally:
            pool.shutdown(cancel_futures=True)
    return written


def check_output_paths(paths: Sequence[Path], force: bool) -> None:
    """Raise RequestError for a path that exists, is a folder, lies in no writable folder, or is named twice."""
    for before, after in pairwise(sorted(path.resolve() for path in paths)):
        if before == after:
            raise RequestError(f"{after} would be written twice; name the outputs apart with -o")
    for path in paths:
        if path.is_dir():
            raise RequestError(f"{path} is a folder; name a file with -o")
        if not path.parent.is_dir():
            raise RequestError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise RequestError(f"{path} cannot be written: {path.parent} may not be written to; name another with -o")
        if not force and (path.exists() or path.is_symlink()):
            raise RequestError(f"{path} is there already; --force overwrites it, -o names another place")


def check_sources_remain(outputs: Sequence[OutputFile]) -> None:
    """Raise RequestError if a file without data would replace a file that its model is read from."""
    for output in outputs:
        if output.path.resolve() in {source.resolve() for source in output.model.paths}:
            raise RequestError(
                f"{output.path}: --no-data would delete the tensor data of the model. Name another with -o"
            )


def check_space(written: Sequence[WrittenFile]) -> None:
    """Refuse what does not fit on the disks. Old files that will be overwritten stay until the end. Raises
    RequestError."""
    needed: dict[int, tuple[Path, int]] = {}
    for file in written:
        with suppress(OSError):
            device = file.path.parent.stat().st_dev
            needed[device] = (file.path.parent, needed.get(device, (file.path, 0))[1] + file.nbytes)
    for folder, nbytes in needed.values():
        with suppress(OSError):  # a disk that does not tell its free space
            free = shutil.disk_usage(folder).free
            if nbytes > free and remove_abandoned(folder):
                free = shutil.disk_usage(folder).free
            if nbytes > free:
                from sporelm.units import in_units

                raise RequestError(
                    f"{folder} has {in_units(free)} free, {in_units(nbytes)} are needed; make room, or use another disk"
                )


def _make_writer(output: OutputFile, has_data: bool, pool: ThreadPoolExecutor, ahead: int) -> GgufWriter:
    """A writer with all of a model. Raises RequestError or UnsupportedModel for what cannot be written."""
    model = output.model
    writer = GgufWriter(output.path, byte_order=model.byte_order, version=model.version, has_data=has_data)
    for key, entry in model.metadata.items():
        writer.add(key, entry.value, entry.kind)
    for tensor in model.tensors:
        _check_order(tensor, model.byte_order)
        produce = partial(read_chunks, tensor, model.byte_order, pool, ahead)
        writer.add_chunks(tensor.name, tensor.type_id, tensor.shape, produce)
    return writer


def _check_order(tensor: LazyTensor, byte_order: str) -> None:
    if tensor.byte_order != byte_order and tensor.ggml_type.name not in FORMATS and tensor.ggml_type.nbytes > 1:
        raise UnsupportedModel(
            f"tensor {quote(tensor.name)} has type {tensor.ggml_type.name}, which can only be copied, not converted"
            f" from {tensor.byte_order}-endian to {byte_order}-endian"
        )


def read_chunks(tensor: LazyTensor, byte_order: str, pool: ThreadPoolExecutor, ahead: int) -> Iterator[Blocks]:
    """The blocks of a tensor in order, in the byte order of the file; several threads compute ahead."""
    if tensor.is_computed:
        row = tensor.shape[-1] // tensor.ggml_type.values if tensor.shape else 1  # blocks; whole rows where they fit
        step = max(1, COMPUTE_CHUNK_VALUES // tensor.ggml_type.values)
        step = step // row * row if 0 < row <= step else step
    else:
        step = max(1, COPY_CHUNK_BYTES // tensor.ggml_type.nbytes)
    count = tensor.block_count
    spans = ((start, min(start + step, count)) for start in range(0, count, step))

    def make(start: int, stop: int) -> Blocks:
        try:
            blocks = tensor.read(start, stop)
        except SporeError as reason:
            if quote(tensor.name) in str(reason):
                raise
            raise type(reason)(f"tensor {quote(tensor.name)}: {reason}") from None
        return blocks if tensor.byte_order == byte_order else tensor.number_format.byteswap(blocks)

    if not tensor.is_computed:
        for start, stop in spans:
            yield make(start, stop)
        return
    under_way: deque[Future[Blocks]] = deque()
    for start, stop in spans:
        under_way.append(pool.submit(make, start, stop))
        if len(under_way) > ahead:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()
