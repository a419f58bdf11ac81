"""What one step gives a model: token ids and where each one stands. Plain int32 arrays, traced values or tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.tensor.dtype import I32

ROPE = "rope"  # name under which the rotary table is found among the weights
LOCAL = "rope_local"  # that of layers with a window, where they have one of their own
SLOPES = "alibi_slopes"  # that of what a score falls by with each position: float32 [heads]
BIASES = "distance_biases"  # that of what is added to scores by distance: float32 [heads, 2 * far]
ADAPTERS = "adapters"  # likewise, in steps with adapters: int32 [tokens], the number of each row's, -1 for none


class StepInputs(NamedTuple):
    """One step of several sequences, their rows one after the other; every array is int32.

    A sequence may bring one token or many; a row's slot is page * 64 + offset in the caches.
    """

    tokens: Any  # [tokens] ids
    positions: Any  # [tokens] each row's position in its sequence
    slots: Any  # [tokens] where its keys and values are kept
    starts: Any  # [sequences + 1] rows starts[s] : starts[s + 1] belong to sequence s
    lengths: Any  # [sequences] positions that the sequence has after this step
    pages: Any  # [sequences, max_pages] the sequence's pages in order, the rest is not read
    rows: Any  # [rows] the rows whose logits are wanted
    states: Any  # [sequences] the slot of each sequence's recurrent states, where layers have such


def input_specs(tokens: int, sequences: int, rows: int, max_pages: int) -> dict[str, Spec]:
    """Specs of a step's inputs: at most so many tokens, sequences and wanted rows, and pages a sequence.

    The symbols are "tokens", "sequences", "starts" (always sequences + 1) and "rows".
    """
    token, sequence, row = Symbol("tokens", tokens), Symbol("sequences", sequences), Symbol("rows", rows)
    shapes = {
        "tokens": (token,),
        "positions": (token,),
        "slots": (token,),
        "starts": (Symbol("starts", sequences + 1),),
        "lengths": (sequence,),
        "pages": (sequence, max_pages),
        "rows": (row,),
        "states": (sequence,),
    }
    return {name: Spec(shape, I32) for name, shape in shapes.items()}


Forward = Callable[[StepInputs, Mapping[str, Any], Sequence[Any]], dict[str, Any]]


def compute(
    forward: Forward, inputs: Mapping[str, Any], weights: Mapping[str, Any], caches: Sequence[Any]
) -> dict[str, Any]:
    """What a model's `forward` makes of a step's inputs by name; those called ADAPTERS join the weights."""
    step = {name: value for name, value in inputs.items() if name != ADAPTERS}
    adapters = {ADAPTERS: inputs[ADAPTERS]} if ADAPTERS in inputs else {}
    return forward(StepInputs(**step), {**weights, **adapters}, caches)


def trace_model(
    forward: Forward, weights: Mapping[str, Any], caches: Sequence[Any], specs: Mapping[str, Spec]
) -> Graph:
    """The graph of one step of a model's `forward`, recorded once; weights and caches become its constants."""
    return trace(lambda **values: compute(forward, values, weights, caches), specs)
