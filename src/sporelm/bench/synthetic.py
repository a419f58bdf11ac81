"""Synthetic models: `synthetic:SHAPE:FORMAT` becomes a GGUF file of random weights, written once and kept.

The file is the same on every machine, and other programs read it: a benchmark needs a model's shape and its number
formats, not what it has learned. A billion values would take minutes to draw and round; so one pool of runs of 256
values is drawn and quantized per format, and every matrix is a random sequence of the pool's runs. A run is whole
blocks, so a matrix equals the quantization of its values; read-only formats get random codes instead. The values look
normal, with a standard deviation of 1 / sqrt(width): each matrix keeps the magnitude of its input, and no activation
leaves its range.
"""

import shutil
import zlib
from collections.abc import Callable
from functools import partial
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm import settings
from sporelm.bench.model_shapes import SHAPES
from sporelm.bench.synthetic_formats import FILE_TYPES, assign_formats, list_formats
from sporelm.bench.synthetic_vocabulary import add_vocabulary
from sporelm.errors import RequestError
from sporelm.quant import F32, QuantFormat, quantize_tensor
from sporelm.quant.random_blocks import make_random_blocks

if TYPE_CHECKING:
    from sporelm.quant.stored_tensor import StoredTensor

Progress = Callable[[str, int, int], None]  # phase, done, total; both in bytes

PREFIX = "synthetic:"
RECIPE = 1  # in the file's name; raise it when anything changes what is written
RUN = 256  # values: whole blocks of every format
POOL_RUNS = 4096  # a power of two up to 1 << 16
SEED = 0x5F0E
HEADER_BYTES_PER_TOKEN = 40  # of the header, a token and its merge; more than enough


def is_synthetic(model: object) -> bool:
    """Whether MODEL names a synthetic model."""
    return isinstance(model, str) and model.startswith(PREFIX)


def parse_synthetic_name(model: str) -> tuple[str, str]:
    """The names of shape and format in `synthetic:SHAPE:FORMAT`, any case. Raises RequestError that lists what is."""
    shape, _, number_format = model.removeprefix(PREFIX).lower().partition(":")
    shapes = ", ".join(SHAPES)
    named = ", ".join(list_formats())
    if shape not in SHAPES:
        wrong = f"there is no shape {shape[:60]!r}" if shape else "a shape and a number format are needed"
        raise RequestError(f"{model[:100]!r}: {wrong}; shapes: {shapes}; formats: {named}")
    if number_format not in list_formats():
        wrong = f"there is no format {number_format[:60]!r}" if number_format else "a number format is needed"
        raise RequestError(f"{model[:100]!r}: {wrong}, as in {PREFIX}{shape}:q4_0; formats: {named}")
    return shape, number_format


def synthetic_file_name(name: str, number_format: str) -> str:
    """The file's name, which says everything that makes its content."""
    shape = SHAPES[name]
    numbers = (
        f"l{shape.layers}-w{shape.width}-f{shape.ffn}-h{shape.heads}-k{shape.kv_heads}-d{shape.head_dim}-v{shape.vocab}"
    )
    return f"{name}-{numbers}{shape.suffix}-{number_format}-r{RECIPE}.gguf"


def synthetic_file(model: str, progress: Progress | None = None) -> Path:
    """The file of `synthetic:SHAPE:FORMAT`, written now unless it is there.

    Raises RequestError for a shape or format that is not known, and, before it writes, if the disk lacks the space.
    """
    name, number_format = parse_synthetic_name(model)
    shape = SHAPES[name]
    chosen = assign_formats(number_format, shape, model)
    path = settings.SYNTHETIC_MODELS.path / synthetic_file_name(name, number_format)
    if path.is_file():
        return path
    needed = sum(chosen[tensor].tensor_nbytes(extents) for tensor, extents in shape.tensors().items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise RequestError(
            f"{str(path.parent)!r} cannot hold {model}: {error.strerror or error}; "
            f"set {settings.SYNTHETIC_MODELS.name} to another folder"
        ) from None
    if needed + HEADER_BYTES_PER_TOKEN * shape.vocab > free:
        raise RequestError(
            f"{model} takes {needed / 1e9:.1f} GB, {str(path.parent)!r} has {free / 1e9:.1f} GB left: "
            f"make room, or set {settings.SYNTHETIC_MODELS.name} to another folder"
        )
    write_synthetic_model(path, name, number_format, chosen, progress)
    return path


def write_synthetic_model(
    path: Path, name: str, number_format: str, chosen: dict[str, type[QuantFormat]], progress: Progress | None
) -> None:
    """Write the model whole, beside its place and then renamed. `chosen` has the number format of every tensor."""
    from sporelm.files.gguf import GgufWriter

    shape = SHAPES[name]
    writer = GgufWriter(path)
    writer.add("general.architecture", shape.architecture)
    writer.add("general.name", f"synthetic {name} {number_format}")
    if number_format in FILE_TYPES:
        writer.add("general.file_type", FILE_TYPES[number_format], "u32")
    for key, value in shape.metadata().items():
        kind = {float: "f32", int: "u32", list: "[i32]"}[type(value)]
        writer.add(f"{shape.architecture}.{key}", value, kind)
    add_vocabulary(writer, shape.vocab)
    pools = BlockPools(shape.width)
    extents = shape.tensors()
    total = sum(chosen[tensor].tensor_nbytes(extents[tensor]) for tensor in extents)
    done = 0

    def produce(tensor: str) -> "StoredTensor":
        nonlocal done
        if progress is not None:
            progress("writing", done, total)
        made = pools.tensor(tensor, chosen[tensor], extents[tensor])
        done += made.nbytes
        return made

    for tensor, extent in extents.items():
        writer.add_later(tensor, chosen[tensor], extent, partial(produce, tensor))
    writer.write()
    if progress is not None:
        progress("writing", total, total)


class BlockPools:
    """Quantized runs of random values, made once per number format; all formats round the same values."""

    def __init__(self, width: int) -> None:
        values = draw_normals(PortableRandom(SEED), POOL_RUNS * RUN)
        self.values = values * np.float32(1 / sqrt(width))
        self.blocks: dict[type[QuantFormat], NDArray[np.uint8]] = {}

    def tensor(self, name: str, number_format: type[QuantFormat], shape: tuple[int, ...]) -> "StoredTensor":
        """A tensor as it goes into the file: runs in an order that its name decides; the vectors are norms near 1, or
        the rates near -1 at which states decay."""
        from sporelm.quant.stored_tensor import StoredTensor

        draws = PortableRandom(SEED, zlib.crc32(name.encode()))
        if len(shape) == 1:
            near_one = np.float32(1) + np.float32(0.1) * draw_normals(draws, shape[0])
            near_one *= -1 if name.endswith(".ssm_a") else 1
            return StoredTensor(name, F32, shape, near_one.astype("<f4").view(np.uint8))
        nbytes = number_format.tensor_nbytes(shape)
        runs = self.runs(number_format)
        order = draws.below_64k(-(-nbytes // runs.shape[1])) & np.uint16(POOL_RUNS - 1)
        return StoredTensor(name, number_format, shape, runs[order].reshape(-1)[:nbytes])

    def runs(self, number_format: type[QuantFormat]) -> NDArray[np.uint8]:
        """The pool in a format: uint8 [POOL_RUNS, bytes of a run]."""
        if number_format not in self.blocks:
            if number_format.can_quantize:
                blocks = quantize_tensor(number_format, self.values)
            else:
                raw = (
                    PortableRandom(SEED, number_format.ggml_id)
                    .below_64k(POOL_RUNS * number_format.nbytes)
                    .astype(np.uint8)
                )
                blocks = make_random_blocks(
                    number_format, raw.reshape(POOL_RUNS, -1), self.values.reshape(POOL_RUNS, -1)
                )
            self.blocks[number_format] = blocks.reshape(POOL_RUNS, -1)
        return self.blocks[number_format]


class PortableRandom:
    """Random integers that are the same with every numpy, on every machine: the generator's own bits, not a function
    of them that numpy may change."""

    def __init__(self, *seed: int) -> None:
        self.bits = np.random.PCG64(seed)

    def below_64k(self, count: int) -> NDArray[np.uint16]:
        """`count` integers of 16 bits."""
        words: NDArray[np.uint64] = self.bits.random_raw(-(-count // 4))
        return words.astype("<u8").view("<u2")[:count].astype(np.uint16, copy=False)


def draw_normals(draws: PortableRandom, count: int) -> NDArray[np.float32]:
    """`count` values of mean 0 and deviation 1 that look normal: sums of eight even draws, exact in integers."""
    sums = draws.below_64k(8 * count).reshape(count, 8).astype(np.int32).sum(axis=1, dtype=np.int32)
    deviation = sqrt(8 * (65536**2 - 1) / 12)
    return ((sums - 8 * 32768 + 4).astype(np.float64) / deviation).astype(np.float32)
