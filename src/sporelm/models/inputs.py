"""The inputs of one step of a model: token ids and their positions. Plain int32 arrays, traced values or tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.tensor.dtype import I32

ROPE = "rope"  # the name of the rotary table among the weights
LOCAL = "rope_local"  # the rotary table of layers with a window, if they have their own
SLOPES = "alibi_slopes"  # the slopes of linear biases: float32 [heads]
BIASES = "distance_biases"  # the biases of scores by distance: float32 [heads, 2 * far]
ADAPTERS = "adapters"  # in steps with adapters: int32 [tokens], the number of each row's adapter, -1 for none


class StepInputs(NamedTuple):
    """One step of several sequences, their rows one after the other; every array is int32.

    A sequence has one token or many in a step; a row's slot is page * 64 + offset in the caches.
    """

    tokens: Any  # [tokens] ids
    positions: Any  # [tokens] each row's position in its sequence
    slots: Any  # [tokens] where its keys and values are stored
    starts: Any  # [sequences + 1] rows starts[s] : starts[s + 1] belong to sequence s
    lengths: Any  # [sequences] positions that the sequence has after this step
    pages: Any  # [sequences, max_pages] the sequence's pages in order, the rest is not read
    rows: Any  # [rows] the rows whose logits are computed
    states: Any  # [sequences] the slot of each sequence's recurrent states, if layers have them


def input_specs(tokens: int, sequences: int, rows: int, max_pages: int) -> dict[str, Spec]:
    """Return the specs of a step's inputs, for at most this many tokens, sequences, output rows and pages per sequence.

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
    """Run a model's `forward` on the inputs of a step, by name; those called ADAPTERS join the weights."""
    step = {name: value for name, value in inputs.items() if name != ADAPTERS}
    adapters = {ADAPTERS: inputs[ADAPTERS]} if ADAPTERS in inputs else {}
    return forward(StepInputs(**step), {**weights, **adapters}, caches)


def trace_model(
    forward: Forward, weights: Mapping[str, Any], caches: Sequence[Any], specs: Mapping[str, Spec]
) -> Graph:
    """Return the graph of one step of a model's `forward`; weights and caches become its constants."""
    return trace(lambda **values: compute(forward, values, weights, caches), specs)
