"""From calls of the selective scan to entries of its kernel."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, stride_of
from sporelm.backends.cpu.kernels import selective
from sporelm.backends.cpu.kernels.recurrent import Shape
from sporelm.backends.cpu.recurrent import sequence_fields
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


def selective_scan(low: Emitter, call: Call) -> None:
    x, dt, write, read, decay, skip, *held = call.args
    _, size, channels = held[0].shape
    shape = Shape(size, channels, "each")
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "dt": low.at(dt), "dt_stride": stride_of(dt)}
    fields |= {"write": low.at(write), "read": low.at(read), "size_stride": stride_of(write)}
    fields |= {"decay": low.at(decay), "decay_stride": stride_of(decay), "skip": low.at(skip)}
    fields |= {"out": low.at(call.results[0]), "heads": 1, "shared": 1, **sequence_fields(low, *held)}
    tiles = shape.tiles(low.places.target)
    low.emit(
        selective.selective_scan(low.places.target, shape), fields, cell_of(spec_of(held[2]).shape[0]), factor=tiles
    )


RULES: dict[str, Callable[[Any, Call], None]] = {"selective_scan": selective_scan}
