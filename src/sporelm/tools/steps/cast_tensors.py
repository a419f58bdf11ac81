"""`cast:CLASS:TYPE,...`: tensors of a class in another number format."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError, RequestError, UsageError
from sporelm.files.tensor_messages import quote
from sporelm.quant import FORMATS, QuantFormat
from sporelm.quant.format import check_importance
from sporelm.quant.skip_rules import match_name
from sporelm.tools.block_converter import ValueOverflow, convert_blocks
from sporelm.tools.file_types import FILE_TYPES
from sporelm.tools.lazy_model import Blocks, LazyModel, LazyTensor, MetadataEntry
from sporelm.tools.steps.layer_metadata import split_layer_prefix

TENSOR_CLASSES = ("linear", "embd", "norm", "else")
FILE_TYPE = "general.file_type"
QUANTIZATION_VERSION = "general.quantization_version"
INTEGER_FORMATS = ("I8", "I16", "I32", "I64")  # tables of indices: no cast touches them
ACTIVATION_FORMATS = ("Q8_1", "Q8_K")  # ggml's numbers of activations: no model file holds them

# The file type that one format for the weights has, where its name is another.
_SINGLE_FORMAT_MIXES = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "MXFP4": "MXFP4_MOE"}
_FILE_TYPE_NUMBERS = {name: number for number, name in FILE_TYPES.items()}


def cast(argument: str) -> Callable[[LazyModel], LazyModel]:
    """The step. Raises UsageError for a class or a type that there is not."""
    wanted: dict[str, type[QuantFormat]] = {}
    for item in argument.split(","):
        name, _, type_name = item.partition(":")
        if name not in TENSOR_CLASSES or not type_name:
            raise UsageError(
                f"step 'cast' takes CLASS:TYPE, as in 'cast:linear:Q8_0,embd:F16', not {item[:80]!r}; classes are"
                f" {', '.join(TENSOR_CLASSES)}"
            )
        if name in wanted:
            raise UsageError(f"step 'cast' names {name} twice")
        wanted[name] = _parse_target(type_name)

    def step(model: LazyModel) -> LazyModel:
        done = replace(model, tensors=[_cast_by_class(tensor, wanted) for tensor in model.tensors])
        return set_file_type(done)

    return step


def _parse_target(type_name: str) -> type[QuantFormat]:
    found = FORMATS.get(type_name.upper())
    if found is not None and found.name in ACTIVATION_FORMATS:
        raise UsageError(
            f"step 'cast' does not make {found.name}: activations become that inside products, and nothing reads it"
            " from a model file; take Q8_0"
        )
    if found is None or not found.can_quantize or found.name in INTEGER_FORMATS:
        raise UsageError(f"step 'cast' cannot make {type_name[:80]!r}; it can make {', '.join(list_cast_targets())}")
    return found


def list_cast_targets() -> list[str]:
    """The names of the types that tensors can be cast to."""
    return [
        name
        for name, found in sorted(FORMATS.items(), key=lambda item: item[1].ggml_id)
        if found.can_quantize and name not in (*INTEGER_FORMATS, *ACTIVATION_FORMATS)
    ]


def find_tensor_class(name: str, rank: int) -> str:
    """ "embd" for the embedding and the output, "norm" for norms, "linear" for other weights of two axes and more that
    a quantizer does not leave alone, "else" for biases, small tables and what is left."""
    stem, _, part = split_layer_prefix(name)[1].rpartition(".")
    if stem in ("token_embd", "output", "per_layer_token_embd") and part == "weight":
        return "embd"
    if stem.endswith("_norm") or "_norm_" in stem:
        return "norm"
    if rank > 1 and part == "weight" and match_name(name, "") != "skip":
        return "linear"
    return "else"


def _cast_by_class(tensor: LazyTensor, wanted: Mapping[str, type[QuantFormat]]) -> LazyTensor:
    target = wanted.get(find_tensor_class(tensor.name, len(tensor.shape)))
    if target is None or target.ggml_id == tensor.type_id or tensor.ggml_type.name in INTEGER_FORMATS:
        return tensor
    return cast_tensor(tensor, target)


def cast_tensor(
    tensor: LazyTensor, target: type[QuantFormat], importance: NDArray[np.float32] | None = None
) -> LazyTensor:
    """The tensor in another number format, by way of float32.

    `importance` says how much the errors of each column count: float32 [width], or [experts, width] for a tensor
    [experts, rows, width]; formats that know one way to round leave it aside. Raises UnsupportedModel for a type whose
    values we cannot read, RequestError where rows are not whole blocks, or importance does not fit.
    """
    source = tensor.number_format
    width = tensor.shape[-1] if tensor.shape else 1
    if width % target.values:
        raise RequestError(
            f"tensor {quote(tensor.name)} has rows of {width} values, {target.name} stores {target.values} per block;"
            " cast to another type"
        )
    if importance is not None:
        try:
            check_importance(importance, tensor.shape)
        except OpError as reason:
            raise RequestError(f"tensor {quote(tensor.name)}: {reason}") from None
    experts = None if importance is None or not target.can_weigh else importance.reshape(-1, width)
    # Values that are converted at a time: whole blocks of both formats, with importance whole rows.
    unit = width if experts is not None else lcm(source.values, target.values)

    def read(start: int, stop: int) -> Blocks:
        low = start * target.values
        high = stop * target.values
        first = low // unit * unit
        last = -(-high // unit) * unit
        parts = [
            _convert_values(tensor, target, begin, end, None if experts is None else experts[expert])
            for begin, end, expert in _split_by_expert(
                first, last, tensor.size // (1 if experts is None else len(experts))
            )
        ]
        if not parts:
            return np.empty((0, target.nbytes), np.uint8)
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole[start - first // target.values : stop - first // target.values]

    return LazyTensor(tensor.name, target.ggml_id, tensor.shape, read, "little", is_computed=True)


def _split_by_expert(first: int, last: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Values `first` to `last` - 1 cut where one expert's `size` values end: (first, last, expert) of each."""
    while first < last:
        expert = first // size
        end = min(last, (expert + 1) * size)
        yield first, end, expert
        first = end


def _convert_values(
    tensor: LazyTensor, target: type[QuantFormat], low: int, high: int, importance: NDArray[np.float32] | None
) -> Blocks:
    """The blocks of values `low` to `high` - 1. Raises RequestError for NaN, infinity and what it cannot hold."""
    source = tensor.number_format
    blocks = tensor.read(low // source.values, high // source.values)
    try:
        return convert_blocks(source, target, blocks, importance)
    except ValueOverflow:
        raise RequestError(
            f"tensor {quote(tensor.name)} holds numbers among values {low} to {high - 1} that are too large for"
            f" {target.name}: in the file they would be infinite; take F32 for it, or BF16"
        ) from None
    except OpError:
        raise RequestError(
            f"tensor {quote(tensor.name)} holds NaN or infinity among values {low} to {high - 1}, which"
            f" {target.name} cannot hold; 'spore gguf verify' finds them"
        ) from None


def set_file_type(model: LazyModel) -> LazyModel:
    """The model with the `general.file_type` of the type that most bytes of its weights have.

    A type without a file type of its own takes the entry away. `general.quantization_version`, which llama.cpp asks
    for, is added where there are quantized weights.
    """
    sizes: dict[str, int] = {}
    for tensor in model.tensors:
        if find_tensor_class(tensor.name, len(tensor.shape)) == "linear":
            sizes[tensor.ggml_type.name] = sizes.get(tensor.ggml_type.name, 0) + tensor.nbytes
    if not sizes:
        return model
    most = max(sizes, key=lambda name: sizes[name])
    metadata = dict(model.metadata)
    file_type = _FILE_TYPE_NUMBERS.get(_SINGLE_FORMAT_MIXES.get(most, most))
    if file_type is None:
        metadata.pop(FILE_TYPE, None)
    else:
        metadata[FILE_TYPE] = MetadataEntry("u32", file_type)
    if any(tensor.ggml_type.values > 1 for tensor in model.tensors):
        metadata.setdefault(QUANTIZATION_VERSION, MetadataEntry("u32", 2))
    return replace(model, metadata=metadata)
