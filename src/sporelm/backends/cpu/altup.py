"""From calls of the ops of streams to entries of their kernels."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, stride_of
from sporelm.backends.cpu.kernels import altup
from sporelm.ops import Call
from sporelm.ops.altup import LEAST_SQUARE
from sporelm.ops.spec import fixed, spec_of


def _emit(low: Emitter, call: Call, kernel: Any, more: dict[str, Any]) -> None:
    x, out = call.args[0], call.results[0]
    tokens, width = spec_of(x).shape[0], fixed(spec_of(x).shape[-1])
    fields: dict[str, Any] = {"x": low.at(x), "out": low.at(out), "stride": stride_of(out)}
    fields |= {"vectors": low.vectors(width)} | more
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _of_rows(low: Emitter, call: Call) -> None:
    x, others = call.args
    more: dict[str, Any] = {f"other{number}": low.at(other) for number, other in enumerate(others)}
    more |= {"width": float(fixed(spec_of(x).shape[1])), "least": LEAST_SQUARE}
    _emit(low, call, getattr(altup, call.op.name)(low.places.target, len(others)), more)


def _stream(low: Emitter, call: Call) -> None:
    (x,) = call.args
    stride, count = stride_of(x), fixed(spec_of(x).shape[1])
    more = {"all": stride * count, "before": stride * call.options["index"]}
    _emit(low, call, altup.stream(low.places.target), more)


def _of_streams(*names: str) -> Callable[[Emitter, Call], None]:
    """Of the further arguments' names, in order."""

    def lower(low: Emitter, call: Call) -> None:
        x, *others = call.args
        more: dict[str, Any] = {name: low.at(value) for name, value in zip(names, others, strict=True)}
        more["coefs_stride"] = stride_of(others[names.index("coefs")])
        kernel = getattr(altup, call.op.name)(low.places.target, fixed(spec_of(x).shape[1]))
        _emit(low, call, kernel, more)

    return lower


def _gaussian_topk(low: Emitter, call: Call) -> None:
    more = {"width": float(fixed(spec_of(call.args[0]).shape[1])), "factor": float(call.options["factor"])}
    _emit(low, call, altup.gaussian_topk(low.places.target), more)


RULES: dict[str, Callable[[Any, Call], None]] = {
    "spread_streams": _of_rows,
    "merge_streams": _of_rows,
    "stream": _stream,
    "altup_predict": _of_streams("coefs"),
    "altup_first": _of_streams("activated", "coefs", "scale"),
    "altup_correct": _of_streams("activated", "coefs", "added"),
    "gaussian_topk": _gaussian_topk,
}
