"""LoRA adapters in memory, and the checks that hold for all of their file formats.

An adapter adds to the product of a weight W with x: W x + scale * B (A x), A [rank, in] and B [out, rank] (Hu et al.
2021). It may add to the matrices of a model's layers, not to its embedding and its output.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.memory_residency import available_bytes
from sporelm.checkpoints.lora.stored_matrix import StoredMatrix, find_conflict, find_stored_matrices
from sporelm.checkpoints.tensor_mapping import TensorMapping
from sporelm.checkpoints.tensor_names import GGUF, Kind, format_names, split_layer_number
from sporelm.checkpoints.tensor_schema import TensorSchema
from sporelm.checkpoints.transforms import Divide
from sporelm.errors import MemoryShortage, ModelFileError, UnsupportedModel
from sporelm.files.tensor_messages import quote
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param
from sporelm.ops.add_lora import MAX_RANK
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.units import in_units

# Parameters that are not products of layers; most of them are looked up by row. The ends of names also cover the mixes
# of RWKV-6, which files store in one tensor of several matrices.
NOT_ADAPTABLE = ("embedding", "output", "positions", "layer_embedding", "types", "distances", "tasks", "classifier")
NOT_ADAPTABLE_ENDS = ("_conv", "_norm", "_more")


class LowRank(NamedTuple):
    """The two matrices that an adapter adds to one product: (x @ a.T) @ b."""

    a: NDArray[np.float32]  # [rank, in]
    b: NDArray[np.float32]  # [rank, out], times the scale


@dataclass(frozen=True)
class Adapter:
    """An adapter's matrices by the name of their parameter without ".weight": "layers.0.attn_q"."""

    parts: Mapping[str, LowRank]

    @cached_property
    def identity(self) -> str:
        """A hash of all values. Keys and values computed with one adapter and scale do not fit any other."""
        digest = sha256()
        for name in sorted(self.parts):
            a, b = self.parts[name]
            digest.update(f"{name} {a.shape} {b.shape}\n".encode())
            digest.update(a.data)
            digest.update(b.data)
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        arrays = {id(array): array for part in self.parts.values() for array in part}  # several parts may share one A
        return sum(array.nbytes for array in arrays.values())

    @property
    def rank(self) -> int:
        """The largest rank of its products."""
        return max(len(part.a) for part in self.parts.values())


@dataclass(frozen=True)
class TargetModel:
    """The model that an adapter is for.

    gguf, hf             schemas of its architecture's files of each kind
    architecture_names   of its architecture in files of either kind
    kind                 of the files that the model was opened from
    """

    params: Sequence[Param]
    config: ModelConfig
    gguf: TensorSchema
    hf: TensorSchema
    architecture_names: Sequence[str]
    kind: Kind

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """[out, in] of the matrices that adapters may add to, by name without ".weight"."""
        found = {}
        for param in self.params:
            name = param.name.removesuffix(".weight")
            is_product = name not in NOT_ADAPTABLE and not name.startswith("dense_")
            is_product = is_product and not name.endswith(NOT_ADAPTABLE_ENDS)
            if len(param.shape) == 2 and name != param.name and is_product:
                found[name] = (param.shape[0], param.shape[1])
        return found

    def stored_matrices(self, kind: Kind) -> dict[str, StoredMatrix]:
        """Return the stored tensors of those matrices in files of a kind, by name without ".weight".

        Raises UnsupportedModel if an adapter of that kind does not fit the model's own files.
        """
        self._check_kind(kind)
        return find_stored_matrices(self._mapping(kind), self.shapes)

    def find_conflict(self, tensor: str, kind: Kind) -> str:
        """Return the reason why an adapter cannot be added to a stored tensor of files of a kind, by its name without
        ".weight"; "" for a missing tensor and for any that is not the matrix of a product."""
        return find_conflict(self._mapping(kind), tensor)

    def table_names(self, module: str) -> list[str]:
        """Return the names that the Hugging Face table may have for a module, all without ".weight". The first is the
        module's own."""
        template, layer = split_layer_number(f"{module}.weight")
        others = self._other_names.get(template, ())
        return [module, *(name.replace("{}", layer).removesuffix(".weight") for name in others)]

    @cached_property
    def _other_names(self) -> dict[str, list[str]]:
        return self.hf.find_other_names(self.config)

    @cached_property
    def _mappings(self) -> dict[Kind, TensorMapping]:
        return {}

    def _mapping(self, kind: Kind) -> TensorMapping:
        if kind not in self._mappings:
            schema = self.gguf if kind == GGUF else self.hf
            self._mappings[kind] = schema.resolve(self.params, self.config)
        return self._mappings[kind]

    def _check_kind(self, kind: Kind) -> None:
        """Raise UnsupportedModel for an adapter of the other kind of files, if GGUF weights contain multipliers that
        folders have in config.json."""
        mapping = self._mapping(GGUF)
        tensors = [mapping.by_param[f"{name}.weight"] for name in self.shapes]
        has_multipliers = any(isinstance(step, Divide) for tensor in tensors for step in tensor.transforms)
        if has_multipliers and kind != self.kind:
            what = f"GGUF files of {self.architecture_names[0]!r} have multipliers in their weights; folders do not"
            raise UnsupportedModel(
                f"{what}: an adapter for a {self.kind} model must be {self.kind} too; this one is {kind}"
            )


class Pair(NamedTuple):
    """The two matrices of one product, as the file stores them: a [rank, in] and b [out, rank]."""

    a: StoredTensor
    b: StoredTensor


def match_pairs(path: Path, halves: Iterable[tuple[str, str, StoredTensor]]) -> dict[str, Pair]:
    """Return pairs by the name of their tensor.

    halves   (that name, "a" or "b", tensor)

    Raises ModelFileError for half a pair.
    """
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, side, tensor in halves:
        if side in found.setdefault(name, {}):
            twice = f"{quote(tensor.name)} and {quote(found[name][side].name)}"
            raise ModelFileError(f"{path}: {twice} are both the {side.upper()} of one product; the file is damaged")
        found[name][side] = tensor
    if not found:
        raise ModelFileError(f"{path} holds no LoRA matrices")
    for sides in found.values():
        if len(sides) < 2:
            ((side, tensor),) = sides.items()
            other = "B" if side == "a" else "A"
            raise ModelFileError(f"{path}: tensor {quote(tensor.name)} has no matching {other}; the file is damaged")
    return {name: Pair(each["a"], each["b"]) for name, each in found.items()}


def assemble(
    path: Path, known: Mapping[str, StoredMatrix], pairs: Mapping[str, Pair], scale_of: Callable[[str, int], float]
) -> Adapter:
    """Return the adapter of these pairs, each checked against the model's stored tensors before any is read.

    known      the stored tensors by name
    scale_of   the scale by the tensor's name and the rank
    """
    for name, pair in pairs.items():
        _check_shapes(path, pair, known[name].out, known[name].width)
    needed = sum(4 * (pair.a.size + pair.b.size) for pair in pairs.values())
    available = available_bytes()
    if available is not None and 2 * needed > available:  # a copy here, and one on the device
        raise MemoryShortage(
            f"the adapter {path} needs {in_units(2 * needed)} of memory, {in_units(available)} are available. "
            "Close other programs, or unload other adapters"
        )
    parts = {}
    for name, pair in pairs.items():
        scale = np.float32(scale_of(name, pair.a.shape[0]))
        a, b = _read_finite(path, pair.a), _read_finite(path, pair.b)
        with np.errstate(over="ignore"):
            scaled = b * scale
        if not np.isfinite(scaled).all():
            raise ModelFileError(f"{path}: tensor {quote(pair.b.name)} times its scale {scale:g} is not finite")
        for part in known[name].parts:
            b_of_part = np.ascontiguousarray(part.take_b(scaled).T)
            parts[part.name] = LowRank(np.ascontiguousarray(part.take_a(a)), b_of_part)
    return Adapter({name: parts[name] for name in sorted(parts)})


def unknown_weight_error(
    path: Path, tensor: str, known: Collection[str], why: str = ""
) -> ModelFileError | UnsupportedModel:
    """Return the error for an adapter's tensor whose target is not a matrix of the model's layers, or cannot be
    adapted.

    why   it cannot be adapted; "": the target does not exist
    """
    if why:
        return UnsupportedModel(f"{path}: the target of tensor {quote(tensor)} cannot be adapted: {why}")
    examples = format_names(list(known), 2)
    return ModelFileError(
        f"{path}: tensor {quote(tensor)} does not match a matrix of this model's layers, such as {examples}. "
        "The adapter is for another model, or trains other parts"
    )


def _check_shapes(path: Path, pair: Pair, out: int, width: int) -> None:
    """Raise ModelFileError unless a is [rank, width] and b [out, rank]."""
    a, b = pair
    if len(a.shape) != 2 or a.shape[1] != width:
        raise ModelFileError(
            f"{path}: tensor {quote(a.name)} is {list(a.shape)}; the model's weight has {width} columns"
        )
    rank = a.shape[0]
    if not 1 <= rank <= MAX_RANK:
        raise ModelFileError(f"{path}: tensor {quote(a.name)} has rank {rank}; it must be from 1 to {MAX_RANK}")
    if b.shape != (out, rank):
        raise ModelFileError(f"{path}: tensor {quote(b.name)} is {list(b.shape)}; it must be {[out, rank]}")


def _read_finite(path: Path, tensor: StoredTensor) -> NDArray[np.float32]:
    values = tensor.dequantize()
    if not np.isfinite(values).all():
        raise ModelFileError(f"{path}: tensor {quote(tensor.name)} holds NaN or infinity; the file is damaged")
    return values
