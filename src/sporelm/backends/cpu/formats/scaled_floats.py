"""Floats of a byte in groups of 32, 64 or 128 columns that share an f32 scale: F8_E4M3 and F8_E5M2.

A group of a panel is a group of the format: [lanes f32 scales][columns][lanes] bytes. They are widened in registers via
float16 and multiplied in f32, so that a weight takes a byte and its share of the scale.
"""

from sporelm.backends.cpu.formats.panels import Panels, gather
from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i16, vec
from sporelm.backends.cpu.targets.cpu_target import CpuTarget

HEAD = 4  # bytes of a block before its numbers: a float32


class ScaledPanels(Panels):
    """Panels of `columns` per group. Subclasses convert bytes to float16."""

    family = "float"
    columns = 32
    each = 1  # columns per byte
    half_unit = 1.0  # the value of 1 after a byte is moved into a float16

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.k_step = self.columns

    @property
    def group_bytes(self) -> int:
        return (HEAD + self.columns // self.each) * self.lanes

    def halves(self, bytes_: Val, kind: object) -> Val:
        """Convert bytes (i8, scalar or vector) to the bits of float16, i16, each number divided by `half_unit`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement halves")

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * (HEAD + self.columns // self.each)
        k.store(gather(k, f32, rows, present, start), target)
        with k.range(self.columns // self.each) as place:
            bytes_ = gather(k, i8, rows, present, start + HEAD + place)
            k.store(bytes_, target, (place + HEAD) * self.lanes)

    def scale(self, k: Builder, group: Val) -> Val:
        """Return the factor of the group's halves: f32 vector."""
        return k.load(k.vf, group) * self.half_unit

    def column(self, k: Builder, group: Val, column: int | Val, scale: Val) -> Val:
        """Return one column of the group, given the group's `scale`: f32 vector."""
        bytes_ = k.load(vec(i8, self.lanes), k.at(group, HEAD * self.lanes), column * self.lanes)
        return k.target.from_half(k, self.halves(bytes_, vec(i16, self.lanes))) * scale

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        scale = k.load(f32, start, lane * 4) * self.half_unit
        numbers = k.at(start, lane + HEAD * self.lanes)
        values = []
        for first in range(0, self.columns, self.lanes):
            bytes_ = k.vector([k.load(i8, numbers, column * self.lanes) for column in range(first, first + self.lanes)])
            values.append(k.target.from_half(k, self.halves(bytes_, vec(i16, self.lanes))) * k.splat(scale))
        return values
