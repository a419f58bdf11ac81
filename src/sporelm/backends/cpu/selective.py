"""From calls of the selective scan and of the gated linear unit to entries of their kernels."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, stride_of
from sporelm.backends.cpu.kernels import gated_lru, selective
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


def gated_unit(low: Emitter, call: Call) -> None:
    x, fade, take, decay, fade_bias, take_bias, *held = call.args
    _, heads, columns = held[0].shape
    shape = Shape(1, columns, "each")
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "fade": low.at(fade), "take": low.at(take)}
    fields |= {"gate_stride": stride_of(fade), "decay": low.at(decay), "bias_stride": stride_of(fade_bias)}
    fields |= {"fade_bias": low.at(fade_bias), "take_bias": low.at(take_bias), "out": low.at(call.results[0])}
    fields |= {"out_stride": stride_of(call.results[0]), "heads": heads, "shared": heads, **sequence_fields(low, *held)}
    tiles = shape.tiles(low.places.target)
    kernel = gated_lru.gated_lru(low.places.target, shape)
    low.emit(kernel, fields, cell_of(spec_of(held[2]).shape[0]), factor=heads * tiles)


RULES: dict[str, Callable[[Any, Call], None]] = {"selective_scan": selective_scan, "gated_lru": gated_unit}
