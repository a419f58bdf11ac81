"""The inputs of one step of a model: token ids and their positions. Plain int32 arrays, traced values or tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sporelm.ops import Graph, Spec, Symbol, take_sampled, trace
from sporelm.ops.spec import Extent
from sporelm.tensor.dtype import F32, I32

ROPE = "rope"  # the name of the rotary table among the weights
LOCAL = "rope_local"  # the rotary table of layers with a window, if they have their own
SLOPES = "alibi_slopes"  # the slopes of linear biases: float32 [heads]
BIASES = "distance_biases"  # the biases of scores by distance: float32 [heads, 2 * far]
ADAPTERS = "adapters"  # in steps with adapters: int32 [tokens], the number of each row's adapter, -1 for none
SOURCES = "sources"  # on asynchronous devices: int32 [tokens], the row of SAMPLED that has each row's id, -1: `tokens`
SAMPLED = "sampled"  # the tokens that the step before has sampled: int32 [sampled]


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
    # In steps with images; None in others:
    image_rows: Any = None  # [tokens] the row of `image_values` that is each row's input; -1: its token is
    image_values: Any = None  # float32 [image_rows, columns] from the vision tower
    rope_positions: Any = None  # [tokens, 3] rotary positions, of models with three (M-RoPE)
    spans: Any = None  # [tokens, 2] positions of the image of each row, where images attend in both directions


def input_specs(tokens: int, sequences: int, rows: int, max_pages: int, *, padded: bool = False) -> dict[str, Spec]:
    """Return the specs of a step's inputs, for at most this many tokens, sequences, output rows and pages per sequence.

    The symbols are "tokens", "sequences", "starts" (always sequences + 1) and "rows"; where the page table is `padded`
    to buckets of columns, also "columns".
    """
    token, sequence, row = Symbol("tokens", tokens), Symbol("sequences", sequences), Symbol("rows", rows)
    columns = Symbol("columns", max_pages) if padded else max_pages
    shapes = {
        "tokens": (token,),
        "positions": (token,),
        "slots": (token,),
        "starts": (Symbol("starts", sequences + 1),),
        "lengths": (sequence,),
        "pages": (sequence, columns),
        "rows": (row,),
        "states": (sequence,),
    }
    return {name: Spec(shape, I32) for name, shape in shapes.items()}


Forward = Callable[[StepInputs, Mapping[str, Any], Sequence[Any]], dict[str, Any]]


def compute(
    forward: Forward, inputs: Mapping[str, Any], weights: Mapping[str, Any], caches: Sequence[Any]
) -> dict[str, Any]:
    """Run a model's `forward` on the inputs of a step, by name; those called ADAPTERS join the weights.

    With SOURCES and SAMPLED, ids that the host does not know are taken from the tokens of the step before.
    """
    step = StepInputs(**{name: inputs[name] for name in StepInputs._fields if name in inputs})
    if SOURCES in inputs:
        step = step._replace(tokens=take_sampled(step.tokens, inputs[SOURCES], inputs[SAMPLED]))
    adapters = {ADAPTERS: inputs[ADAPTERS]} if ADAPTERS in inputs else {}
    return forward(step, {**weights, **adapters}, caches)


def sampled_specs(tokens: int, sampled: int) -> dict[str, Spec]:
    """Return the specs of the inputs with the tokens of the step before, of at most `sampled` rows."""
    return {
        SOURCES: Spec((Symbol("tokens", tokens),), I32),
        SAMPLED: Spec((Symbol("sampled", sampled),), I32),
    }


def image_specs(token: Extent, max_rows: int, columns: int, *, rope_positions: bool, spans: bool) -> dict[str, Spec]:
    """Return the specs of the inputs of steps with images: at most `max_rows` rows of `columns` values."""
    specs = {"image_rows": Spec((token,), I32), "image_values": Spec((Symbol("image_rows", max_rows), columns), F32)}
    specs |= {"rope_positions": Spec((token, 3), I32)} if rope_positions else {}
    return specs | ({"spans": Spec((token, 2), I32)} if spans else {})


def trace_model(
    forward: Forward, weights: Mapping[str, Any], caches: Sequence[Any], specs: Mapping[str, Spec]
) -> Graph:
    """Return the graph of one step of a model's `forward`; weights and caches become its constants."""
    return trace(lambda **values: compute(forward, values, weights, caches), specs)
