"""What an adapter is, whatever file it comes from, and what must hold of one before it is used.

An adapter adds to the product of a weight W with x: W x + scale * B (A x), A [rank, in] and B [out, rank] (Hu et al.
2021). What it is made for is a model's matrices, its look-up of tokens and its last product excepted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import MemoryShortage, ModelFileError, UnsupportedModel
from sporelm.ops.lora import MOST_RANK
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family
from sporelm.weights.load import in_units, unpairing
from sporelm.weights.lora.joint import Joint, joints, why_not
from sporelm.weights.messages import shown
from sporelm.weights.names import GGUF, HF, Kind, Param, Stored, Table, listed, stored_form, templated
from sporelm.weights.resident import available_bytes
from sporelm.weights.stored import StoredTensor

# No products of layers: most are looked up by row. Likewise what ends so; and what makes RWKV-6's mixes, for files have
# it in a tensor of several matrices.
UNADAPTED = ("embedding", "output", "positions", "layer_embedding", "types", "distances", "tasks", "classifier")
UNADAPTED_ENDS = ("_conv", "_norm", "_more")


class LowRank(NamedTuple):
    """What is added to one product: (x @ a.T) @ b."""

    a: NDArray[np.float32]  # [rank, in]
    b: NDArray[np.float32]  # [rank, out], times the scale


@dataclass(frozen=True)
class Adapter:
    """What is added to which products, by our names of their weights without ".weight": "layers.0.attn_q"."""

    parts: Mapping[str, LowRank]

    @cached_property
    def identity(self) -> str:
        """A hash of all values: what it computed is of no use to another, nor to itself at another scale."""
        digest = sha256()
        for name in sorted(self.parts):
            a, b = self.parts[name]
            digest.update(f"{name} {a.shape} {b.shape}\n".encode())
            digest.update(a.data)
            digest.update(b.data)
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        arrays = {id(array): array for part in self.parts.values() for array in part}  # several may share their A
        return sum(array.nbytes for array in arrays.values())

    @property
    def rank(self) -> int:
        """The greatest of its products'."""
        return max(len(part.a) for part in self.parts.values())


@dataclass(frozen=True)
class Base:
    """The model that an adapter is for: its weights, its family, the columns of a head, and, where files have rows in
    another order, its configuration."""

    params: Sequence[Param]
    family: Family
    head_dim: int
    config: ModelConfig | None = None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """[out, in] of the matrices that adapters may add to, by name without ".weight"."""
        found = {}
        for param in self.params:
            name = param.name.removesuffix(".weight")
            product = name not in UNADAPTED and not name.startswith("dense_") and not name.endswith(UNADAPTED_ENDS)
            if len(param.shape) == 2 and name != param.name and product:
                found[name] = (param.shape[0], param.shape[1])
        return found

    def joints(self, kind: Kind) -> dict[str, Joint]:
        """What files of a kind call the tensors that hold those matrices, without ".weight" -> what each holds.

        Raises UnsupportedModel where an adapter and its model must be of one kind of files.
        """
        return joints(self.params, self.shapes, self._form_of(kind), self.config, self._paired(kind))

    def why_not(self, tensor: str, kind: Kind) -> str:
        """Why nothing can be added to a tensor that files of a kind have, by its name without ".weight"; "" for one
        that is not there, or is of no product."""
        return why_not(tensor, self.params, self._form_of(kind))

    def names_in_folders(self, module: str) -> list[str]:
        """What the family's table may call a tensor of folders, by this name or by another that the family knows; all
        without ".weight". The first is the name itself."""
        template, layer = templated(f"{module}.weight")
        own = self._other_names.get(template, ())
        return [module, *(name.replace("{}", layer).removesuffix(".weight") for name in own)]

    @cached_property
    def _other_names(self) -> dict[str, list[str]]:
        return self.family.other_names(self._table)

    @property
    def _table(self) -> Table:
        return self.family.names if self.config is None else self.family.table(self.config)

    def _form_of(self, kind: Kind) -> Callable[[str], Stored]:
        table = self._table
        self._check_kind(kind, table)
        return lambda name: stored_form(name, kind, table)

    def _paired(self, kind: Kind) -> Callable[[str, int], NDArray[np.int64] | None]:
        """The order of a weight's rows where GGUF files have those of its heads as adjacent pairs."""
        paired, rotary = kind == GGUF and self.family.paired_rows, 0 if self.config is None else self.config.rotary

        def order(name: str, rows: int) -> NDArray[np.int64] | None:
            turned = paired and name.endswith((".attn_q", ".attn_k"))
            return unpairing(rows, self.head_dim, rotary) if turned else None

        return order

    def _check_kind(self, kind: Kind, table: Table) -> None:
        """Raise UnsupportedModel for an adapter of the other kind of files, where GGUF files have multipliers in their
        weights that folders say apart."""
        if self.config is None or not any(stored_form(f"{name}.weight", GGUF, table).times for name in self.shapes):
            return
        if kind != (own := GGUF if self.config.architecture == self.family.gguf else HF):
            what = f"GGUF files of {self.family.gguf!r} have multipliers in their weights, folders have not"
            raise UnsupportedModel(f"{what}: an adapter for a {own} model must be {own} too; this one is {kind}")


class Pair(NamedTuple):
    """The two matrices of one product, as the file has them: a [rank, in] and b [out, rank]."""

    a: StoredTensor
    b: StoredTensor


def pairs_of(path: Path, halves: Iterable[tuple[str, str, StoredTensor]]) -> dict[str, Pair]:
    """Pairs by the name of what they add to, from (that name, "a" or "b", tensor). Raises ModelFileError for a half."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, side, tensor in halves:
        if side in found.setdefault(name, {}):
            twice = f"{shown(tensor.name)} and {shown(found[name][side].name)}"
            raise ModelFileError(f"{path}: {twice} are both the {side.upper()} of one product; the file is damaged")
        found[name][side] = tensor
    if not found:
        raise ModelFileError(f"{path} holds no matrices of low rank: it adds nothing")
    for halves_of in found.values():
        if len(halves_of) < 2:
            ((side, tensor),) = halves_of.items()
            other = "B" if side == "a" else "A"
            raise ModelFileError(f"{path}: tensor {shown(tensor.name)} has no {other} beside it; the file is damaged")
    return {name: Pair(each["a"], each["b"]) for name, each in found.items()}


def assemble(
    path: Path, known: Mapping[str, Joint], pairs: Mapping[str, Pair], scale_of: Callable[[str, int], float]
) -> Adapter:
    """The adapter of these pairs, each checked against the model's tensors `known` before any is read.

    scale_of   by the tensor's name and the rank
    """
    for name, pair in pairs.items():
        _check_shapes(path, pair, known[name].out, known[name].width)
    needed = sum(4 * (pair.a.size + pair.b.size) for pair in pairs.values())
    available = available_bytes()
    if available is not None and 2 * needed > available:  # once here, once on the device
        raise MemoryShortage(
            f"the adapter {path} needs {in_units(2 * needed)} of memory, {in_units(available)} are available: "
            "close other programs, or unload other adapters"
        )
    parts = {}
    for name, pair in pairs.items():
        scale = np.float32(scale_of(name, pair.a.shape[0]))
        a, b = _finite(path, pair.a), _finite(path, pair.b)
        with np.errstate(over="ignore"):
            scaled = b * scale
        if not np.isfinite(scaled).all():
            raise ModelFileError(f"{path}: tensor {shown(pair.b.name)} times its scale {scale:g} is not finite")
        for ours, cut in known[name].parts:
            parts[ours] = LowRank(np.ascontiguousarray(cut.of_a(a)), np.ascontiguousarray(cut.of_b(scaled).T))
    return Adapter({ours: parts[ours] for ours in sorted(parts)})


def no_such_weight(path: Path, tensor: str, known: Collection[str], why: str = "") -> ModelFileError | UnsupportedModel:
    """The error for a tensor that adds to something else than a layer's matrix, or to one that nothing can be added
    to, and why."""
    if why:
        return UnsupportedModel(f"{path}: nothing can be added to what tensor {shown(tensor)} is for: {why}")
    examples = listed(list(known), 2)
    return ModelFileError(
        f"{path}: tensor {shown(tensor)} adds to no matrix of this model's layers, such as {examples}; "
        "it was made for another model, or trains more than layers"
    )


def _check_shapes(path: Path, pair: Pair, out: int, width: int) -> None:
    """Raise ModelFileError unless a is [rank, width] and b [out, rank]."""
    a, b = pair
    if len(a.shape) != 2 or a.shape[1] != width:
        raise ModelFileError(
            f"{path}: tensor {shown(a.name)} is {list(a.shape)}; the model's weight has {width} columns"
        )
    rank = a.shape[0]
    if not 1 <= rank <= MOST_RANK:
        raise ModelFileError(f"{path}: tensor {shown(a.name)} has rank {rank}; it must be from 1 to {MOST_RANK}")
    if b.shape != (out, rank):
        raise ModelFileError(f"{path}: tensor {shown(b.name)} is {list(b.shape)}; it must be {[out, rank]}")


def _finite(path: Path, tensor: StoredTensor) -> NDArray[np.float32]:
    values = tensor.dequantize()
    if not np.isfinite(values).all():
        raise ModelFileError(f"{path}: tensor {shown(tensor.name)} holds NaN or infinity; the file is damaged")
    return values
