"""What an adapter is, whatever file it comes from, and what must hold of one before it is used.

An adapter adds to the product of a weight W with x: W x + scale * B (A x), A [rank, in] and B [out, rank] (Hu et al.
2021). What it is made for is a model's matrices, its look-up of tokens and its last product excepted.
"""

from collections import Counter
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
from sporelm.weights.load import in_units
from sporelm.weights.messages import shown
from sporelm.weights.names import GGUF, HF, Kind, Param, Stored, listed, stored_form
from sporelm.weights.resident import available_bytes
from sporelm.weights.stored import StoredTensor

UNADAPTED = ("embedding", "output", "positions", "layer_embedding")  # no products of layers: most are looked up by row


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
        return sum(a.nbytes + b.nbytes for a, b in self.parts.values())

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
            if len(param.shape) == 2 and name != param.name and name not in UNADAPTED:
                found[name] = (param.shape[0], param.shape[1])
        return found

    def names(self, kind: Kind) -> dict[str, str]:
        """What files of a kind call those matrices -> our name of each; both without ".weight".

        Those that files hold together in one tensor are left out: an adapter of it has one A for all. So are those
        whose columns files have in another order. Raises UnsupportedModel where an adapter and its model must be of one
        kind of files.
        """
        self._check_kind(kind)
        forms = {name: self._form(name, kind) for name in self.shapes}
        counts = Counter(form.name for form in forms.values())
        found = {name: form for name, form in forms.items() if counts[form.name] == 1 and self._can_order(form, name)}
        return {form.name.replace("{e}", "0").removesuffix(".weight"): name for name, form in found.items()}

    def ordered(self, name: str, b: NDArray[np.float32], kind: Kind) -> NDArray[np.float32]:
        """b [out, rank] of a weight, its rows as files of a kind have them, in our order."""
        form = self._form(name, kind)
        return b if form.rows is None else b[form.rows(self.config)]

    def _check_kind(self, kind: Kind) -> None:
        """Raise UnsupportedModel for an adapter of the other kind of files, where GGUF files have multipliers in their
        weights that folders say apart."""
        if self.config is None or not any(self._form(name, GGUF).times for name in self.shapes):
            return
        if kind != (own := GGUF if self.config.architecture == self.family.gguf else HF):
            what = f"GGUF files of {self.family.gguf!r} have multipliers in their weights, folders have not"
            raise UnsupportedModel(f"{what}: an adapter for a {own} model must be {own} too; this one is {kind}")

    def _form(self, name: str, kind: Kind) -> Stored:
        return stored_form(f"{name}.weight", kind, self.family.names)

    def _can_order(self, form: Stored, name: str) -> bool:
        """Whether a weight has all rows of its tensor, in an order that is known."""
        if form.rows is None or self.config is None or form.skip:
            return form.rows is None and form.columns is None and not form.skip
        rows = form.rows(self.config)
        return form.columns is None and len(rows) == self.shapes[name][0] == int(rows.max()) + 1


class Pair(NamedTuple):
    """The two matrices of one product, as the file has them: a [rank, in] and b [out, rank]."""

    a: StoredTensor
    b: StoredTensor


def pairs_of(path: Path, halves: Iterable[tuple[str, str, StoredTensor]]) -> dict[str, Pair]:
    """Pairs by our name of their weight, from (our name, "a" or "b", tensor). Raises ModelFileError for a half."""
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
    path: Path,
    base: Base,
    pairs: Mapping[str, Pair],
    scale_of: Callable[[str, int], float],
    rows_of: Callable[[str, NDArray[np.float32]], NDArray[np.float32]] = lambda name, b: b,
) -> Adapter:
    """The adapter of these pairs, each checked against the model before any is read.

    scale_of   by the weight's name and the rank
    rows_of    brings the rows of b into our order
    """
    for name, pair in pairs.items():
        _check_shapes(path, pair, *base.shapes[name])
    needed = sum(4 * (pair.a.size + pair.b.size) for pair in pairs.values())
    available = available_bytes()
    if available is not None and 2 * needed > available:  # once here, once on the device
        raise MemoryShortage(
            f"the adapter {path} needs {in_units(2 * needed)} of memory, {in_units(available)} are available: "
            "close other programs, or unload other adapters"
        )
    parts = {}
    for name, pair in sorted(pairs.items()):
        scale = np.float32(scale_of(name, pair.a.shape[0]))
        a, b = _finite(path, pair.a), rows_of(name, _finite(path, pair.b))
        with np.errstate(over="ignore"):
            scaled = np.ascontiguousarray(b.T) * scale
        if not np.isfinite(scaled).all():
            raise ModelFileError(f"{path}: tensor {shown(pair.b.name)} times its scale {scale:g} is not finite")
        parts[name] = LowRank(np.ascontiguousarray(a), scaled)
    return Adapter(parts)


def no_such_weight(path: Path, tensor: str, known: Collection[str]) -> ModelFileError:
    """The error for a tensor that adds to something else than a layer's matrix."""
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
