"""Computation of an importance matrix: run a model over a text and sum the squares of the inputs of each weight.

As in llama.cpp's llama-imatrix: consecutive windows of text, each beginning with BOS, every position counted. The model
runs op by op, and an observer sees the arguments of each product before it is computed.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.api.cooperative import run_to_completion
from sporelm.api.engine_loader import EngineOptions, LoadedEngine, load_engine
from sporelm.backends.observed_backend import observe_ops
from sporelm.checkpoints.schema_registry import schemas_for
from sporelm.errors import ModelFileError, RequestError, UsageError, rename_options
from sporelm.files.tensor_messages import quote
from sporelm.models.params import order_name
from sporelm.ops import Op
from sporelm.text.token_windows import split_into_windows
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry, escape_path

Progress = Callable[[str, int, int], None]  # phase, windows done, windows in all
OUTPUT_NAMES = ("output.weight", "token_embd.weight")  # a tied output is the embedding


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


class ImatrixCollector:
    """Observes ops and sums the squares of the columns of x for each registered weight."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # id of a weight -> its name in GGUF files
        self.sizes: dict[str, tuple[int, int]] = {}  # matrices and width, also of weights that are not looked for
        self.orders: dict[str, NDArray[np.int32]] = {}  # of weights whose columns lie in another order than in the file
        self.sums: dict[str, NDArray[np.float64]] = {}  # [matrices, width]
        self.counts: dict[str, NDArray[np.int64]] = {}  # [matrices]
        self._last: tuple[Any, NDArray[np.float64], int] | None = None  # query, key and value share their x

    def register(self, weights: Mapping[str, Any], outputs: bool, stored_name: Callable[[str], str]) -> None:
        """The weights to look for, by our names; the matrix that gives the scores only with `outputs`.

        Of weights that GGUF files hold together in one tensor the first speaks for all: they have one x.
        """
        for name, weight in weights.items():
            stored = stored_name(name)
            if len(weight.shape) > 1 and stored not in self.sizes:
                self.sizes[stored] = weight.shape[0] if len(weight.shape) > 2 else 1, weight.shape[-1]
                if (order := weights.get(order_name(name))) is not None:
                    self.orders[stored] = order.numpy()
                if outputs or stored not in OUTPUT_NAMES:
                    self.names[id(weight)] = stored

    def __call__(self, op: Op, args: Sequence[Any]) -> None:
        """Observe an op before it runs."""
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
        squares = np.zeros((count, x.shape[-1]))
        counts = np.bincount(experts.reshape(-1), minlength=count)
        for expert in np.flatnonzero(counts):
            squares[expert] = np.square(rows[experts == expert]).sum(axis=0, dtype=np.float64)
        self._add(name, squares, counts.astype(np.int64))

    def _add(self, name: str, squares: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        if not np.isfinite(squares).all():
            raise ModelFileError(
                f"the model computes numbers that are not finite before {quote(name)}; 'spore gguf verify' looks for"
                " what is wrong with its weights"
            )
        if name in self.orders:
            ordered = np.empty_like(squares)
            ordered[:, self.orders[name]] = squares
            squares = ordered
        if name in self.sums:
            self.sums[name] += squares
            self.counts[name] += counts
        else:
            self.sums[name] = squares.copy()
            self.counts[name] = counts.copy()

    def resume_from(self, imatrix: Imatrix) -> None:
        """Resume from an earlier importance matrix. Raises RequestError if it is of another model."""
        for name, found in imatrix.raw().entries.items():
            if self.sizes.get(name) != found.sums.shape:
                raise RequestError(
                    f"{imatrix.path} was gathered with another model: its sums for {quote(name)} fit no weight here;"
                    " gather into another file"
                )
            self.sums[name] = found.sums.astype(np.float64)
            self.counts[name] = found.counts.copy()

    def entries(self) -> dict[str, ImatrixEntry]:
        """Return the sums and counts so far."""
        return {
            name: ImatrixEntry(sums.astype(np.float32), self.counts[name].copy()) for name, sums in self.sums.items()
        }


@dataclass(frozen=True)
class ImatrixOptions:
    """How to gather.

    context    tokens of a window
    chunks     windows at most; None: all of the text
    outputs    whether the matrix that gives the scores counts too
    backend, device, threads, dtype, strict  as `LLM` takes them
    """

    context: int = 512
    chunks: int | None = None
    outputs: bool = False
    backend: str | None = None
    device: str = "cpu"
    threads: int | None = None
    dtype: str = "auto"
    strict: bool = False


@contextmanager
def observe_model(
    model: str | Path | None, run: ImatrixOptions, progress: Progress | None
) -> Iterator[tuple[LoadedEngine, ImatrixCollector]]:
    """Open a model that runs op by op and is observed by a collector."""
    collector = ImatrixCollector()
    options = EngineOptions(
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
        dtype=run.dtype,
        strict=run.strict,
    )
    try:
        loaded = load_engine(options, progress, lambda backend: observe_ops(backend, collector))
    except RequestError as reason:  # the option has another name here
        raise RequestError(rename_options(str(reason), {"max_context": "--context"}.get)) from None
    try:
        schema, _ = schemas_for(loaded.config)
        collector.register(
            loaded.worker.runner.weights, run.outputs, lambda name: schema.stored_name(name, loaded.config)
        )
        yield loaded, collector
    finally:
        loaded.worker.close()
        loaded.backend.close()


def collect_imatrix(
    model: str | Path | None,
    text: str,
    dataset: str,
    run: ImatrixOptions,
    *,
    before: Imatrix | None = None,
    progress: Progress | None = None,
) -> Generator[tuple[Imatrix, int], None, None]:
    """Yield the importance matrix after each window, and the total number of windows. Every one is complete by itself.

    `before` is what an earlier run of the same text had gathered: its windows are not run again. Raises RequestError
    for a text of less than one window or a `before` of another text or context; and what loading a model raises.
    """
    dataset = escape_path(dataset)
    _check_options(run, before, dataset)
    with observe_model(model, run, progress) as (loaded, collector):
        windows = split_into_windows(loaded.tokenizer, text, run.context).windows[: run.chunks]
        done = 0
        if before is not None:
            collector.resume_from(before)
            done = before.chunks
            if done >= len(windows):
                raise RequestError(f"all {len(windows)} chunks of {dataset!r:.100} were computed already")
        for number, ids in enumerate(windows[done:], done + 1):
            if progress is not None:
                progress("gathering", number - 1, len(windows))
            engine = loaded.decoder_engine
            run_to_completion(engine.logits(ids, lambda scores: None), engine)
            yield Imatrix(collector.entries(), (dataset,), number, run.context), len(windows)


def _check_options(run: ImatrixOptions, before: Imatrix | None, dataset: str) -> None:
    if run.context < 1:
        raise UsageError(f"--context is {run.context}: it must be at least 1")
    if run.chunks is not None and run.chunks < 1:
        raise UsageError(f"--chunks is {run.chunks}: it must be at least 1")
    if before is None:
        return
    if before.datasets != (dataset,):
        raise RequestError(
            f"{before.path} was computed from {', '.join(before.datasets)[:100]!r}, not from {dataset[:100]!r}: write"
            " to another file, and --merge the two"
        )
    if before.is_legacy or before.chunk_size != run.context:
        raise RequestError(
            f"{before.path} was computed in chunks of {before.chunk_size} tokens, not of {run.context}, or in the older"
            " format, which cannot be resumed"
        )
