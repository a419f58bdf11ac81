"""Blocks of one number format to blocks of another, in the kernels of the CPU back-end where it is there.

Threads that convert at the same time have a back-end of one thread each, so that nobody waits for another. These are
kept for the next conversion, with the memory of a few small plans.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.backend import Backend
from sporelm.backends.registry import open_backend
from sporelm.errors import BackendError, OpError
from sporelm.ops import Spec, Symbol, count_nonfinite, dequantize_blocks, quantize_blocks, trace
from sporelm.plan import Plan
from sporelm.quant import F32, QuantFormat, dequantize_tensor, quantize_tensor
from sporelm.quant.finite import all_finite
from sporelm.tensor import dtype

log = logging.getLogger(__name__)

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]
VALUES_AT_ONCE = 1 << 18  # 1 MiB of float32: a plan's memory
LINE = 1024  # values of a line where rows do not matter
PLANS = 8  # that a thread keeps
_told: set[str] = set()


class TooLarge(OpError):
    """Finite numbers would become infinite, or the scale of their block would."""


@dataclass(frozen=True)
class Way:
    """What a plan is made for: lines of `width` values from one format to another."""

    source: type[QuantFormat]
    target: type[QuantFormat]
    width: int
    weighted: bool

    @property
    def lines(self) -> int:
        """The most lines at once."""
        return max(1, VALUES_AT_ONCE // self.width)


class Converter:
    """A back-end of one thread and its plans; for one thread at a time."""

    def __init__(self) -> None:
        self.backend = _backend()
        self._plans: OrderedDict[Way, Plan] = OrderedDict()

    def convert(self, way: Way, blocks: Blocks, importance: Floats | None) -> Blocks:
        """Lines of blocks, uint8 [lines, bytes], in the other format. Raises OpError for NaN or infinity among values
        that would share a scale."""
        plan = self._plan(way)
        result = np.empty((len(blocks), way.width // way.target.values * way.target.nbytes), np.uint8)
        for start in range(0, len(blocks), way.lines):
            part = blocks[start : start + way.lines]
            arrays: dict[str, Any] = {"source": part.view("<f4") if way.source is F32 else part}
            if importance is not None:
                arrays["importance"] = importance
            with np.errstate(all="ignore"):  # what the reference meets is looked for below
                found = plan.run(arrays, {"lines": len(part)})
            if "broken" in found and found["broken"].any():
                raise OpError(f"{way.target.name} cannot hold NaN or infinity")
            result[start : start + len(part)] = np.ascontiguousarray(found["out"]).view(np.uint8)
        return result

    def _plan(self, way: Way) -> Plan:
        if way in self._plans:
            self._plans.move_to_end(way)
            return self._plans[way]
        self._plans[way] = made = Plan(_graph(way), self.backend)
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)[1].close()
        return made

    def close(self) -> None:
        """Free the plans and the back-end."""
        while self._plans:
            self._plans.popitem()[1].close()
        self.backend.close()


def _graph(way: Way) -> Any:
    """Read the source's blocks, look for NaN, make the target's."""
    lines = Symbol("lines", way.lines)
    nbytes = way.width // way.source.values * way.source.nbytes
    is_values = way.source is F32
    inputs = {"source": Spec((lines, way.width), dtype.F32) if is_values else Spec((lines, nbytes), dtype.U8)}
    if way.weighted:
        inputs["importance"] = Spec((way.width,), dtype.F32)

    def function(source: Any, importance: Any = None) -> dict[str, Any]:
        values = source if is_values else dequantize_blocks(source, format=way.source.name)
        if way.target is F32:
            return {"out": values}
        given = (values,) if importance is None else (values, importance)
        out = quantize_blocks(*given, format=way.target.name)
        return {"out": out} if way.target.values == 1 else {"out": out, "broken": count_nonfinite(values)}

    return trace(function, inputs)


def _backend() -> Backend:
    """The CPU back-end; where it cannot run the reference, which is told once."""
    try:
        return open_backend("cpu", threads=1)
    except BackendError as reason:
        if str(reason) not in _told:
            _told.add(str(reason))
            log.warning("conversions run in numpy, which takes many times as long: %s", reason)
        return open_backend("reference")


_idle: list[Converter] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # back-ends do not work in a forked process


def convert_blocks(
    source: type[QuantFormat], target: type[QuantFormat], blocks: Blocks, importance: Floats | None = None
) -> Blocks:
    """Blocks of one format, uint8 [n, nbytes], as blocks of another; both make whole blocks of the values.

    With `importance`, float32 [width], the blocks are whole rows of `width` values. Raises OpError for NaN or infinity
    among values that would share a scale, or part of a row; TooLarge for numbers that the target cannot hold.
    """
    if source is target:
        return blocks
    count = len(blocks) * source.values
    weighted = importance is not None and target.weighted
    line = len(importance) if importance is not None and weighted else LINE
    fits = line % source.values == line % target.values == 0
    whole = count // line * line if fits else 0
    if weighted and whole < count:
        raise OpError(f"{count} values of {source.name} are no whole rows of {line} columns")
    parts = []
    if whole:
        lines = np.ascontiguousarray(blocks[: whole // source.values]).reshape(whole // line, -1)
        with _borrowed() as converter:
            done = converter.convert(Way(source, target, line, weighted), lines, importance if weighted else None)
        parts.append(done.reshape(-1, target.nbytes))
    if whole < count or not parts:
        rest = dequantize_tensor(source, np.ascontiguousarray(blocks[whole // source.values :]), (count - whole,))
        parts.append(quantize_tensor(target, rest))
    found = parts[0] if len(parts) == 1 else np.concatenate(parts)
    # Single numbers may be infinite if they were.
    if not all_finite(target, found) and (target.values > 1 or all_finite(source, blocks)):
        raise TooLarge(f"{target.name} cannot hold numbers as large")
    return found


@contextmanager
def _borrowed() -> Iterator[Converter]:
    """A converter that nobody else uses meanwhile."""
    try:
        converter = _idle.pop()
    except IndexError:
        converter = Converter()
    try:
        yield converter
    except OpError:  # of its values: it is as good as before
        _idle.append(converter)
        raise
    except BaseException:
        converter.close()
        raise
    _idle.append(converter)
