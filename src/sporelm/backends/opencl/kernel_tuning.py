"""Selection of the tuning parameters of a device by short measurements; `spore bench tune --backend opencl` runs it.

Numbers that depend on each other are measured together, on the op that they are for: candidates run in turn, and the
fastest replaces those in use if it is clearly faster. A candidate that the device does not compile or launch (too many
registers, groups that are too large) is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf, isfinite
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.device_tuning import DeviceTuning, fit_groups
from sporelm.errors import SporeError
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F16
from sporelm.tensor.tensor import Tensor

if TYPE_CHECKING:
    from sporelm.backends.opencl.opencl_backend import OpenClBackend

Progress = Callable[[str, int, int], None]

WIDTH, ROWS, TOKENS, HEADS, HEAD_DIM, PAGES = 1024, 4096, 256, 8, 64, 8
SAMPLES = 7  # of each candidate, in turn with the others
CLEAR_SPEEDUP = 1.05  # a candidate must be faster by this factor to replace the parameters in use
FORMAT = "Q4_0"


class TuningRow(NamedTuple):
    """The measurement of one op: the parameters before and after, and the seconds of both.

    before_s   infinite if the device does not run the parameters before
    """

    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    before_s: float
    after_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the gain; None where the parameters before do not run."""
        if not isfinite(self.before_s):
            return self._asdict() | {"before_s": None, "gain": None}
        return self._asdict() | {"gain": round(self.before_s / self.after_s, 3)}


def tune_device(backend: "OpenClBackend", progress: Progress | None = None) -> tuple[DeviceTuning, list[TuningRow]]:
    """Return the fastest tuning parameters for a back-end's device. Changes the back-end's own."""
    rows: list[TuningRow] = []
    workloads = _list_workloads(backend)
    for done, (name, candidates, run) in enumerate(workloads):
        if progress:
            progress("measure", done, len(workloads))
        rows.append(_choose(backend, name, candidates, run))
    if backend.device.has_fp16:
        rows.append(_tune_half_products(backend))
    if progress:
        progress("measure", len(workloads), len(workloads))
    return backend.tuning, rows


def _tune_half_products(backend: "OpenClBackend") -> TuningRow:
    """Measure products of many tokens in half precision and in float, on a back-end that stores halves."""
    narrow = type(backend)(device=str(backend.device.number), dtype="f16")
    try:
        narrow.tuning = backend.tuning
        random = np.random.default_rng(0)
        weight = _random_weight(narrow, random)
        many = narrow.tensor(random.standard_normal((TOKENS, WIDTH), np.float32))
        row = _choose(narrow, "half products", [{"half_products": 0}], lambda: ops.linear(many, weight))
        backend.tuning = narrow.tuning
    finally:
        narrow.close()
    return row


def _random_weight(backend: "OpenClBackend", random: np.random.Generator) -> Tensor:
    form = FORMATS[FORMAT]
    blocks = random.integers(0, 60, (ROWS * WIDTH // form.values, form.nbytes), np.uint8)
    return backend.pack(StoredTensor("weight", form, (ROWS, WIDTH), blocks))


def _list_workloads(backend: "OpenClBackend") -> list[tuple[str, list[dict[str, Any]], Callable[[], Any]]]:
    """Return for each op: a name, candidates, and a function that runs the op."""
    is_cpu = backend.device.kind == "cpu"
    groups = [1] if is_cpu else [16, 32, 64, 128]
    squares = [(1, 1)] if is_cpu else [(2, 8), (4, 8), (8, 8), (8, 16)]
    random = np.random.default_rng(0)

    def rows(count: int, width: int) -> Tensor:
        return backend.tensor(random.standard_normal((count, width), np.float32))

    weight = _random_weight(backend, random)
    one, many, flat = rows(1, WIDTH), rows(TOKENS, WIDTH), rows(TOKENS, ROWS)
    scale = backend.tensor(np.ones(WIDTH, np.float32))
    cache = backend.allocate_pages(PAGES, [(HEADS, HEAD_DIM)], F16)[0]
    queries = rows(TOKENS, HEADS * HEAD_DIM)
    numbers = ([0, TOKENS], [PAGES * 64], [list(range(PAGES))])
    sequence = [backend.tensor(np.array(each, np.int32)) for each in numbers]

    def attend() -> Any:
        return ops.attention(queries, cache, *sequence, scale=0.125)

    return [
        (
            "one token",
            _combine(few_rows=[1, 2, 4], dot_rows=[1, 4, 8], row_blocks=[1, 8], few_group=groups),
            lambda: ops.linear(one, weight),
        ),
        (
            "many tokens",
            _combine(tile_tokens=[4, 6, 8, 12, 14], tile_vectors=[1, 2], tile_group=squares),
            lambda: ops.linear(many, weight),
        ),
        (
            "slabs",
            _combine(slab_bytes=[1 << shift for shift in (20, 21, 22, 23, 24, 26)]),
            lambda: ops.linear(many, weight),
        ),
        (
            "elementwise",
            _combine(vector=[4, 8, 16], elements_group=[1, 16, 64, 128]),
            lambda: ops.silu_mul(flat, flat),
        ),
        (
            "rows",
            _combine(row_group=[1] if is_cpu else [16, 32, 64, 128, 256]),
            lambda: ops.rms_norm(many, scale, eps=1e-5),
        ),
        ("attention", _combine(attention_rows=[1, 2, 4, 8], attention_group=groups), attend),
    ]


def _combine(**numbers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return all combinations of values."""
    return [dict(zip(numbers, values, strict=True)) for values in product(*numbers.values())]


def _fits(tuning: DeviceTuning, backend: "OpenClBackend") -> bool:
    """Return whether no work-group or slab is larger than the device allows."""
    return fit_groups(tuning, backend.device) == tuning


def _choose(backend: "OpenClBackend", name: str, candidates: list[dict[str, Any]], run: Callable[[], Any]) -> TuningRow:
    """Measure candidates in turn. Put the fastest one in use, if it is clearly faster."""
    before = backend.tuning
    current = {number: getattr(before, number) for number in candidates[0]}
    seconds: dict[int, list[float]] = {}
    failure: SporeError | None = None
    fitting = [each for each in candidates if _fits(replace(before, **each), backend)]
    every = [current, *(each for each in fitting if each != current)]
    for _ in range(SAMPLES + 1):
        for index, candidate in enumerate(every):
            if index in seconds and not seconds[index]:
                continue  # it does not run here
            backend.tuning = replace(before, **candidate)
            try:
                backend.synchronize()
                began = perf_counter()
                run()
                backend.synchronize()
            except SporeError as error:
                failure = failure or error
                seconds[index] = []
                continue
            seconds.setdefault(index, [np.inf]).append(perf_counter() - began)
    times = {index: median(taken[2:]) for index, taken in seconds.items() if taken}  # the first compiles
    if not times:
        assert failure is not None
        raise failure
    fastest = min(times, key=lambda index: times[index])
    current_s = times.get(0, inf)  # infinite: the device refuses the parameters in use
    chosen = fastest if times[fastest] * CLEAR_SPEEDUP < current_s else 0
    backend.tuning = replace(before, **every[chosen])
    return TuningRow(name, current, every[chosen], current_s, times[chosen])
