"""Gathers an importance matrix: runs a model over a text and sums the squares of what each weight is multiplied with.

As llama.cpp's llama-imatrix does: windows of text one after the other, each beginning with BOS, every position counted.
The model runs op by op, and a watcher sees the arguments of each product before it is computed.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.api.loading import Opened, Options, open_engine
from sporelm.api.stepwise import whole
from sporelm.backends.observed import observed
from sporelm.errors import ModelFileError, RequestError, UsageError
from sporelm.models import model_of
from sporelm.ops import Op
from sporelm.text.windows import windows_of
from sporelm.tools.imatrix_file import Gathered, Imatrix, unicode_name
from sporelm.weights.messages import shown
from sporelm.weights.names import COMMON, Table, order_name, stored_name

Progress = Callable[[str, int, int], None]  # stage, windows done, windows in all
OUTPUTS = ("output.weight", "token_embd.weight")  # a tied output is the embedding


class Product(NamedTuple):
    """One product: x [tokens, width] (or [tokens, used, width]) with a weight, and for a stack of experts which of them
    each row is multiplied with, int [tokens, used]."""

    x: Any
    weight: Any
    experts: Any = None


# Op -> the products that its arguments stand for.
PRODUCTS: Mapping[str, Callable[..., Iterator[Product]]] = {
    "linear": lambda x, weight, *rest: iter([Product(x, weight)]),
    "linear_group": lambda x, weights, *rest: (Product(x, weight) for weight in weights),
    "linear_silu_mul": lambda x, gate, up: iter([Product(x, gate), Product(x, up)]),
    "linear_activate_mul": lambda x, gate, up, **_: iter([Product(x, gate), Product(x, up)]),
    "linear_experts": lambda x, weight, ids, *bias: iter([Product(x, weight, ids)]),
    "linear_experts_silu_mul": lambda x, gate, up, ids: iter([Product(x, gate, ids), Product(x, up, ids)]),
}


class Gatherer:
    """Watches ops and sums, for each weight whose name it knows, the squares of the columns of x."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # id of a weight -> its name in GGUF files
        self.sizes: dict[str, tuple[int, int]] = {}  # matrices and width, also of weights that are not looked for
        self.orders: dict[str, NDArray[np.int32]] = {}  # of weights whose columns lie in another order than in the file
        self.sums: dict[str, NDArray[np.float64]] = {}  # [matrices, width]
        self.counts: dict[str, NDArray[np.int64]] = {}  # [matrices]
        self._last: tuple[Any, NDArray[np.float64], int] | None = None  # query, key and value share their x

    def know(self, weights: Mapping[str, Any], outputs: bool, table: Table = COMMON) -> None:
        """The weights to look for, by our names; the matrix that gives the scores only with `outputs`.

        Of weights that GGUF files hold together in one tensor the first speaks for all: they have one x.
        """
        for name, weight in weights.items():
            stored = stored_name(name, "gguf", table)
            if len(weight.shape) > 1 and stored not in self.sizes:
                self.sizes[stored] = weight.shape[0] if len(weight.shape) > 2 else 1, weight.shape[-1]
                if (order := weights.get(order_name(name))) is not None:
                    self.orders[stored] = order.numpy()
                if outputs or stored not in OUTPUTS:
                    self.names[id(weight)] = stored

    def __call__(self, op: Op, args: Sequence[Any]) -> None:
        """Look at an op that is about to run."""
        for product in PRODUCTS.get(op.name, lambda *args: iter([]))(*args):
            name = self.names.get(id(product.weight))
            if name is None:
                continue
            if product.experts is None:
                self._add_all(name, product.x)
            else:
                self.add_experts(name, product.x.numpy(), product.experts.numpy(), product.weight.shape[0])

    def _add_all(self, name: str, x: Any) -> None:
        if self._last is None or self._last[0] is not x:
            values = x.numpy()
            self._last = (x, np.square(values).sum(axis=0, dtype=np.float64), len(values))
        _, squares, count = self._last
        self._add(name, squares[None], np.array([count], np.int64))

    def add_experts(self, name: str, x: NDArray[np.float32], experts: NDArray[np.int32], count: int) -> None:
        """Rows x [tokens, width], or [tokens, used, width], each added to those experts [tokens, used] of `count` that
        it goes to."""
        rows = np.broadcast_to(x[:, None] if x.ndim == 2 else x, (*experts.shape, x.shape[-1]))
        squares, counts = np.zeros((count, x.shape[-1])), np.bincount(experts.reshape(-1), minlength=count)
        for expert in np.flatnonzero(counts):
            squares[expert] = np.square(rows[experts == expert]).sum(axis=0, dtype=np.float64)
        self._add(name, squares, counts.astype(np.int64))

    def _add(self, name: str, squares: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        if not np.isfinite(squares).all():
            raise ModelFileError(
                f"the model computes numbers that are not finite before {shown(name)}; 'spore gguf verify' looks for"
                " what is wrong with its weights"
            )
        if name in self.orders:
            squares, given = np.empty_like(squares), squares
            squares[:, self.orders[name]] = given
        if name in self.sums:
            self.sums[name] += squares
            self.counts[name] += counts
        else:
            self.sums[name], self.counts[name] = squares.copy(), counts.copy()

    def begin_with(self, imatrix: Imatrix) -> None:
        """Go on from what was gathered before. Raises RequestError if that was with another model."""
        for name, found in imatrix.raw().entries.items():
            if self.sizes.get(name) != found.sums.shape:
                raise RequestError(
                    f"{imatrix.path} was gathered with another model: its sums for {shown(name)} fit no weight here;"
                    " gather into another file"
                )
            self.sums[name], self.counts[name] = found.sums.astype(np.float64), found.counts.copy()

    def entries(self) -> dict[str, Gathered]:
        """What was gathered so far."""
        return {name: Gathered(sums.astype(np.float32), self.counts[name].copy()) for name, sums in self.sums.items()}


@dataclass(frozen=True)
class Run:
    """How to gather.

    context    tokens of a window
    chunks     windows at most; None: all of the text
    outputs    whether the matrix that gives the scores counts too
    backend, device, threads  as `LLM` takes them
    """

    context: int = 512
    chunks: int | None = None
    outputs: bool = False
    backend: str | None = None
    device: str = "cpu"
    threads: int | None = None


@contextmanager
def watched_model(model: str | Path | None, run: Run, progress: Progress | None) -> Iterator[tuple[Opened, Gatherer]]:
    """A model that runs op by op under a gatherer's eyes."""
    gatherer = Gatherer()
    options = Options(
        model=model,
        backend=run.backend,
        device=run.device,
        threads=run.threads,
        max_context=run.context,
        kv=None,
        eager=True,
        max_batch=1,
        dequantize=False,
        token_budget=None,
    )
    try:
        opened = open_engine(options, progress, lambda backend: observed(backend, gatherer))
    except RequestError as reason:  # the option has another name here
        raise RequestError(str(reason).replace("--max-context", "--context")) from None
    try:
        table = model_of(opened.config.architecture).family.names
        gatherer.know(opened.worker.runner.weights, run.outputs, table)
        yield opened, gatherer
    finally:
        opened.worker.close()
        opened.backend.close()


def gather(
    model: str | Path | None,
    text: str,
    dataset: str,
    run: Run,
    *,
    before: Imatrix | None = None,
    progress: Progress | None = None,
) -> Generator[tuple[Imatrix, int], None, None]:
    """The importance matrix after each window, and how many windows there will be. Whoever stops early has a whole one.

    `before` is what an earlier run of the same text had gathered: its windows are not run again. Raises RequestError
    for a text of less than one window or a `before` of another text or context; and what loading a model raises.
    """
    dataset = unicode_name(dataset)
    _check(run, before, dataset)
    with watched_model(model, run, progress) as (opened, gatherer):
        windows = windows_of(opened.tokenizer, text, run.context).windows[: run.chunks]
        done = 0
        if before is not None:
            gatherer.begin_with(before)
            done = before.chunks
            if done >= len(windows):
                raise RequestError(f"all {len(windows)} chunks of {dataset!r:.100} were gathered already")
        for number, ids in enumerate(windows[done:], done + 1):
            if progress is not None:
                progress("gathering", number - 1, len(windows))
            whole(opened.engine.logits(ids, lambda scores: None), opened.engine)
            yield Imatrix(gatherer.entries(), (dataset,), number, run.context), len(windows)


def _check(run: Run, before: Imatrix | None, dataset: str) -> None:
    if run.context < 1:
        raise UsageError(f"--context is {run.context}: it must be at least 1")
    if run.chunks is not None and run.chunks < 1:
        raise UsageError(f"--chunks is {run.chunks}: it must be at least 1")
    if before is None:
        return
    if before.datasets != (dataset,):
        raise RequestError(
            f"{before.path} was gathered from {', '.join(before.datasets)[:100]!r}, not from {dataset[:100]!r}: gather"
            " into another file, and --merge the two"
        )
    if before.is_legacy or before.chunk_size != run.context:
        raise RequestError(
            f"{before.path} was gathered in chunks of {before.chunk_size} tokens, not of {run.context}, or in the older"
            " form, which cannot be gone on with"
        )
