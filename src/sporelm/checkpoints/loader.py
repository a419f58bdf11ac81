"""Loads a model's tensors from its files into a back-end and checks each of them.

The schema resolves stored names once into a list of mapped tensors (`map_tensors`). Checking names and shapes,
estimating memory and loading all walk that list. Missing and unknown tensors are errors.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from sporelm.backends.backend_parts import backend_of_weight, part_of_weight, parts_of
from sporelm.backends.load_progress import count_progress
from sporelm.backends.memory_residency import available_bytes, drop_pages
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.quantized import QuantizedFolder
from sporelm.checkpoints.tensor_mapping import MappedTensor, TensorMapping
from sporelm.checkpoints.tensor_names import HF, Kind, find_unread, format_names, split_layer_number
from sporelm.checkpoints.tensor_table import alternatives
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS
from sporelm.checkpoints.transforms import as_f32
from sporelm.errors import MemoryShortage, ModelFileError
from sporelm.files.gguf import GgufFile
from sporelm.files.safetensors import SafetensorsFiles
from sporelm.models.config import MAX_WIDTH, ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.params import ORDERED, Param, order_name
from sporelm.models.sharding_plan import RankWeights
from sporelm.quant import BF16, F32, QuantFormat, format_of
from sporelm.quant.finite_check import has_only_finite
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.tensor import Tensor
from sporelm.units import in_units

MAX_THREADS = 8  # packing is bound by memory; more threads only hold more of the file at once
CHECK_VALUES = 1 << 18  # checked at a time, to bound temporary memory


@dataclass(frozen=True)
class ModelSource:
    """An open model: its configuration is read; its tensors are mapped into memory and not read yet."""

    kind: Kind
    path: Path
    files: GgufFile | SafetensorsFiles | QuantizedFolder
    config: ModelConfig
    schema: GgufSchema | HfSchema

    @property
    def notes(self) -> tuple[str, ...]:
        """The differences between the loaded model and its files, one line each."""
        notes = self.files.notes if isinstance(self.files, QuantizedFolder) else ()
        return (*notes, *self.vision_notes(), *self._head_note(), *self._dequantized_note())

    def _dequantized_note(self) -> tuple[str, ...]:
        """Return a note about quantized tensors that are loaded as F32, if any are."""
        rows = self.schema.tensor_table(self.config).values()
        stored = [each for row in rows for each in alternatives(row)]
        templates = {each.name for each in stored if any(step.is_dequantizing for step in each.transforms)}
        names = [
            name
            for name, info in self.files.tensors.items()
            if templates and split_layer_number(name)[0] in templates and format_of(info.type_name).values > 1
        ]
        if not names:
            return ()
        what = "its blocks cannot be transposed, so its key projection is computed in F32"
        return (f"{format_names(names, 1)}: {what}; files that have attn_k_b take less memory",)

    def _head_note(self) -> tuple[str, ...]:
        """Return a note about an unread pretraining head of an encoder, if its folder has one."""
        name = self.config.architecture
        if not issubclass(self.schema.architecture, Encoder) or not name.endswith(("ForMaskedLM", "ForPreTraining")):
            return ()
        ignored = sorted(self.schema.find_ignored(self.files.tensors))
        heads = [each for each in ignored if "pooler" not in each and "position_ids" not in each]
        return (f"{format_names(heads, 1)}: the pretraining head of {name} is not read",) if heads else ()

    def vision_notes(self) -> tuple[str, ...]:
        """Return the note about unread vision and audio tensors, if there are any."""
        if MULTIMODAL_TENSORS[0] not in self.schema.ignored_tensors:
            return ()
        parts = sorted(
            find_unread(self.files.tensors, self.kind, MULTIMODAL_TENSORS) - find_unread(self.files.tensors, self.kind)
        )
        return (f"text only: vision and audio tensors are skipped ({format_names(parts, 1)})",) if parts else ()

    def close(self) -> None:
        """Close the files. Tensors already loaded stay valid."""
        self.files.close()


def load_parameters(
    source: ModelSource,
    params: Sequence[Param],
    backend: Backend,
    progress: Progress | None = None,
    *,
    dequantize: bool = False,
    threads: int | None = None,
    rank_weights: RankWeights | None = None,
) -> dict[str, Tensor]:
    """Return the parameters by name, packed for the back-end by several threads at once.

    progress(phase="load", done bytes, total bytes of the file's tensors) is called from those threads, one at a time.
    A weight with permuted columns is returned with their order, int32 [in], under `order_name` of its name. With
    `dequantize`, every tensor is loaded as float32 values: the reference for the error of quantization. With
    `rank_weights`, only that rank's part of the weights is loaded. Raises
    ModelFileError for a missing, unknown, misshapen or non-finite tensor, MemoryShortage before anything is loaded.
    """
    mapping = map_tensors(source, params)
    check_shapes(source, mapping)
    max_workers = max(1, min(threads or os.cpu_count() or 1, MAX_THREADS))
    if rank_weights is not None:
        mapping = TensorMapping(tuple(each for each in mapping.tensors if rank_weights.has(each.param.name)))
    workers = _count_workers(source, mapping, backend, dequantize, max_workers, rank_weights)
    total = sum(source.files.tensors[name].nbytes for each in mapping.tensors for name in each.sources)
    report = count_progress(progress, "load", total)
    orders: dict[str, np.ndarray] = {}

    def load(tensor: MappedTensor) -> Tensor:
        param = tensor.param
        shard = rank_weights.range(param.name) if rank_weights else None
        names = tensor.sources
        if shard and tensor.stack and shard[0] == 0:  # whole experts: those of other ranks are not read
            names, shard = names[shard[1] : shard[2]], None
        stored = [source.files.tensor(name) for name in names]
        if shard and tensor.is_plain and stored[0].order is None:
            stored, shard = [each.take_range(*shard) for each in stored], None
        for each in stored:
            check_finite(source, each)
        parts = [tensor.load(each) for each in stored]
        if dequantize or any(part.order is not None and not param.name.endswith(ORDERED) for part in parts):
            parts = [as_f32(part) for part in parts]
        if parts[0].order is not None:
            orders[order_name(param.name)] = parts[0].order
            parts = [replace(parts[0], order=None)]
        if shard:
            dim, start, stop = shard
            parts = [each.take_range(dim - 1 if tensor.stack else dim, start, stop) for each in parts]
        target = backend_of_weight(backend, param.name)
        if param.plain:
            values = [part.dequantize() for part in parts]
            packed = target.tensor(np.stack(values) if tensor.stack else np.ascontiguousarray(values[0]))
        else:
            packed = target.pack(tensor.stack.load(parts) if tensor.stack else parts[0])
        for each in stored:
            drop_pages(each.blocks)
            report(each.nbytes)
        return packed

    with ThreadPoolExecutor(workers, thread_name_prefix="load") as pool, _cancel_on_error(pool):
        # Largest first, so that the threads finish at about the same time.
        order = sorted(mapping.tensors, key=lambda tensor: -prod(tensor.param.shape))
        tensors = dict(zip((each.param.name for each in order), pool.map(load, order), strict=True))
    return {param.name: tensors[param.name] for param in params if param.name in tensors} | _share_orders(
        orders, backend
    )


def _share_orders(orders: Mapping[str, np.ndarray], backend: Backend) -> dict[str, Tensor]:
    """Return orders of columns as tensors. Weights with the same order share one tensor."""
    tensors: dict[bytes, Tensor] = {}
    for order in orders.values():
        if order.tobytes() not in tensors:
            tensors[order.tobytes()] = backend.tensor(order)
    return {name: tensors[orders[name].tobytes()] for name in sorted(orders)}


def map_tensors(source: ModelSource, params: Sequence[Param]) -> TensorMapping:
    """Return the stored tensors of each parameter. Raises ModelFileError if the file lacks one or has an unknown
    one."""
    tensors = source.files.tensors
    mapping, tied_output = resolve_tied(source, params)
    ignored = source.schema.find_ignored(tensors, source.config) | {tied_output}
    needed = mapping.by_source.keys()
    if missing := sorted(needed - tensors.keys()):
        raise ModelFileError(
            f"{source.path} lacks {len(missing)} of its {len(needed)} tensors: {format_names(missing)}"
        )
    surplus = sorted(tensors.keys() - needed - ignored)
    if surplus := [name for name in surplus if not is_zero_bias(source, name)]:
        what = f"tensors that {source.config.architecture} does not have: {format_names(surplus)}"
        raise ModelFileError(f"{source.path} holds {what}; ignoring them would change the result")
    if tied_output and tied_output not in needed:
        _check_tied(source, mapping.by_param["embedding.weight"].sources[0], tied_output)
    return mapping


def resolve_tied(source: ModelSource, params: Sequence[Param]) -> tuple[TensorMapping, str]:
    """Return the mapping without any check, and the name of the stored output of a folder with a tied output; "" if
    none.

    Such a folder may store the one matrix under either name, or under both.
    """
    tensors, config = source.files.tensors, source.config
    mapping = source.schema.resolve(params, config, tensors)
    if source.kind != HF or not config.tie_embeddings:
        return mapping, ""
    output = source.schema.stored_name("output.weight", config, tensors)
    embedding = mapping.by_param["embedding.weight"]
    if output not in tensors:
        return mapping, ""
    if embedding.sources[0] not in tensors:
        mapping = mapping.with_tensors([replace(embedding, sources=(output,))])
    return mapping, output


def check_shapes(source: ModelSource, mapping: TensorMapping) -> None:
    """Raise ModelFileError unless each tensor has the shape of its architecture."""
    for name, expected in mapping.source_shapes().items():
        shape = source.files.tensors[name].shape
        if shape != expected:
            raise ModelFileError(f"{source.path}: {name} is {list(shape)}; it must be {list(expected)}")


def is_zero_bias(source: ModelSource, name: str) -> bool:
    """Return whether an unknown tensor is a bias of zeros: AutoGPTQ writes one for every weight, transformers one for
    routers without a bias (A.X K1)."""
    bias = source.kind == HF and name.endswith("bias") and prod(source.files.tensors[name].shape) <= MAX_WIDTH
    return bias and bool((source.files.tensor(name).dequantize() == 0).all())


def _count_workers(
    source: ModelSource,
    mapping: TensorMapping,
    backend: Backend,
    dequantize: bool,
    max_workers: int,
    rank_weights: RankWeights | None,
) -> int:
    """Return the number of threads, at most `max_workers`, that may pack at once. Each holds the values of one tensor.

    Raises MemoryShortage if the packed weights and the values of one thread exceed the available memory, or the packed
    weights exceed the memory of a device with memory of its own.
    """
    parts = parts_of(backend)
    needed_by_part = [0] * len(parts)
    values = []
    for tensor in mapping.tensors:
        shape = rank_weights.shape(tensor.param) if rank_weights else tensor.param.shape
        stored = packed_format(source, tensor)
        part = part_of_weight(backend, tensor.param.name)
        needed_by_part[part] += parts[part].packed_bytes(F32 if dequantize else stored, shape)
        if stored is not F32 and (dequantize or stored is BF16):
            values.append(prod(shape) * 4)
        elif isinstance(source.files, QuantizedFolder):
            values.append(stored.tensor_nbytes(shape))  # assembled blocks, not views of the file
    needed = 0  # of the host's memory
    for each, nbytes in zip(parts, needed_by_part, strict=True):
        if (free := each.free_bytes()) is None:
            needed += nbytes
        elif nbytes > free:
            raise device_shortage(source, nbytes, free)
    available = available_bytes()
    if available is None:
        return max_workers
    values.sort(reverse=True)
    for count in range(max_workers, 1, -1):
        if needed + sum(values[:count]) <= available:
            return count
    needed += max(values, default=0)
    if needed > available:
        raise _shortage(source, needed, available)
    return 1


def packed_format(source: ModelSource, tensor: MappedTensor) -> type[QuantFormat]:
    """Return the number format in which a parameter is packed."""
    stored = format_of(source.files.tensors[tensor.sources[0]].type_name)
    return F32 if stored.values > 1 and tensor.is_dequantizing else stored


def device_shortage(source: ModelSource, needed: int, available: int) -> MemoryShortage:
    """Return the error of weights that do not fit into the device's memory."""
    return MemoryShortage(
        f"the weights of {source.path.name} need {in_units(needed)} of the device's memory, {in_units(available)} are "
        "available: free some, set the option backend to cpu or auto, or use a smaller or more quantized model"
    )


def _shortage(source: ModelSource, needed: int, available: int) -> MemoryShortage:
    return MemoryShortage(
        f"the weights of {source.path.name} need {in_units(needed)} of memory, {in_units(available)} are available:"
        " close other programs, raise the container's limit, or use a smaller or more strongly quantized model"
    )


def check_finite(source: ModelSource, stored: StoredTensor) -> None:
    """Raise ModelFileError if a float of the tensor (a value or the scale of a block) is NaN or infinite."""
    blocks = stored.blocks.reshape(-1, stored.format.nbytes)
    step = max(1, CHECK_VALUES // stored.format.values)
    for start in range(0, len(blocks), step):
        if not has_only_finite(stored.format, blocks[start : start + step]):
            raise ModelFileError(f"{source.path}: tensor {stored.name} holds NaN or infinity; the file is damaged")


def _check_tied(source: ModelSource, embedding: str, output: str) -> None:
    """Raise ModelFileError unless a tied output that is stored too equals the embedding."""
    first, second = source.files.tensor(embedding), source.files.tensor(output)
    is_equal = first.shape == second.shape and first.format is second.format
    if not is_equal or not np.array_equal(first.blocks, second.blocks):
        raise ModelFileError(
            f"{source.path}: {output} differs from {embedding}, but tie_word_embeddings is true. Set it to false"
        )


@contextmanager
def _cancel_on_error(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Cancel the waiting tensors after an error or an interrupt."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
