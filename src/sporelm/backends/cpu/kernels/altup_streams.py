"""AltUp's streams of rows and sparse activation. An item is one token.

A token's streams are contiguous, each padded to whole vectors; values past the width are ignored.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.norm import valid_lanes


def _sum_row(k: Builder, f: Any, row: Val, own: Val, squares: bool, less: Val | None = None) -> Val:
    """Sum a row, or its squares, in one order. `less` is subtracted from each value; `own` masks the row's last
    vector."""
    wide, end, total = 4 * k.lanes, f.vectors - 1, k.zero(k.vf)

    def column(v: Val) -> Val:
        x = k.load(k.vf, row, v * wide)
        return x if less is None else x - less

    with k.range(end) as v:
        x = column(v)
        total.set(k.fma(x, x, total.value) if squares else total.value + x)
    x = k.select(own, column(end), k.const(k.vf, 0))
    return k.sum(k.fma(x, x, total.value) if squares else total.value + x)


def _magnitude_factors(k: Builder, f: Any, token: Val, others: int) -> list[Val]:
    """Return the factors that scale each other row to the root mean square of x's."""
    own = valid_lanes(k, f)
    target = k.sqrt(_sum_row(k, f, k.at(f.x, token * f.stride), own, True) / f.width)
    found = []
    for number in range(others):
        mean = _sum_row(k, f, k.at(getattr(f, f"other{number}"), token * f.stride), own, True) / f.width
        found.append(k.splat(target / k.sqrt(k.select(mean < f.least, f.least, mean))))  # NaN stays
    return found


def _row_fields(others: int) -> Any:
    places = " ".join(f"other{number}:p" for number in range(others))
    return parse_fields(f"x:p {places} out:p stride:i vectors:i width:f least:f")


def spread_streams(target: Any, others: int) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            factors, out = _magnitude_factors(k, f, token, others), k.at(f.out, token * (f.stride * (1 + others)))
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(k.load(k.vf, k.at(f.x, token * f.stride), at), out, at)
                for number, factor in enumerate(factors):
                    row = k.at(getattr(f, f"other{number}"), token * f.stride)
                    k.store(k.load(k.vf, row, at) * factor, k.at(out, f.stride * (number + 1)), at)

    return Kernel(f"spread_streams_{others}", _row_fields(others), body)


def merge_streams(target: Any, others: int) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            factors = _magnitude_factors(k, f, token, others)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                total = k.load(k.vf, k.at(f.x, token * f.stride), at)
                for number, factor in enumerate(factors):
                    row = k.at(getattr(f, f"other{number}"), token * f.stride)
                    total = k.fma(k.load(k.vf, row, at), factor, total)
                k.store(total / float(1 + others), k.at(f.out, token * f.stride), at)

    return Kernel(f"merge_streams_{others}", _row_fields(others), body)


def stream(target: Any) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.vectors) as v:
            at = v * (4 * k.lanes)
            k.store(k.load(k.vf, k.at(f.x, token * f.all + f.before), at), k.at(f.out, token * f.stride), at)

    return Kernel("stream", parse_fields("x:p all:i before:i out:p stride:i vectors:i"), body)


def altup_predict(target: Any, streams: int) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            x, out = (k.at(place, token * (f.stride * streams)) for place in (f.x, f.out))
            coefs = k.at(f.coefs, token * f.coefs_stride)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                given = [k.load(k.vf, k.at(x, f.stride * a), at) for a in range(streams)]
                for b in range(streams):
                    total = given[b]
                    for a in range(streams):
                        total = k.fma(k.splat(k.load(f32, coefs, 4 * (b * streams + a))), given[a], total)
                    k.store(total, k.at(out, f.stride * b), at)

    text = "x:p coefs:p coefs_stride:i out:p stride:i vectors:i"
    return Kernel(f"altup_predict_{streams}", parse_fields(text), body)


CORRECTED = "x:p activated:p coefs:p coefs_stride:i out:p stride:i vectors:i"


def altup_first(target: Any, streams: int) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            factor = k.splat(k.load(f32, k.at(f.coefs, token * f.coefs_stride), 0)) + 1.0
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                x = k.load(k.vf, k.at(f.x, token * (f.stride * streams)), at)
                found = k.load(k.vf, k.at(f.activated, token * f.stride), at) - x
                made = k.fma(found, factor, x) * k.load(k.vf, f.scale, at)
                k.store(made, k.at(f.out, token * f.stride), at)

    return Kernel(f"altup_first_{streams}", parse_fields(f"{CORRECTED} scale:p"), body)


def altup_correct(target: Any, streams: int) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            x, out = (k.at(place, token * (f.stride * streams)) for place in (f.x, f.out))
            coefs = k.at(f.coefs, token * f.coefs_stride)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                given = k.load(k.vf, x, at)
                found = k.load(k.vf, k.at(f.activated, token * f.stride), at) - given
                added = k.load(k.vf, k.at(f.added, token * f.stride), at)
                for b in range(streams):
                    row = k.load(k.vf, k.at(x, f.stride * b), at) if b else given
                    made = k.fma(found, k.splat(k.load(f32, coefs, 4 * b)) + 1.0, row)
                    k.store(made + added if b else made, k.at(out, f.stride * b), at)

    return Kernel(f"altup_correct_{streams}", parse_fields(f"{CORRECTED} added:p"), body)


def gaussian_topk(target: Any) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        own = valid_lanes(k, f)
        with k.range(first, last) as token:
            row = k.at(f.x, token * f.stride)
            mean = _sum_row(k, f, row, own, False) / f.width
            deviation = k.sqrt(_sum_row(k, f, row, own, True, k.splat(mean)) / f.width)
            least, nothing = k.splat(mean + deviation * f.factor), k.const(k.vf, 0)
            with k.range(f.vectors) as v:
                above = k.load(k.vf, row, v * (4 * k.lanes)) - least
                # NaN stays.
                k.store(k.select(above < nothing, nothing, above), k.at(f.out, token * f.stride), v * (4 * k.lanes))

    return Kernel("gaussian_topk", parse_fields("x:p out:p stride:i vectors:i width:f factor:f"), body)
