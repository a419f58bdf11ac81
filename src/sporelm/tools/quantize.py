"""Rounding a model to a mix of number formats, as llama.cpp's quantizer does: same formats, metadata and order."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.errors import RequestError, UsageError
from sporelm.quant import FORMATS
from sporelm.quant.mixes import (
    ALIASES,
    EMBEDDINGS,
    MIXES,
    OUTPUT,
    Choice,
    Mix,
    Traits,
    Wishes,
    choose,
    in_order,
    needs_imatrix,
)
from sporelm.tools.imatrix_file import Imatrix, unicode_name
from sporelm.tools.lazy import Entry, LazyTensor, Model, open_model
from sporelm.tools.output import Output
from sporelm.tools.sources import matching
from sporelm.tools.split import split
from sporelm.tools.steps.cast import FILE_TYPE, QUANTIZATION_VERSION, WHOLE_NUMBERS, cast_tensor, castable
from sporelm.tools.steps.layers import whole_number
from sporelm.weights.gguf.splits import TENSORS_KEY
from sporelm.weights.messages import shown
from sporelm.weights.names import listed

IMATRIX = "quantize.imatrix."  # where files tell of the importance matrix they were made with


class Override(NamedTuple):
    """Tensors that fit a pattern get a format of their own."""

    pattern: str
    format_name: str


@dataclass(frozen=True)
class Recipe:
    """What to make of a model: `overrides` in their order (the first that fits counts), formats by name."""

    mix: Mix
    imatrix: Imatrix | None = None
    overrides: tuple[Override, ...] = ()
    output: str | None = None
    embedding: str | None = None
    pure: bool = False
    allow_requantize: bool = False


class Change(NamedTuple):
    """A tensor's format before and after, and the one that its rows were too narrow for, or ""."""

    name: str
    before: str
    after: str
    instead_of: str


@dataclass(frozen=True)
class Quantized:
    """A model as it will be written, how it came to that, and what a user should know."""

    model: Model
    source: Model
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Sizes of the tensors' data in bytes, bits per weight, tensors by format, and what changed."""
        return {
            "bytes_before": data_bytes(self.source),
            "bytes_after": data_bytes(self.model),
            "bits_per_weight_before": bits_per_weight(self.source),
            "bits_per_weight": bits_per_weight(self.model),
            "types": dict(Counter(tensor.ggml_type.name for tensor in self.model.tensors).most_common()),
            "changes": [change._asdict() for change in self.changes],
            "warnings": list(self.warnings),
        }


def data_bytes(model: Model) -> int:
    return sum(tensor.nbytes for tensor in model.tensors)


def bits_per_weight(model: Model) -> float:
    return round(8 * data_bytes(model) / max(1, sum(tensor.size for tensor in model.tensors)), 3)


def makeable() -> list[str]:
    """The mixes that can be made here, by their numbers."""
    return [mix.name for mix in MIXES.values() if FORMATS[mix.main].can_quantize]


def parse_mix(text: str) -> Mix:
    """The mix of this name, any case. Raises UsageError with the nearest."""
    name = ALIASES.get(text.upper(), text.upper())
    if name not in makeable():
        if name in MIXES:
            raise UsageError(f"{name} cannot be made here, only read; there are {', '.join(makeable())}")
        raise _unknown("--type", text, makeable())
    return MIXES[name]


def parse_format(option: str, text: str) -> str:
    """The name of a number format that can be made, any case. Raises UsageError with the nearest."""
    name = text.upper()
    if name not in castable():
        raise _unknown(option, text, castable())
    return name


def parse_override(text: str) -> Override:
    """ "PATTERN=TYPE". Raises UsageError."""
    pattern, sign, name = text.rpartition("=")
    if not sign or not pattern:
        raise UsageError(f"--tensor takes PATTERN=TYPE, as in 'blk.*.attn_v.weight=Q8_0', not {text[:80]!r}")
    return Override(pattern, parse_format("--tensor", name))


def _unknown(option: str, text: str, known: Sequence[str]) -> UsageError:
    near = get_close_matches(text.upper()[:80], known, 1, 0.4)
    hint = f"the nearest is {near[0]}; " if near else ""
    return UsageError(f"{option}: there is no {text[:80]!r}; {hint}there are {', '.join(known)}")


def quantize(model: Model, recipe: Recipe) -> Quantized:
    """The model in the formats of the mix. Nothing is read yet.

    Raises RequestError for a pattern that fits no tensor, a source that is quantized already, formats that cannot be
    made or rows they cannot hold, an importance matrix of another model, and where one is needed and is not there.
    """
    shapes = {tensor.name: tensor.shape for tensor in model.tensors if tensor.ggml_type.name not in WHOLE_NUMBERS}
    forced = _forced(recipe.overrides, shapes)
    wishes = Wishes(recipe.imatrix is not None, recipe.pure, recipe.output, recipe.embedding, forced.get)
    chosen = choose(recipe.mix, shapes, traits_of(model), wishes)
    _check_patterns(recipe.overrides, chosen)
    tensors = {tensor.name: tensor for tensor in model.tensors}
    changes = tuple(
        Change(name, before, choice.format_name, choice.wanted if choice.wanted != choice.format_name else "")
        for name, choice in chosen.items()
        if (before := tensors[name].ggml_type.name) != choice.format_name
    )
    _check(recipe, tensors, changes)
    warnings = [*_narrow(changes), *_unweighted(recipe, tensors, changes)]
    for change in changes:
        tensors[change.name] = _rounded(tensors[change.name], change, recipe.imatrix)
    ordered = [tensors[name] for name in in_order(list(tensors))]
    done = replace(model, tensors=ordered, metadata=_metadata(model, recipe))
    return Quantized(done, model, changes, tuple(warnings))


def traits_of(model: Model) -> Traits:
    """What the rules ask of a model, from its metadata. Raises RequestError if it has no layers."""
    if not model.architecture:
        raise RequestError("metadata 'general.architecture' is missing: this is no model, or a part of one")
    layers = whole_number(model, "{arch}.block_count")
    heads = _first(model.value("{arch}.attention.head_count"), 0)
    kv_heads = _first(model.value("{arch}.attention.head_count_kv"), heads)
    return Traits(model.architecture, layers, heads, kv_heads, _first(model.value("{arch}.expert_count"), 0))


def _first(value: Any, default: int) -> int:
    """A whole number of metadata, of an array that of the first layer."""
    if isinstance(value, np.ndarray) and value.ndim and len(value):
        value = value[0].item()
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _forced(overrides: Iterable[Override], names: Iterable[str]) -> dict[str, str]:
    """Tensor -> the format that the first fitting pattern gives it."""
    found: dict[str, str] = {}
    for override in overrides:
        for name in matching(names, [override.pattern]):
            found.setdefault(name, override.format_name)
    return found


def _check_patterns(overrides: Iterable[Override], chosen: Mapping[str, Choice]) -> None:
    for override in overrides:
        if not matching(chosen, [override.pattern]):
            raise RequestError(
                f"--tensor: no tensor that is quantized fits {override.pattern[:80]!r}; patterns are of whole names, as"
                " in 'blk.*.attn_v.weight'; norms, biases and small tables stay as they are"
            )


def _check(recipe: Recipe, tensors: Mapping[str, LazyTensor], changes: Sequence[Change]) -> None:
    unable = sorted({change.after for change in changes if not FORMATS[change.after].can_quantize})
    if unable:
        raise RequestError(f"{recipe.mix.name} takes {', '.join(unable)}, which cannot be made here, only read")
    again = [change for change in changes if tensors[change.name].ggml_type.values > 1]
    if again and not recipe.allow_requantize:
        raise RequestError(
            f"{len(again)} tensors are quantized already ({shown(again[0].name)} to {again[0].before}): rounding"
            " twice costs quality; start from F16, BF16 or F32, or give --allow-requantize"
        )
    known = recipe.imatrix.entries if recipe.imatrix else {}
    lacking = [change.name for change in changes if needs_imatrix(recipe.mix, change.name, change.after)]
    lacking = [name for name in lacking if name not in known]
    if lacking:
        raise RequestError(
            f"{recipe.mix.name} is of no use without an importance matrix, and there is none for {listed(lacking)};"
            " make one with 'spore gguf imatrix' and give it with --imatrix"
        )


def _narrow(changes: Iterable[Change]) -> list[str]:
    """What is said of tensors that get another format than the mix has for them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        if change.instead_of:
            groups.setdefault((change.instead_of, change.after), []).append(change.name)
    return [
        f"rows are not whole blocks of {wanted}: {after} for {listed(names)}"
        for (wanted, after), names in groups.items()
    ]


def _unweighted(recipe: Recipe, tensors: Mapping[str, LazyTensor], changes: Sequence[Change]) -> list[str]:
    """What is said of an importance matrix that does not quite fit. Raises RequestError for one of another model."""
    imatrix = recipe.imatrix
    if imatrix is None:
        return []
    found, missing, unseen = [], [], []
    for change in changes:
        entry = imatrix.entries.get(change.name)
        if entry is None:
            # Embeddings are looked up and not multiplied; the output is rarely gathered.
            if change.name not in (*EMBEDDINGS, OUTPUT):
                missing.append(change.name)
            continue
        imatrix.importance(change.name, tensors[change.name].shape)
        if entry.unseen:
            unseen.append(f"{change.name} ({entry.unseen} of {len(entry.counts)})")
    if missing:
        found.append(f"the importance matrix has nothing for {len(missing)} tensors: {listed(missing)}")
    if unseen:
        found.append(f"the importance matrix has experts that no text went to: {listed(unseen)}")
    others = sorted(name for name in imatrix.entries if name not in tensors)
    if others:
        found.append(f"the importance matrix has {len(others)} names that are no tensors here: {listed(others)}")
    return found


def _rounded(tensor: LazyTensor, change: Change, imatrix: Imatrix | None) -> LazyTensor:
    importance = imatrix.importance(tensor.name, tensor.shape) if imatrix else None
    return cast_tensor(tensor, FORMATS[change.after], importance)


def _metadata(model: Model, recipe: Recipe) -> dict[str, Entry]:
    """The model's, with what llama.cpp's quantizer sets at its end."""
    added = {QUANTIZATION_VERSION: Entry("u32", 2), FILE_TYPE: Entry("u32", recipe.mix.file_type)}
    imatrix = recipe.imatrix
    if imatrix is not None:
        added[f"{IMATRIX}file"] = Entry("str", unicode_name(imatrix.path or ""))
        if imatrix.datasets:
            added[f"{IMATRIX}dataset"] = Entry("str", imatrix.datasets[0])
        added[f"{IMATRIX}entries_count"] = Entry("u32", len(imatrix.entries))
        if imatrix.chunks:
            added[f"{IMATRIX}chunks_count"] = Entry("u32", imatrix.chunks)
    return {key: entry for key, entry in model.metadata.items() if key not in added} | added


def outputs(quantized: Quantized, path: Path, *, keep_split: bool = False) -> list[Output]:
    """The file to write, or with `keep_split` one for each of the source's with the same tensors, named PATH's stem
    with their numbers."""
    sources = quantized.source.paths
    if not keep_split or len(sources) < 2:
        return [Output(path, quantized.model)]
    by_name = {tensor.name: tensor for tensor in quantized.model.tensors}
    groups = [[by_name[tensor.name] for tensor in open_model(part, alone=True).tensors] for part in sources]
    prefix = path.with_name(path.name.removesuffix(".gguf"))
    return [_counted_last(output) for output in split(quantized.model, prefix, lambda tensors: groups)]


def _counted_last(output: Output) -> Output:
    """With the keys of the split in the order that the quantizer leaves, which is not that of gguf-split."""
    metadata = dict(output.model.metadata)
    count = metadata.pop(TENSORS_KEY)
    return output._replace(model=replace(output.model, metadata=metadata | {TENSORS_KEY: count}))
