"""Rounding a model to a mix of number formats, as llama.cpp's quantizer does: same formats, metadata and order."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.checkpoints.tensor_names import format_names
from sporelm.checkpoints.towers.tower_schema import CLIP
from sporelm.errors import RequestError, UsageError
from sporelm.files.gguf.splits import TENSORS_KEY
from sporelm.files.tensor_messages import quote
from sporelm.quant import FORMATS
from sporelm.quant.quant_mixes import (
    ALIASES,
    EMBEDDING_NAMES,
    MIXES,
    OUTPUT_NAME,
    FormatChoice,
    FormatRequest,
    Mix,
    ModelTraits,
    choose_formats,
    needs_imatrix,
    sort_tensor_names,
)
from sporelm.tools.imatrix_file import Imatrix, escape_path
from sporelm.tools.lazy_model import LazyModel, LazyTensor, MetadataEntry, open_lazy_model
from sporelm.tools.model_files import filter_names
from sporelm.tools.output_file import OutputFile
from sporelm.tools.quantize_tower import choose_tower_formats
from sporelm.tools.split_model import split_model
from sporelm.tools.steps.cast_tensors import (
    FILE_TYPE,
    INTEGER_FORMATS,
    QUANTIZATION_VERSION,
    cast_tensor,
    list_cast_targets,
)
from sporelm.tools.steps.layer_metadata import read_whole_number

IMATRIX_PREFIX = "quantize.imatrix."  # where files tell of the importance matrix they were made with


class FormatOverride(NamedTuple):
    """Tensors that fit a pattern get a format of their own."""

    pattern: str
    format_name: str


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of a quantization. The first matching override counts; formats are given by name."""

    mix: Mix
    imatrix: Imatrix | None = None
    overrides: tuple[FormatOverride, ...] = ()
    output: str | None = None
    embedding: str | None = None
    pure: bool = False
    allow_requantize: bool = False


class FormatChange(NamedTuple):
    """A tensor's format before and after, and the one that its rows were too narrow for, or ""."""

    name: str
    before: str
    after: str
    instead_of: str


@dataclass(frozen=True)
class QuantizedModel:
    """A model as it will be written, how it came to that, and what a user should know."""

    model: LazyModel
    source: LazyModel
    changes: tuple[FormatChange, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Sizes of the tensors' data in bytes, bits per weight, tensors by format, and what changed."""
        return {
            "bytes_before": count_data_bytes(self.source),
            "bytes_after": count_data_bytes(self.model),
            "bits_per_weight_before": compute_bits_per_weight(self.source),
            "bits_per_weight": compute_bits_per_weight(self.model),
            "types": dict(Counter(tensor.ggml_type.name for tensor in self.model.tensors).most_common()),
            "changes": [change._asdict() for change in self.changes],
            "warnings": list(self.warnings),
        }


def count_data_bytes(model: LazyModel) -> int:
    return sum(tensor.nbytes for tensor in model.tensors)


def compute_bits_per_weight(model: LazyModel) -> float:
    return round(8 * count_data_bytes(model) / max(1, sum(tensor.size for tensor in model.tensors)), 3)


def list_quantizable_mixes() -> list[str]:
    """The mixes that can be made here, by their numbers."""
    return [mix.name for mix in MIXES.values() if FORMATS[mix.main].can_quantize]


def parse_mix(text: str) -> Mix:
    """The mix of this name, any case. Raises UsageError with the nearest."""
    name = ALIASES.get(text.upper(), text.upper())
    if name not in list_quantizable_mixes():
        if name in MIXES:
            raise UsageError(f"{name} cannot be made here, only read; there are {', '.join(list_quantizable_mixes())}")
        raise _unknown("--type", text, list_quantizable_mixes())
    return MIXES[name]


def parse_format(option: str, text: str) -> str:
    """The name of a number format that can be made, any case. Raises UsageError with the nearest."""
    name = text.upper()
    if name not in list_cast_targets():
        raise _unknown(option, text, list_cast_targets())
    return name


def parse_override(text: str) -> FormatOverride:
    """ "PATTERN=TYPE". Raises UsageError."""
    pattern, sign, name = text.rpartition("=")
    if not sign or not pattern:
        raise UsageError(f"--tensor takes PATTERN=TYPE, as in 'blk.*.attn_v.weight=Q8_0', not {text[:80]!r}")
    return FormatOverride(pattern, parse_format("--tensor", name))


def _unknown(option: str, text: str, known: Sequence[str]) -> UsageError:
    near = get_close_matches(text.upper()[:80], known, 1, 0.4)
    hint = f"the nearest is {near[0]}; " if near else ""
    return UsageError(f"{option}: there is no {text[:80]!r}; {hint}there are {', '.join(known)}")


def quantize_model(model: LazyModel, recipe: QuantizeOptions) -> QuantizedModel:
    """Quantize a model lazily to the formats of a mix.

    Raises RequestError for a pattern that matches no tensor, a quantized source, formats that cannot be made or do not
    fit the rows, and an importance matrix that is missing although the mix needs it, or is of another model.
    """
    shapes = {tensor.name: tensor.shape for tensor in model.tensors if tensor.ggml_type.name not in INTEGER_FORMATS}
    forced = _match_overrides(recipe.overrides, shapes)
    wishes = FormatRequest(recipe.imatrix is not None, recipe.pure, recipe.output, recipe.embedding, forced.get)
    if model.architecture == CLIP:
        chosen = choose_tower_formats(recipe.mix, shapes, wishes)
    else:
        chosen = choose_formats(recipe.mix, shapes, read_traits(model), wishes)
    _check_patterns(recipe.overrides, chosen)
    tensors = {tensor.name: tensor for tensor in model.tensors}
    changes = tuple(
        FormatChange(
            name, before, choice.format_name, choice.preferred if choice.preferred != choice.format_name else ""
        )
        for name, choice in chosen.items()
        if (before := tensors[name].ggml_type.name) != choice.format_name
    )
    _check_changes(recipe, tensors, changes)
    warnings = [*_warn_narrow_rows(changes), *_warn_imatrix_gaps(recipe, tensors, changes)]
    for change in changes:
        tensors[change.name] = _quantize_tensor(tensors[change.name], change, recipe.imatrix)
    ordered = [tensors[name] for name in sort_tensor_names(list(tensors))]
    done = replace(model, tensors=ordered, metadata=_make_metadata(model, recipe))
    return QuantizedModel(done, model, changes, tuple(warnings))


def read_traits(model: LazyModel) -> ModelTraits:
    """Read the traits that the rules use from a model's metadata. Raises RequestError if it has no layers."""
    if not model.architecture:
        raise RequestError("metadata 'general.architecture' is missing: this is not a model, or only a part of one")
    layers = read_whole_number(model, "{arch}.block_count")
    heads = _first_layer_value(model.value("{arch}.attention.head_count"), 0)
    kv_heads = _first_layer_value(model.value("{arch}.attention.head_count_kv"), heads)
    return ModelTraits(
        model.architecture, layers, heads, kv_heads, _first_layer_value(model.value("{arch}.expert_count"), 0)
    )


def _first_layer_value(value: Any, default: int) -> int:
    """A whole number of metadata, of an array that of the first layer."""
    if isinstance(value, np.ndarray) and value.ndim and len(value):
        value = value[0].item()
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _match_overrides(overrides: Iterable[FormatOverride], names: Iterable[str]) -> dict[str, str]:
    """Tensor -> the format that the first fitting pattern gives it."""
    found: dict[str, str] = {}
    for override in overrides:
        for name in filter_names(names, [override.pattern]):
            found.setdefault(name, override.format_name)
    return found


def _check_patterns(overrides: Iterable[FormatOverride], chosen: Mapping[str, FormatChoice]) -> None:
    for override in overrides:
        if not filter_names(chosen, [override.pattern]):
            raise RequestError(
                f"--tensor: no tensor that is quantized fits {override.pattern[:80]!r}; patterns are of whole names, as"
                " in 'blk.*.attn_v.weight'; norms, biases and small tables stay as they are"
            )


def _check_changes(recipe: QuantizeOptions, tensors: Mapping[str, LazyTensor], changes: Sequence[FormatChange]) -> None:
    unable = sorted({change.after for change in changes if not FORMATS[change.after].can_quantize})
    if unable:
        raise RequestError(f"{recipe.mix.name} takes {', '.join(unable)}, which cannot be made here, only read")
    again = [change for change in changes if tensors[change.name].ggml_type.values > 1]
    if again and not recipe.allow_requantize:
        raise RequestError(
            f"{len(again)} tensors are quantized already ({quote(again[0].name)} to {again[0].before}): rounding"
            " twice costs quality; start from F16, BF16 or F32, or give --allow-requantize"
        )
    known = recipe.imatrix.entries if recipe.imatrix else {}
    lacking = [change.name for change in changes if needs_imatrix(recipe.mix, change.name, change.after)]
    lacking = [name for name in lacking if name not in known]
    if lacking:
        raise RequestError(
            f"{recipe.mix.name} needs an importance matrix, and it is missing for {format_names(lacking)}."
            " Make one with 'spore gguf imatrix' and give it with --imatrix"
        )


def _warn_narrow_rows(changes: Iterable[FormatChange]) -> list[str]:
    """Return warnings about tensors that get another format than the mix prefers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        if change.instead_of:
            groups.setdefault((change.instead_of, change.after), []).append(change.name)
    return [
        f"rows are not whole blocks of {wanted}: {after} for {format_names(names)}"
        for (wanted, after), names in groups.items()
    ]


def _warn_imatrix_gaps(
    recipe: QuantizeOptions, tensors: Mapping[str, LazyTensor], changes: Sequence[FormatChange]
) -> list[str]:
    """Return warnings about gaps of the importance matrix. Raises RequestError for one of another model."""
    imatrix = recipe.imatrix
    if imatrix is None:
        return []
    found = []
    missing = []
    unseen = []
    for change in changes:
        entry = imatrix.entries.get(change.name)
        if entry is None:
            # Embeddings are looked up and not multiplied; the output is rarely gathered.
            if change.name not in (*EMBEDDING_NAMES, OUTPUT_NAME):
                missing.append(change.name)
            continue
        imatrix.importance(change.name, tensors[change.name].shape)
        if entry.num_unseen:
            unseen.append(f"{change.name} ({entry.num_unseen} of {len(entry.counts)})")
    if missing:
        found.append(f"the importance matrix has nothing for {len(missing)} tensors: {format_names(missing)}")
    if unseen:
        found.append(f"the importance matrix has experts that no text went to: {format_names(unseen)}")
    others = sorted(name for name in imatrix.entries if name not in tensors)
    if others:
        found.append(f"the importance matrix has {len(others)} names without a tensor here: {format_names(others)}")
    return found


def _quantize_tensor(tensor: LazyTensor, change: FormatChange, imatrix: Imatrix | None) -> LazyTensor:
    importance = imatrix.importance(tensor.name, tensor.shape) if imatrix else None
    return cast_tensor(tensor, FORMATS[change.after], importance)


def _make_metadata(model: LazyModel, recipe: QuantizeOptions) -> dict[str, MetadataEntry]:
    """The model's, with what llama.cpp's quantizer sets at its end."""
    added = {QUANTIZATION_VERSION: MetadataEntry("u32", 2), FILE_TYPE: MetadataEntry("u32", recipe.mix.file_type)}
    imatrix = recipe.imatrix
    if imatrix is not None:
        added[f"{IMATRIX_PREFIX}file"] = MetadataEntry("str", escape_path(imatrix.path or ""))
        if imatrix.datasets:
            added[f"{IMATRIX_PREFIX}dataset"] = MetadataEntry("str", imatrix.datasets[0])
        added[f"{IMATRIX_PREFIX}entries_count"] = MetadataEntry("u32", len(imatrix.entries))
        if imatrix.chunks:
            added[f"{IMATRIX_PREFIX}chunks_count"] = MetadataEntry("u32", imatrix.chunks)
    return {key: entry for key, entry in model.metadata.items() if key not in added} | added


def plan_outputs(quantized: QuantizedModel, path: Path, *, keep_split: bool = False) -> list[OutputFile]:
    """The file to write, or with `keep_split` one for each of the source's with the same tensors, named PATH's stem
    with their numbers."""
    sources = quantized.source.paths
    if not keep_split or len(sources) < 2:
        return [OutputFile(path, quantized.model)]
    by_name = {tensor.name: tensor for tensor in quantized.model.tensors}
    groups = [[by_name[tensor.name] for tensor in open_lazy_model(part, alone=True).tensors] for part in sources]
    prefix = path.with_name(path.name.removesuffix(".gguf"))
    return [_move_count_last(output) for output in split_model(quantized.model, prefix, lambda tensors: groups)]


def _move_count_last(output: OutputFile) -> OutputFile:
    """With the keys of the split in the order that the quantizer leaves, which is not that of gguf-split."""
    metadata = dict(output.model.metadata)
    count = metadata.pop(TENSORS_KEY)
    return output._replace(model=replace(output.model, metadata=metadata | {TENSORS_KEY: count}))
