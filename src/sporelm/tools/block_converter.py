"""Conversion of blocks between number formats, in the kernels of the CPU back-end where it is available.

Each converting thread has its own single-threaded back-end, so that threads do not wait for each other. Back-ends are
pooled for later conversions, together with the memory of a few small plans.
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

from sporelm.backends.backend_registry import open_backend
from sporelm.backends.protocol import Backend
from sporelm.errors import BackendError, OpError
from sporelm.ops import Spec, Symbol, count_nonfinite, dequantize_blocks, quantize_blocks, trace
from sporelm.plan import Plan
from sporelm.quant import F32, QuantFormat, dequantize_tensor, quantize_tensor
from sporelm.quant.finite_check import has_only_finite
from sporelm.tensor import dtype

log = logging.getLogger(__name__)

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]
MAX_VALUES = 1 << 18  # 1 MiB of float32: a plan's memory
LINE_VALUES = 1024  # values per line where rows do not matter
MAX_PLANS = 8  # per thread
_reported_reasons: set[str] = set()


class ValueOverflow(OpError):
    """A finite number, or the scale of its block, would become infinite in the target format."""


@dataclass(frozen=True)
class ConversionSpec:
    """The key of a plan: lines of `width` values from one format to another."""

    source: type[QuantFormat]
    target: type[QuantFormat]
    width: int
    has_importance: bool

    @property
    def lines(self) -> int:
        """The maximum number of lines per run."""
        return max(1, MAX_VALUES // self.width)


class BlockConverter:
    """A back-end of one thread and its plans; for one thread at a time."""

    def __init__(self) -> None:
        self.backend = _open_backend()
        self._plans: OrderedDict[ConversionSpec, Plan] = OrderedDict()

    def convert(self, spec: ConversionSpec, blocks: Blocks, importance: Floats | None) -> Blocks:
        """Convert lines of blocks, uint8 [lines, bytes]. Raises OpError for NaN or infinity sharing a scale."""
        plan = self._plan(spec)
        result = np.empty((len(blocks), spec.width // spec.target.values * spec.target.nbytes), np.uint8)
        for start in range(0, len(blocks), spec.lines):
            part = blocks[start : start + spec.lines]
            arrays: dict[str, Any] = {"source": part.view("<f4") if spec.source is F32 else part}
            if importance is not None:
                arrays["importance"] = importance
            with np.errstate(all="ignore"):  # the reference's overflows are checked below
                outputs = plan.run(arrays, {"lines": len(part)})
            if "nonfinite" in outputs and outputs["nonfinite"].any():
                raise OpError(f"{spec.target.name} cannot hold NaN or infinity")
            result[start : start + len(part)] = np.ascontiguousarray(outputs["out"]).view(np.uint8)
        return result

    def _plan(self, spec: ConversionSpec) -> Plan:
        if spec in self._plans:
            self._plans.move_to_end(spec)
            return self._plans[spec]
        self._plans[spec] = plan = Plan(_trace_conversion(spec), self.backend)
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)[1].close()
        return plan

    def close(self) -> None:
        """Free the plans and the back-end."""
        while self._plans:
            self._plans.popitem()[1].close()
        self.backend.close()


def _trace_conversion(spec: ConversionSpec) -> Any:
    """Trace a graph that dequantizes the source blocks, counts non-finite values and quantizes to the target."""
    lines = Symbol("lines", spec.lines)
    nbytes = spec.width // spec.source.values * spec.source.nbytes
    is_values = spec.source is F32
    inputs = {"source": Spec((lines, spec.width), dtype.F32) if is_values else Spec((lines, nbytes), dtype.U8)}
    if spec.has_importance:
        inputs["importance"] = Spec((spec.width,), dtype.F32)

    def function(source: Any, importance: Any = None) -> dict[str, Any]:
        values = source if is_values else dequantize_blocks(source, format=spec.source.name)
        if spec.target is F32:
            return {"out": values}
        given = (values,) if importance is None else (values, importance)
        out = quantize_blocks(*given, format=spec.target.name)
        return {"out": out} if spec.target.values == 1 else {"out": out, "nonfinite": count_nonfinite(values)}

    return trace(function, inputs)


def _open_backend() -> Backend:
    """Open the CPU back-end, or the reference back-end with one warning where the CPU back-end is unavailable."""
    try:
        return open_backend("cpu", threads=1)
    except BackendError as reason:
        if str(reason) not in _reported_reasons:
            _reported_reasons.add(str(reason))
            log.warning("conversions run in numpy, which is many times slower: %s", reason)
        return open_backend("reference")


_idle_converters: list[BlockConverter] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle_converters.clear)  # back-ends do not work in a forked process


def convert_blocks(
    source: type[QuantFormat], target: type[QuantFormat], blocks: Blocks, importance: Floats | None = None
) -> Blocks:
    """Convert blocks, uint8 [n, nbytes], to another format. The values must be whole blocks in both formats.

    With `importance`, float32 [width], the blocks must be whole rows of `width` values. Raises OpError for NaN or
    infinity where values share a scale, and for a partial row; ValueOverflow for numbers that the target cannot hold.
    """
    if source is target:
        return blocks
    count = len(blocks) * source.values
    use_importance = importance is not None and target.can_weigh
    line = len(importance) if importance is not None and use_importance else LINE_VALUES
    fits = line % source.values == line % target.values == 0
    whole = count // line * line if fits else 0
    if use_importance and whole < count:
        raise OpError(f"{count} values of {source.name} are not whole rows of {line} columns")
    parts = []
    if whole:
        lines = np.ascontiguousarray(blocks[: whole // source.values]).reshape(whole // line, -1)
        with _borrow_converter() as converter:
            spec = ConversionSpec(source, target, line, use_importance)
            converted = converter.convert(spec, lines, importance if use_importance else None)
        parts.append(converted.reshape(-1, target.nbytes))
    if whole < count or not parts:
        rest = dequantize_tensor(source, np.ascontiguousarray(blocks[whole // source.values :]), (count - whole,))
        parts.append(quantize_tensor(target, rest))
    result = parts[0] if len(parts) == 1 else np.concatenate(parts)
    # Formats of single numbers may hold infinities that were in the source.
    if not has_only_finite(target, result) and (target.values > 1 or has_only_finite(source, blocks)):
        raise ValueOverflow(f"{target.name} cannot hold numbers this large")
    return result


@contextmanager
def _borrow_converter() -> Iterator[BlockConverter]:
    """Lend a converter that no other thread uses meanwhile."""
    try:
        converter = _idle_converters.pop()
    except IndexError:
        converter = BlockConverter()
    try:
        yield converter
    except OpError:  # caused by the values: the converter can be used again
        _idle_converters.append(converter)
        raise
    except BaseException:
        converter.close()
        raise
    _idle_converters.append(converter)
