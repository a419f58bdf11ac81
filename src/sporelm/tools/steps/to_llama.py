"""`to-llama`: a MiniCPM model as a plain Llama model that gives the same logits.

MiniCPM multiplies the embeddings by `embedding_scale`, what attention and feed-forward add to the residual stream by
`residual_scale`, and divides the logits by `logit_scale`. Each of these is a factor of weights that are there anyway:
the embedding, attn_output and ffn_down, and the last norm. Where the output is tied to the embedding, the last norm
takes back the embedding's factor as well. Quantized weights keep their integers: only the scales of their blocks are
multiplied. Source of the keys and the formula: conversion/minicpm.py and models/granite.cpp of llama.cpp; of the
defaults, MiniCPM-2B's config.json: scale_emb 12, scale_depth 1.4, dim_model_base 256.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, sqrt

import numpy as np

from sporelm.errors import RequestError, UsageError
from sporelm.files.tensor_messages import quote
from sporelm.quant import F32, dequantize_tensor
from sporelm.quant.packing import read_halves, to_halves
from sporelm.tools.lazy_model import Blocks, LazyModel, LazyTensor, MetadataEntry
from sporelm.tools.steps.cast_tensors import cast_tensor
from sporelm.tools.steps.layer_metadata import read_whole_number, split_layer_prefix

SCALES = ("embedding_scale", "residual_scale", "logit_scale")
RESIDUAL_WEIGHTS = ("attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp")

# Where the float16 numbers of a block lie that are factors of its values. Source: the block structs of ggml-common.h.
SCALE_OFFSETS: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,),
    "IQ3_S": (0,), "IQ1_S": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


def to_llama(argument: str) -> Callable[[LazyModel], LazyModel]:
    """The step; the argument may replace scales, as in "embedding_scale=12,logit_scale=9". Raises RequestError."""
    given = _parse_scales(argument)

    def step(model: LazyModel) -> LazyModel:
        if model.architecture != "minicpm":
            raise RequestError(
                f"step 'to-llama' is for models of architecture 'minicpm', not {model.architecture!r:.80}"
            )
        embedding, residual, logit = (given.get(name) or _read_scale(model, name) for name in SCALES)
        is_tied = not any(tensor.name == "output.weight" for tensor in model.tensors)
        last = 1 / (logit * embedding) if is_tied else 1 / logit
        tensors = [_fold_scales(tensor, embedding, residual, last) for tensor in model.tensors]
        return replace(model, tensors=tensors, metadata=_rename_metadata(model))

    return step


def _parse_scales(argument: str) -> dict[str, float]:
    found = {}
    for item in argument.split(",") if argument else []:
        name, _, text = item.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if name not in SCALES or not isfinite(value) or value <= 0:
            raise UsageError(f"step 'to-llama' takes {', '.join(SCALES)} with a positive number, not {item[:80]!r}")
        found[name] = value
    return found


def _read_scale(model: LazyModel, name: str) -> float:
    """A scale of the metadata, or MiniCPM-2B's, which old files have without saying so. Raises RequestError."""
    value = model.value(f"minicpm.{name}")
    if value is None:
        if name == "embedding_scale":
            return 12.0
        if name == "residual_scale":
            return 1.4 / sqrt(read_whole_number(model, "minicpm.block_count"))
        return read_whole_number(model, "minicpm.embedding_length") / 256
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise RequestError(f"metadata 'minicpm.{name}' is {quote(str(value))}; it must be a positive number")
    return float(value)


def _rename_metadata(model: LazyModel) -> dict[str, MetadataEntry]:
    """The metadata under the keys of a Llama model, without the scales."""
    metadata = {}
    for key, entry in model.metadata.items():
        if key in {f"minicpm.{name}" for name in SCALES}:
            continue
        metadata[key.replace("minicpm.", "llama.", 1) if key.startswith("minicpm.") else key] = entry
    return metadata | {"general.architecture": MetadataEntry("str", "llama")}


def _fold_scales(tensor: LazyTensor, embedding: float, residual: float, last: float) -> LazyTensor:
    """The tensor with the factor that is its."""
    layer, rest = split_layer_prefix(tensor.name)
    stem = rest.rpartition(".")[0]
    if tensor.name == "token_embd.weight":
        return scale_tensor(tensor, embedding)
    if stem == "output_norm" and not layer:
        return scale_tensor(tensor, last)
    return scale_tensor(tensor, residual) if layer.startswith("blk.") and stem in RESIDUAL_WEIGHTS else tensor


def scale_tensor(tensor: LazyTensor, factor: float) -> LazyTensor:
    """All values of a tensor times a factor, in the same format. Raises UnsupportedModel for a type that is known by
    name alone; when it is read, RequestError for values that become too large."""
    if factor == 1:
        return tensor
    number_format = tensor.number_format
    times = np.float32(factor)

    def by_scales(start: int, stop: int) -> Blocks:
        blocks = tensor.read(start, stop).copy()
        for offset in SCALE_OFFSETS[number_format.name]:
            old = read_halves(blocks, offset)
            with np.errstate(all="ignore"):
                new = to_halves(old * times)
            if (np.isinf(read_halves(new, 0)) & np.isfinite(old)).any():
                raise too_large()
            blocks[:, offset : offset + 2] = new
        return blocks

    def by_values(start: int, stop: int) -> Blocks:
        blocks = np.ascontiguousarray(tensor.read(start, stop))
        values = dequantize_tensor(number_format, blocks, (len(blocks) * number_format.values,))
        with np.errstate(all="ignore"):
            result = number_format.quantize((values * times).reshape(-1, number_format.values))
            if np.isfinite(values).all() and not np.isfinite(number_format.dequantize(result)).all():
                raise too_large()
        return result

    def too_large() -> RequestError:
        return RequestError(
            f"tensor {quote(tensor.name)} times {factor:.6g} leaves the range of {number_format.name}; put a cast to"
            " BF16 or F32 before to-llama"
        )

    is_plain = number_format.values == 1
    in_scales = number_format.name in SCALE_OFFSETS
    if not is_plain and not in_scales:
        return cast_tensor(scale_tensor(cast_tensor(tensor, F32), factor), number_format)
    return replace(tensor, read=by_scales if in_scales else by_values, is_computed=True)
