"""From a model's files to the tensors that a back-end computes with: all of them, no other, each checked."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from sporelm.backends.backend import Backend, Progress
from sporelm.backends.stacked import stacked
from sporelm.errors import MemoryShortage, ModelFileError
from sporelm.quant import BF16, F32, QuantFormat, format_of
from sporelm.quant.finite import all_finite
from sporelm.tensor.tensor import Tensor
from sporelm.weights.beside_vision import OTHERS
from sporelm.weights.config import MOST_WIDTH, ModelConfig
from sporelm.weights.experts import CHOICE_BIAS
from sporelm.weights.family import Family
from sporelm.weights.forms import brought, stored_shapes
from sporelm.weights.gguf import GgufFile
from sporelm.weights.names import (
    GGUF,
    HF,
    ORDERED,
    Kind,
    Param,
    Stored,
    form_in,
    ignorable,
    listed,
    of_further_layers,
    order_name,
    stored_form,
    templated,
)
from sporelm.weights.progress import counted
from sporelm.weights.quantized import QuantizedFolder
from sporelm.weights.resident import available_bytes, drop_pages
from sporelm.weights.safetensors import SafetensorsFiles
from sporelm.weights.stored import StoredTensor

MOST_THREADS = 8  # packing is bound by memory; more threads only hold more of the file at once
CHECKED_VALUES = 1 << 18  # values looked at together, which bounds the temporaries


@dataclass(frozen=True)
class ModelSource:
    """An opened model: its configuration is read, its tensors are mapped and not read."""

    kind: Kind
    path: Path
    files: GgufFile | SafetensorsFiles | QuantizedFolder
    config: ModelConfig
    family: Family

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as in the files, one line each."""
        notes = self.files.notes if isinstance(self.files, QuantizedFolder) else ()
        notes = (*notes, *self._unread(), *self._head_unread())
        forms = [form for names in self.family.names if (form := form_in(names, self.kind)).heads and form.transposed]
        wide = [
            name
            for name, info in self.files.tensors.items()
            if forms and any(templated(name)[0] == form.name for form in forms) and is_blocks(info.type_name)
        ]
        if not wide:
            return notes
        what = "its blocks cannot be turned about, so that what makes keys is computed with in F32"
        return (*notes, f"{listed(wide, 1)}: {what}; files that have attn_k_b take less memory")

    def _head_unread(self) -> tuple[str, ...]:
        """That a head for training is not read, of an encoder's folder that has one."""
        name = self.config.architecture
        if not self.family.reads or not name.endswith(("ForMaskedLM", "ForPreTraining")):
            return ()
        unread = sorted(ignorable(self.files.tensors, self.kind, self.family.ignored))
        heads = [each for each in unread if "pooler" not in each and "position_ids" not in each]
        return (f"{listed(heads, 1)}: the head of {name}, which fills gaps, is left unread",) if heads else ()

    def _unread(self) -> tuple[str, ...]:
        """That the parts of a model that see or hear are not read, if it has such."""
        if OTHERS[0] not in self.family.ignored:
            return ()
        kept = ignorable(self.files.tensors, self.kind)
        parts = sorted(ignorable(self.files.tensors, self.kind, OTHERS) - kept)
        return (f"it reads text alone: what sees or hears is left out ({listed(parts, 1)})",) if parts else ()

    def close(self) -> None:
        """Let go of the files. Tensors already loaded stay valid."""
        self.files.close()


def load_parameters(
    source: ModelSource,
    params: Sequence[Param],
    backend: Backend,
    progress: Progress | None = None,
    *,
    dequantize: bool = False,
    threads: int | None = None,
) -> dict[str, Tensor]:
    """The weights by our names, packed for the back-end by several threads at once.

    progress(stage="load", done bytes, total bytes of the file's tensors) is called from those threads, one at a time.
    A weight whose columns are not in place is joined by their order, int32 [in], under `order_name` of its name.
    With `dequantize`, every tensor is loaded as its values in float32: the reference that quantization is judged by.
    Raises ModelFileError for a missing, surplus, misshapen or not finite tensor, MemoryShortage before anything loads.
    """
    names = match_names(source, params)
    check_shapes(source, params, names)
    most = max(1, min(threads or os.cpu_count() or 1, MOST_THREADS))
    workers = _affordable(source, params, names, backend, dequantize, most)
    held = {param.name: form_of(source, param.name).tensors(param) for param in params}
    held |= {param.name: [names[param.name]] for param in params if len(held[param.name]) == 1}
    total = sum(source.files.tensors[name].nbytes for each in held.values() for name in each)
    report = counted(progress, "load", total)
    orders: dict[str, np.ndarray] = {}

    def load(param: Param) -> Tensor:
        parts = [source.files.tensor(name) for name in held[param.name]]
        for stored in parts:
            check_finite(source, stored)
        each = form_of(source, param.name).each
        wanted = parts if each else [_wanted(source, param, parts[0])]
        if dequantize or any(part.order is not None and not param.name.endswith(ORDERED) for part in wanted):
            wanted = [_as_f32(part) for part in wanted]
        if wanted[0].order is not None:
            orders[order_name(param.name)] = wanted[0].order
            wanted = [replace(wanted[0], order=None)]
        if param.plain:
            values = [part.dequantize() for part in wanted]
            packed = backend.tensor(np.stack(values) if each else np.ascontiguousarray(values[0]))
        else:
            packed = backend.pack(stacked(wanted) if each else wanted[0])
        for stored in parts:
            drop_pages(stored.blocks)
            report(stored.nbytes)
        return packed

    with ThreadPoolExecutor(workers, thread_name_prefix="load") as pool, _cancelled_on_error(pool):
        # Largest first: the last thread to finish then has little left to do.
        order = sorted(params, key=lambda param: -prod(param.shape))
        tensors = dict(zip((param.name for param in order), pool.map(load, order), strict=True))
    return {param.name: tensors[param.name] for param in params} | _shared(orders, backend)


def _shared(orders: Mapping[str, np.ndarray], backend: Backend) -> dict[str, Tensor]:
    """Orders of columns as tensors; weights of one order share a tensor, so that they can share its product's rows."""
    made: dict[bytes, Tensor] = {}
    for order in orders.values():
        if order.tobytes() not in made:
            made[order.tobytes()] = backend.tensor(order)
    return {name: made[orders[name].tobytes()] for name in sorted(orders)}


def match_names(source: ModelSource, params: Sequence[Param]) -> dict[str, str]:
    """What the file calls each parameter. Raises ModelFileError unless it has them all and no unknown ones."""
    held = set(source.files.tensors)
    forms = {param.name: form_of(source, param.name) for param in params}
    names = {param.name: forms[param.name].tensors(param)[0] for param in params}
    used = {name for param in params for name in forms[param.name].tensors(param)}
    spare = ignorable(held, source.kind, source.family.ignored)
    if source.family.further_layers:
        spare |= of_further_layers(held, source.config.layers)
    if source.kind == HF and source.config.tie_embeddings:
        embedding, output = (form_of(source, name).name for name in ("embedding.weight", "output.weight"))
        if embedding not in held and output in held:
            names["embedding.weight"] = output
            used = (used | {output}) - {embedding}
        elif output in held:
            _check_twins(source, embedding, output)
            spare = spare | {output}
    if missing := sorted(used - held):
        raise ModelFileError(f"{source.path} lacks {len(missing)} of its {len(used)} tensors: {listed(missing)}")
    surplus = sorted(held - used - spare)
    if surplus := [name for name in surplus if not adds_nothing(source, name)]:
        what = f"what {source.config.architecture} does not have: {listed(surplus)}"
        raise ModelFileError(f"{source.path} holds {what}; leaving it out would change the result")
    return names


def form_of(source: ModelSource, name: str) -> Stored:
    """How the model's files hold our weight `name`."""
    form = stored_form(name, source.kind, source.family.table(source.config))
    held = source.files.tensors
    if source.kind == HF:
        form = replace(form, name=source.family.name_in(form.name, held))
    if source.kind == GGUF and form.name in held and len(held[form.name].shape) == 2:  # vectors that some files have
        if form.flat:  # as matrices of one row: a shared expert's gate
            form = replace(form, flat=False)
        elif templated(name)[0] == CHOICE_BIAS:
            form = replace(form, above=1)
    if not (form.inner or form.between) or form.name not in held:
        return form
    return form.of_tensor(format_of(held[form.name].type_name).values, held[form.name].shape, source.config)


def check_shapes(source: ModelSource, params: Sequence[Param], names: Mapping[str, str]) -> None:
    """Raise ModelFileError unless each tensor has the shape that its architecture gives it."""
    for name, wanted in stored_shapes(params, names, lambda name: form_of(source, name)).items():
        shape = source.files.tensors[name].shape
        if shape != wanted:
            raise ModelFileError(f"{source.path}: {name} is {list(shape)}, its architecture has {list(wanted)}")


def adds_nothing(source: ModelSource, name: str) -> bool:
    """Whether a surplus tensor is a bias of zeros: AutoGPTQ writes one for every weight, transformers one for routers
    that have none (A.X K1)."""
    bias = source.kind == HF and name.endswith("bias") and prod(source.files.tensors[name].shape) <= MOST_WIDTH
    return bias and bool((source.files.tensor(name).dequantize() == 0).all())


def _affordable(
    source: ModelSource,
    params: Sequence[Param],
    names: Mapping[str, str],
    backend: Backend,
    dequantize: bool,
    most: int,
) -> int:
    """How many threads, at most `most`, may pack at once: each holds one tensor's values while it does.

    Raises MemoryShortage if the packed weights and one thread's values are larger than the memory that is available,
    or the packed weights than the memory of a device that has its own.
    """
    needed, values = 0, []
    for param in params:
        stored = held_format(source, names[param.name], param)
        needed += backend.packed_bytes(F32 if dequantize else stored, param.shape)
        if stored is not F32 and (dequantize or stored is BF16):
            values.append(prod(param.shape) * 4)
        elif isinstance(source.files, QuantizedFolder):
            values.append(stored.tensor_nbytes(param.shape))  # blocks that are put together, not views of the file
    if (free := backend.free_bytes()) is not None:
        if needed > free:
            raise _shortage(source, needed, free)
        needed = 0  # of the host's memory
    available = available_bytes()
    if available is None:
        return most
    values.sort(reverse=True)
    for count in range(most, 1, -1):
        if needed + sum(values[:count]) <= available:
            return count
    needed += max(values, default=0)
    if needed > available:
        raise _shortage(source, needed, available)
    return 1


def held_format(source: ModelSource, name: str, param: Param) -> type[QuantFormat]:
    """The number format in which a weight is packed that the file's tensor `name` holds."""
    stored = format_of(source.files.tensors[name].type_name)
    return F32 if form_of(source, param.name).is_widened(stored.values) else stored


def is_blocks(type_name: str) -> bool:
    """Whether a type of numbers is one of blocks, each of several values."""
    return format_of(type_name).values > 1


def _shortage(source: ModelSource, needed: int, available: int) -> MemoryShortage:
    return MemoryShortage(
        f"the weights of {source.path.name} need {in_units(needed)} of memory, {in_units(available)} are available:"
        " close other programs, raise the container's limit, or take a smaller or more strongly quantized model"
    )


def check_finite(source: ModelSource, stored: StoredTensor) -> None:
    """Raise ModelFileError if a float of the tensor, its values or its blocks' scales, is NaN or infinite."""
    blocks = stored.blocks.reshape(-1, stored.format.nbytes)
    step = max(1, CHECKED_VALUES // stored.format.values)
    for start in range(0, len(blocks), step):
        if not all_finite(stored.format, blocks[start : start + step]):
            raise ModelFileError(f"{source.path}: tensor {stored.name} holds NaN or infinity; the file is damaged")


def in_units(nbytes: int) -> str:
    """Bytes for people: "3.2 GB", "45.0 MB"."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def unpairing(rows: int, head_dim: int, rotary: int = 0) -> np.ndarray:
    """Row numbers that bring each head's rows from adjacent pairs (0, h/2, 1, h/2 + 1, ...) back to halves; the first
    `rotary` of them, if that is given, with h for it."""
    turned = rotary or head_dim
    head = np.concatenate([np.arange(0, turned, 2), np.arange(1, turned, 2), np.arange(turned, head_dim)])
    return (np.arange(0, rows, head_dim)[:, None] + head).reshape(-1)


def _wanted(source: ModelSource, param: Param, stored: StoredTensor) -> StoredTensor:
    """The weight in our form."""
    found = brought(stored, form_of(source, param.name), source.config, param.shape)
    paired = source.kind == GGUF and source.family.paired_rows
    if paired and any(part in param.name for part in (".attn_q.", ".attn_k.")):
        return found.take_rows(unpairing(param.shape[0], source.config.head_dim, source.config.rotary))
    return found


def _as_f32(stored: StoredTensor) -> StoredTensor:
    if stored.format is F32:
        return stored
    return StoredTensor(stored.name, F32, stored.shape, stored.dequantize().reshape(-1).view(np.uint8))


def _check_twins(source: ModelSource, embedding: str, output: str) -> None:
    """A tied output may be stored as well, if it is the same."""
    first, second = source.files.tensor(embedding), source.files.tensor(output)
    alike = first.shape == second.shape and first.format is second.format
    if not alike or not np.array_equal(first.blocks, second.blocks):
        raise ModelFileError(
            f"{source.path}: {output} differs from {embedding}, yet tie_word_embeddings is true; set it to false"
        )


@contextmanager
def _cancelled_on_error(pool: ThreadPoolExecutor) -> Iterator[None]:
    """What was not begun is not begun any more once one tensor has failed or the user has interrupted."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
