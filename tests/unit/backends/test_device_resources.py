"""Resources of devices: one thread at a time, handed over by sporulate and sprout, reported if they leak."""

import gc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Barrier, Event, Thread, current_thread
from typing import Any

import numpy as np
import pytest

from available import open_available
from hf_folders import write_model
from lora_files import random_pairs, write_peft
from sporelm import LLM, SamplingParams, ops
from sporelm.backends import backend_registry
from sporelm.backends.context import Context
from sporelm.backends.cpu import CpuBackend
from sporelm.backends.device_context import DeviceContext, DeviceResource
from sporelm.engine import Request, Sampling
from sporelm.engine.runner import StartedExport
from sporelm.errors import ContextError, MemoryShortage
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F16, F32
from tiny_models import WIDE

THREADS = 8


class Mark(DeviceResource):
    """A resource without anything behind it."""

    def __init__(self, context: Context, label: str = "mark") -> None:
        super().__init__(context, label)


def in_thread(work: Callable[[], Any], name: str = "other") -> Any:
    """Return what `work` returns in a thread of its own; raise what it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = Thread(target=run, name=name)
    thread.start()
    thread.join(30)
    assert found, "the thread did not end"
    result, error = found[0]
    if error is not None:
        raise error
    return result


# ---- contexts


def test_a_device_context_is_current_in_one_thread() -> None:
    context = DeviceContext("device 0")
    mark = Mark(context)
    mark.check()
    with pytest.raises(ContextError, match="context device 0 is current in thread MainThread, not in other; enter it"):
        in_thread(mark.check)

    def enter() -> None:
        with context.current(), context.current():
            mark.check()

    in_thread(enter, "engine")
    with pytest.raises(ContextError, match="is current in thread engine, not in MainThread"):
        mark.check()
    with context.current():
        mark.check()
    assert context.close() == ["mark"]


def test_a_thread_waits_until_the_context_is_left() -> None:
    context, is_inside, may_leave, order = DeviceContext("device 0"), Event(), Event(), list[str]()

    def stay() -> None:
        with context.current():
            is_inside.set()
            assert may_leave.wait(30)
            order.append("left")

    thread = Thread(target=stay)
    thread.start()
    assert is_inside.wait(30)
    may_leave.set()
    with context.current():
        order.append("entered")
    thread.join()
    assert order == ["left", "entered"]


def test_a_device_that_cannot_be_entered_locks_no_thread_out() -> None:
    fails = [True]

    class Refused:
        def __enter__(self) -> None:
            if fails[0]:
                raise RuntimeError("no device")

        def __exit__(self, *raised: object) -> None:
            return None

    context = DeviceContext("device 0", Refused)
    with pytest.raises(RuntimeError, match="no device"):
        context.current().__enter__()
    fails[0] = False

    def enter() -> Thread:
        with context.current():
            return context.thread

    assert in_thread(enter).name == "other"


def test_a_resource_is_handed_to_a_thread_that_works_beside() -> None:
    context, other = DeviceContext("device 0"), DeviceContext("device 1")
    mark = Mark(context).sporulate()
    with pytest.raises(ContextError, match="mark is detached from context device 0; sprout"):
        mark.check()
    with pytest.raises(ContextError, match="mark belongs to context device 0, not to device 1"):
        in_thread(lambda: mark.sprout(other))

    def take() -> None:
        mark.sprout(context).check()
        with context.current():
            pass  # the context may be current elsewhere meanwhile

    in_thread(take, "writer")
    with context.current(), pytest.raises(ContextError, match="mark is bound to thread writer, not to MainThread"):
        mark.check()
    with context.current(), pytest.raises(ContextError, match="mark is bound to thread writer"):
        mark.sprout(context)
    assert context.close() == ["mark"]
    with pytest.raises(ContextError, match="mark was freed by context device 0"):
        in_thread(mark.check, "writer")


# ---- the torch back-end with streams, events and buffers


@pytest.fixture
def device_torch() -> Iterator[Any]:
    open_available("torch").close()
    from unit.backends.device_torch import DeviceTorch

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        backend = DeviceTorch(threads=1)
        yield backend
        backend.close()


def rows_of(number: int) -> np.ndarray:
    return np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * number


def test_arrays_pass_through_buffers_that_are_used_again(device_torch: Any) -> None:
    pool = device_torch.resources.buffers
    for number in range(50):
        handle = device_torch.upload(rows_of(number))
        fetch = device_torch.start_fetch(handle)
        device_torch.late.finish()
        assert np.array_equal(fetch.result(), rows_of(number))
        assert np.array_equal(fetch.result(), rows_of(number)), "the array stays"
    assert pool.num_allocated <= 3
    for array in (np.zeros((0, 3), np.float32), np.float32(3), np.ones((2, 3), bool), np.arange(8)[::-2], np.array(7)):
        assert np.array_equal(device_torch.fetch(device_torch.upload(array)), array)


def test_a_buffer_is_not_used_again_before_the_device_has_read_it(device_torch: Any) -> None:
    pool, uploaded = device_torch.resources.buffers, [device_torch.upload(rows_of(number)) for number in range(5)]
    assert pool.num_allocated >= 5, "no event is complete"
    before = pool.num_allocated
    device_torch.late.finish()
    uploaded += [device_torch.upload(rows_of(5))]
    assert pool.num_allocated == before
    assert device_torch.late.num_waits <= 1, "an upload waits for nothing"
    assert np.array_equal(device_torch.fetch(uploaded[-1]), rows_of(5))


def test_a_fetch_that_is_not_read_returns_its_buffer(device_torch: Any) -> None:
    pool = device_torch.resources.buffers
    fetch = device_torch.start_fetch(device_torch.upload(rows_of(1)))
    before = pool.num_allocated
    del fetch
    gc.collect()
    device_torch.late.finish()
    device_torch.start_fetch(device_torch.upload(rows_of(2))).result()
    assert pool.num_allocated == before


def test_a_shortage_in_any_verb_is_reported_and_loses_no_buffer(
    device_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def fail(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory. Tried to allocate 2 GB")

    cache = device_torch.allocate_pages(4, [(1, 8)], F16)[0]
    handle = device_torch.upload(rows_of(1))
    device_torch.late.finish()
    num_allocated = device_torch.resources.buffers.num_allocated
    blocks = quantize_tensor(FORMATS["Q8_0"], np.ones((8, 32), np.float32))
    weight = StoredTensor("weight", FORMATS["Q8_0"], (8, 32), blocks)
    verbs = [
        lambda: device_torch.upload(rows_of(2)),
        lambda: device_torch.allocate_pages(4, [(1, 8)], F16),
        lambda: device_torch.fetch_rows(handle, [0]),
        lambda: device_torch.start_fetch(handle),
        lambda: device_torch.copy_pages([cache], [(0, 1)]),
        lambda: device_torch.start_export_pages(cache, [0]),
        lambda: device_torch.pack(weight),
    ]
    for verb in verbs:
        with monkeypatch.context() as patch:
            for name in ("empty", "zeros"):
                patch.setattr(torch, name, fail)
            for name in ("to", "copy_", "index_select"):
                patch.setattr(torch.Tensor, name, fail)
            for _ in range(3):
                with pytest.raises(
                    MemoryShortage, match=r"^device cpu: out of memory\. Tried to allocate 2 GB\. Lower "
                ):
                    verb()
        device_torch.late.finish()
        assert np.array_equal(device_torch.start_fetch(handle).result(), rows_of(1))
    assert device_torch.resources.buffers.num_allocated <= num_allocated + 2
    device_torch.free_pages([cache])


def test_a_fetch_in_the_wrong_thread_or_context_is_refused(device_torch: Any) -> None:
    from unit.backends.device_torch import DeviceTorch

    other = DeviceTorch(threads=1)
    fetch = device_torch.start_fetch(device_torch.upload(rows_of(1)))
    with pytest.raises(ContextError, match="context torch is current in thread MainThread, not in writer"):
        in_thread(fetch.result, "writer")
    fetch.sporulate()
    with pytest.raises(ContextError, match=r"copy of float32\[3x4\] to the host is detached"):
        fetch.result()
    with pytest.raises(ContextError, match="belongs to context torch"):
        fetch.sprout(other.context)
    found = in_thread(lambda: fetch.sprout(device_torch.context).result(), "writer")
    assert np.array_equal(found, rows_of(1))
    assert fetch.result() is found
    other.close()


def test_pages_are_exported_for_the_thread_that_asks_first(device_torch: Any) -> None:
    caches = device_torch.allocate_pages(2, [(1, 16), (1, 16)], F16)
    canonical = np.random.default_rng(0).standard_normal((2, 2, 1, 64, 16)).astype(np.float16)
    for cache in caches:
        device_torch.import_pages(cache, [0, 1], canonical)
    copies = [device_torch.start_export_pages(cache, [1, 0]) for cache in caches]
    export = StartedExport(device_torch.context, copies, [])
    for cache in caches:
        device_torch.import_pages(cache, [0, 1], np.zeros_like(canonical))
    layers, states = in_thread(export, "session-writer")
    assert states == []
    for layer in layers:
        assert np.array_equal(layer, canonical[::-1])
    assert export()[0] is layers
    device_torch.free_pages(caches)


def test_leaks_of_a_device_are_reported_at_close() -> None:
    open_available("torch").close()
    from unit.backends.device_torch import DeviceTorch

    backend = DeviceTorch(threads=1)
    fetch = backend.start_fetch(backend.upload(rows_of(1)))
    detached = backend.start_fetch(backend.upload(rows_of(2))).sporulate()
    caches = backend.allocate_pages(3, [(1, 16)], F32)
    leaks = r"3 pages of 1 layers; copy of float32\[3x4\] to the host; copy of float32\[3x4\] to the host$"
    with pytest.warns(ResourceWarning, match=f"torch was closed before {leaks}"):
        backend.close()
    uses: list[Callable[[], Any]] = [
        fetch.result,
        lambda: detached.sprout(backend.context),
        lambda: backend.export_pages(caches[0], [0]),
    ]
    for use in uses:
        with pytest.raises(ContextError, match="was freed by context torch"):
            use()
    for use in (lambda: backend.upload(rows_of(1)), lambda: backend.tensor(rows_of(1))):
        with pytest.raises(ContextError, match=": closed"):
            use()
    backend.close()


# ---- eight threads

SPECS = {"x": Spec((Symbol("tokens", 4), 8), F32)}


def doubled(backend: Any) -> Plan:
    return Plan(trace(lambda x: {"y": ops.add(x, x)}, SPECS), backend)


def run_in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Return the results of eight threads that begin together."""
    barrier = Barrier(THREADS)

    def begin(number: int) -> Any:
        barrier.wait(30)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return [each.result(60) for each in [pool.submit(begin, number) for number in range(THREADS)]]


def make_backend(name: str) -> Any:
    if name == "cpu":
        return CpuBackend(threads=1)
    open_available("torch").close()
    from unit.backends.device_torch import DeviceTorch

    return DeviceTorch(threads=1)


@pytest.mark.parametrize("name", ["cpu", "device torch"])
def test_eight_threads_have_back_ends_of_their_own(name: str) -> None:
    make_backend(name).close()  # skips where it is missing

    def compute(number: int) -> bool:
        backend = make_backend(name)
        plan, rows = doubled(backend), np.full((2, 8), number, np.float32)
        for _ in range(20):
            (handle,) = plan.launch({"x": rows}, {"tokens": 2}).values()
            assert np.array_equal(backend.start_fetch(handle).result(), 2 * rows)
        plan.close()
        backend.close()
        return backend.context.live == []

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        assert run_in_threads(compute) == [True] * THREADS


def test_eight_threads_share_a_back_end_and_hand_copies_over(device_torch: Any) -> None:
    """Each thread starts copies under the context, and reads those of its neighbour beside it."""
    queues: list[Queue] = [Queue() for _ in range(THREADS)]
    plans = [doubled(device_torch) for _ in range(THREADS)]

    def compute(number: int) -> int:
        num_refused = 0
        for turn in range(20):
            rows = np.full((2, 8), 100 * number + turn, np.float32)
            (handle,) = plans[number].launch({"x": rows}, {"tokens": 2}).values()
            fetch = device_torch.start_fetch(handle)
            with device_torch.context.current():  # another thread may have entered since
                fetch.sporulate()
            queues[(number + 1) % THREADS].put(fetch)
            received = queues[number].get(timeout=30)
            try:
                received.check()
            except ContextError:
                num_refused += 1
            found = received.sprout(device_torch.context).result()
            assert np.array_equal(found, np.full((2, 8), 2 * (100 * ((number - 1) % THREADS) + turn), np.float32))
        return num_refused

    assert run_in_threads(compute) == [20] * THREADS
    for plan in plans:
        plan.close()


# ---- an engine on such a device


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", WIDE)


PROMPTS = [[1, 9, 17, 33, 5, 99, 42] * length for length in (3, 12, 21, 30)]


@pytest.fixture
def as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    open_available("torch").close()
    monkeypatch.setitem(backend_registry.OWN, "torch", "unit.backends.device_torch:DeviceTorch")


def greedy(count: int = 12) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)


@pytest.mark.usefixtures("as_device")
def test_an_engine_leaves_nothing_behind_on_a_device(folder: Path, tmp_path: Path) -> None:
    """Steps overlap, threads share the model, conversations are offloaded by the writer's thread and restored."""
    with LLM(folder, backend="cpu", threads=1) as llm:
        expected = [answer.token_ids for answer in llm.generate(PROMPTS, greedy())]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with LLM(folder, backend="torch", threads=1, max_batch=4, session_dir=tmp_path / "asleep") as llm:
            assert isinstance(llm.loaded_engine.backend.context, DeviceContext)
            assert llm.engine.overlap is not None
            assert [answer.token_ids for answer in llm.generate(PROMPTS, greedy())] == expected
            answers = run_in_threads(lambda number: llm.generate([PROMPTS[number % 4]], greedy())[0].token_ids)
            assert answers == [*expected, *expected]


@pytest.mark.usefixtures("as_device")
def test_the_writer_takes_over_the_copies_of_offloaded_pages(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sporelm.backends.torch.torch_fetch import TorchFetch

    threads, sprout = list[str](), TorchFetch.sprout

    def watch(self: TorchFetch, context: Context) -> TorchFetch:
        threads.append(current_thread().name)
        return sprout(self, context)

    monkeypatch.setattr(TorchFetch, "sprout", watch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        options: dict[str, Any] = {"max_batch": 1, "max_context": 256, "session_dir": tmp_path / "asleep"}
        with LLM(folder, backend="torch", threads=1, **options) as llm:
            engine = llm.loaded_engine.decoder_engine
            prompts = [[number, *PROMPTS[3]] for number in range(engine.limits.num_pages // 4 + 2)]
            sequences = [engine.sequence() for _ in prompts]
            outputs, cached = list[list[int]](), list[int]()
            for turn in range(2):
                for number, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True)):
                    tokens = prompt if turn == 0 else [*prompt, *outputs[number][:3], 5]
                    request = engine.add(Request(tokens, max_tokens=4, sampling=Sampling(), sequence=sequence))
                    engine.run([request])
                    outputs.append(request.generated)
                    cached.append(request.cached_tokens)
            store = engine.kv_cache.offload_store
            assert store is not None
            counts = store.counts
            assert counts.offloaded >= 2
            assert counts.restored >= 2
            assert counts.lost == 0
            assert min(cached[len(prompts) :]) > 200
            engine.check_integrity()
    assert any(name.startswith("session-writer") for name in threads), threads
    with LLM(folder, backend="cpu", threads=1, max_context=256) as llm:
        for prompt, first, output in zip(prompts, outputs, outputs[len(prompts) :], strict=False):
            tokens = [*prompt, *first[:3], 5]
            assert llm.generate([tokens], greedy(4))[0].token_ids == output


@pytest.mark.usefixtures("as_device")
def test_adapters_come_and_go_on_a_device(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In padded steps that overlap: each request's text is that of the CPU, and the programs stay."""
    paths = [
        write_peft(tmp_path / name, random_pairs(WIDE, 3 + seed, seed=seed), 4.0) for seed, name in enumerate("abc")
    ]
    names = ["a", "", "b", "a", "c", ""]
    params = [replace(greedy(), adapter=name) for name in names]
    prompts = [PROMPTS[number % 4] for number in range(6)]
    with LLM(folder, backend="cpu", threads=1, adapters=paths) as llm:
        expected = [answer.token_ids for answer in llm.generate(prompts, params)]
    made = list[Any]()
    from unit.backends.device_torch import DeviceTorch

    program = DeviceTorch.program

    def count(self: Any, *args: Any) -> Any:
        made.append(args)
        return program(self, *args)

    monkeypatch.setattr(DeviceTorch, "program", count)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with LLM(folder, backend="torch", threads=1, max_batch=4) as llm:
            llm.load_adapter(paths[0])
            assert llm.generate(prompts[:2], params[:2])[0].token_ids == expected[0]
            assert llm.loaded_engine.decoder_worker.runner.padded_inputs is not None
            num_programs = len(made)
            llm.load_adapter(paths[1])
            llm.load_adapter(paths[2])
            assert [answer.token_ids for answer in llm.generate(prompts, params)] == expected
            for name, path in zip("abc", paths, strict=True):
                llm.unload_adapter(name)
                llm.load_adapter(path)
            answers = run_in_threads(
                lambda number: llm.generate([prompts[number % 6]], params[number % 6])[0].token_ids
            )
            assert answers == [*expected, *expected[:2]]
            assert len(made) == num_programs


def test_adapters_work_where_add_lora_needs_arrays_of_the_host(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_available("torch").close()
    monkeypatch.setitem(backend_registry.OWN, "torch", "unit.backends.plain_torch:PlainTorch")
    path = write_peft(tmp_path / "a", random_pairs(WIDE, 3, seed=3), 4.0)
    params = [replace(greedy(), adapter=name) for name in ("a", "", "a")]
    texts = []
    for name in ("cpu", "torch"):
        with LLM(folder, backend=name, threads=1, adapters=[path]) as llm:
            texts.append([answer.token_ids for answer in llm.generate(PROMPTS[:3], params)])
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
