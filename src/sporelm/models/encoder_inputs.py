"""The inputs of one step of an encoder: whole texts, one after the other. Plain int32 arrays, traced values or
tensors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.tensor.dtype import I32


class EncoderInputs(NamedTuple):
    """One step of several texts; every array is int32."""

    tokens: Any  # [tokens] ids
    positions: Any  # [tokens] each row's position in its text
    types: Any  # [tokens] 0 for a row of the first text of a pair, 1 for a row of the second
    starts: Any  # [texts + 1] rows starts[t] : starts[t + 1] belong to text t
    firsts: Any  # [texts] the first row of each
    stops: Any  # [texts] the row past its last


ReadTexts = Callable[[EncoderInputs, Mapping[str, Any]], dict[str, Any]]


def text_specs(tokens: int, texts: int) -> dict[str, Spec]:
    """Return the specs of a step's inputs, for at most this many tokens and texts; the symbols are "tokens", "texts",
    "starts"."""
    token, text = Symbol("tokens", tokens), Symbol("texts", texts)
    shapes = dict.fromkeys(("tokens", "positions", "types"), (token,)) | dict.fromkeys(("firsts", "stops"), (text,))
    shapes["starts"] = (Symbol("starts", texts + 1),)
    return {name: Spec(shapes[name], I32) for name in EncoderInputs._fields}


def trace_texts(read: ReadTexts, weights: Mapping[str, Any], specs: Mapping[str, Spec]) -> Graph:
    """Return the graph of one step of an encoder's `read`; weights become its constants."""
    return trace(lambda **values: read(EncoderInputs(**values), weights), specs)
