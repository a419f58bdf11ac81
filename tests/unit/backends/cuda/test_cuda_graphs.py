"""Programs that replay captured graphs, with torch's functions on the CPU and a stand-in for CUDA's capture."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed: pip install triton")

from conformance.agreement import assert_agrees
from conformance.padded_decoder import BUCKETS, DUMP_PAGE, PAGES_EACH, on_device, padded_decoder
from conformance.padded_steps import empty_step, pad_step, padded_specs
from conformance.tiny_decoder import Steps, TinyDecoder, extents_of, specs
from sporelm.backends.cuda.cuda_backend import CudaBackend
from sporelm.backends.protocol import WarmupStep
from sporelm.backends.torch import TorchBackend
from sporelm.backends.torch.captured_graphs import MAX_CAPTURED_TOKENS
from sporelm.backends.torch.op_functions import op_functions
from sporelm.checkpoints import config_from_hf
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.worker import LoadedModel, Worker
from sporelm.errors import ContextError
from sporelm.evals.conformance.conformance_case import On
from sporelm.evals.meta_device.check_buckets import fill_buckets, make_weights
from sporelm.evals.meta_device.tiny_configs import CONFIGS
from sporelm.models import build
from sporelm.ops import trace
from sporelm.ops.paged_attention import PAGE
from sporelm.plan import Plan


class StandInGraph:
    """Repeats the recorded work at each replay, and leaves the results where those of the capture were."""

    def __init__(self, work: Callable[[], Any], outputs: dict[str, Any]) -> None:
        self.launches, self.outputs, self.num_replays = work, outputs, 0

    def replay(self) -> None:
        self.num_replays += 1
        for name, found in self.launches().items():
            self.outputs[name].copy_(found)

    def reset(self) -> None:
        self.outputs = {}


class StandInDevice:
    """Captures as CUDA does: the outputs hold nothing before the first replay."""

    def __init__(self) -> None:
        self.graphs: list[StandInGraph] = []

    def capture(self, work: Callable[[], Any]) -> tuple[Any, Any]:
        outputs = {name: tensor.clone().zero_() - 1 for name, tensor in work().items()}
        self.graphs.append(StandInGraph(work, outputs))
        return self.graphs[-1], outputs

    def update(self, graph: Any, arrays: Any) -> None:
        """CUDA's graphs take no numbers from the host."""


class TorchCuda(CudaBackend):
    """The CUDA back-end with torch's functions, on the CPU."""

    functions = op_functions()
    pack = TorchBackend.pack

    def __init__(self) -> None:
        super().__init__(dtype="f32")
        self.traits = replace(self.traits, input_buckets=BUCKETS)
        self.captures = self.graph_device = StandInDevice()


@pytest.fixture
def backends() -> Iterator[tuple[TorchCuda, TorchCuda]]:
    """One that captures, and one that does not."""
    capturing, plain = TorchCuda(), TorchCuda()
    plain.graph_device = None
    yield capturing, plain
    for backend in (capturing, plain):
        backend.close()


def decode_steps(count: int) -> Iterator[dict[str, np.ndarray]]:
    """Padded steps: prompts of three sequences, then one token each."""
    steps = Steps()
    for counts in [{0: 5, 1: 9, 2: 3}, *[{0: 1, 1: 1, 2: 1}] * count]:
        exact = steps.step(counts, 3)
        yield pad_step(exact, BUCKETS.row_block, BUCKETS.decodes, BUCKETS.blocks, PAGES_EACH, DUMP_PAGE)[0]


def test_replayed_steps_have_the_results_of_launched_ones(backends: tuple[TorchCuda, TorchCuda]) -> None:
    decoders = [padded_decoder(backend, "F32") for backend in backends]
    plans = [
        Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend)
        for decoder, backend in zip(decoders, backends, strict=True)
    ]
    earlier: list[tuple[Any, np.ndarray]] = []
    for arrays in decode_steps(8):
        mixed = {**arrays, **on_device(backends[0], {name: arrays[name] for name in ("starts", "lengths")})}
        handles = plans[0].launch(mixed, extents_of(arrays))
        expected = plans[1].run(on_device(backends[1], arrays), extents_of(arrays))
        assert_agrees([backends[0].fetch(handles["logits"])], [expected["logits"]], True)
        earlier.append((handles["logits"], expected["logits"]))
    for handle, logits in earlier:
        assert_agrees([backends[0].fetch(handle)], [logits], True)  # a later step changes no result
    graphs = backends[0].captures.graphs
    assert [graph.num_replays for graph in graphs] == [7], "the first decode step only shows the shape"
    for backend, decoder, plan in zip(backends, decoders, plans, strict=True):
        plan.close()
        backend.free_pages([decoder.cache])
    assert graphs[0].outputs == {}, "graphs are freed with their program"


def test_steps_of_exact_extents_are_not_captured(backends: tuple[TorchCuda, TorchCuda]) -> None:
    backends[0].traits = replace(backends[0].traits, input_buckets=None)
    decoder = TinyDecoder(On(backends[0], "F32"), "F32")
    plan, steps = Plan(trace(decoder.forward, specs()), backends[0]), Steps()
    for _ in range(3):
        arrays = steps.step({0: 1, 1: 1}, 2)
        plan.run(on_device(backends[0], arrays), extents_of(arrays))
    assert not backends[0].captures.graphs
    plan.close()
    backends[0].free_pages([decoder.cache])


def test_arguments_on_the_host_are_not_captured(backends: tuple[TorchCuda, TorchCuda]) -> None:
    backend = backends[0]
    decoder = padded_decoder(backend, "F32")
    plan, steps = Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend), Steps()
    for counts in [{0: 5, 1: 9, 2: 3}, *[{0: 1, 1: 1, 2: 1}] * 3]:
        arrays = steps.step(counts, 3)
        plan.run(arrays, extents_of(arrays))
    assert not backend.captures.graphs
    plan.close()
    backend.free_pages([decoder.cache])


def test_a_captured_step_refuses_freed_pages(backends: tuple[TorchCuda, TorchCuda]) -> None:
    backend = backends[0]
    decoder = padded_decoder(backend, "F32")
    plan = Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend)
    for arrays in decode_steps(3):
        plan.run(on_device(backend, arrays), extents_of(arrays))
    assert len(backend.captures.graphs) == 1
    backend.free_pages([decoder.cache])
    with pytest.raises(ContextError):
        plan.run(on_device(backend, arrays), extents_of(arrays))
    plan.close()


def test_warmup_steps_are_captured_before_the_first_step(backends: tuple[TorchCuda, TorchCuda]) -> None:
    decoders = [padded_decoder(backend, "F32") for backend in backends]
    plans = [
        Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend)
        for decoder, backend in zip(decoders, backends, strict=True)
    ]
    padding = empty_step(4, 0, BUCKETS.row_block, PAGES_EACH, 5, DUMP_PAGE)
    large = empty_step(0, 2 * MAX_CAPTURED_TOKENS // BUCKETS.row_block, BUCKETS.row_block, PAGES_EACH, 5, DUMP_PAGE)
    steps = [WarmupStep(on_device(backends[0], arrays), extents_of(arrays)) for arrays in (padding, large)]
    seen: list[tuple[str, int, int]] = []
    for _ in range(2):
        plans[0].prepare(None, lambda *each: seen.append(each), steps)
    assert [each for each in seen if each[0] == "compiling kernels"] == [
        ("compiling kernels", 0, 1),
        ("compiling kernels", 1, 1),
    ], "a larger step is not captured, and a captured one not again"
    graphs = backends[0].captures.graphs
    assert [graph.num_replays for graph in graphs] == [0]
    for arrays in decode_steps(3):
        found = plans[0].run(on_device(backends[0], arrays), extents_of(arrays))
        expected = plans[1].run(on_device(backends[1], arrays), extents_of(arrays))
        assert_agrees([found["logits"]], [expected["logits"]], True)
    assert [graph.num_replays for graph in graphs] == [3]
    for backend, decoder, plan in zip(backends, decoders, plans, strict=True):
        plan.close()
        backend.free_pages([decoder.cache])


def test_the_graphs_of_a_program_share_their_output_buffers(backends: tuple[TorchCuda, TorchCuda]) -> None:
    backend = backends[0]
    decoder = padded_decoder(backend, "F32")
    plan = Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend)
    steps = []
    for decodes in (4, 2, 1):
        arrays = empty_step(decodes, 0, BUCKETS.row_block, PAGES_EACH, decodes + 2, DUMP_PAGE)
        steps.append(WarmupStep(on_device(backend, arrays), extents_of(arrays)))
    plan.prepare(None, None, steps)
    written = [graph.launches()["logits"] for graph in backend.captures.graphs]
    assert [each.shape[0] for each in written] == [6, 4, 3]
    assert len({each.data_ptr() for each in written}) == 1
    plan.close()
    backend.free_pages([decoder.cache])


def test_a_worker_captures_steps_of_decoding_and_of_short_prompts() -> None:
    backend, context = TorchCuda(), 4 * PAGE
    backend.traits = replace(backend.traits, input_buckets=replace(BUCKETS, pages=(1, 2)), max_batch=4)
    model = build(config_from_hf(dict(CONFIGS["gated delta rule"]), "config.json"))
    limits = EngineConfig(context, context, model.config.vocab, 64, 4, 8, num_states=3, state_interval=PAGE)
    worker = Worker(LoadedModel(model, make_weights(model, backend, "F32")), backend, limits=limits)
    caches = [each for cache in worker.runner.caches for each in (cache if isinstance(cache, tuple) else (cache,))]
    before = [each.storage.values[:-1].clone() for each in caches]
    worker.prepare()
    padded = worker.runner.padded_inputs
    assert padded is not None
    graphs = backend.captures.graphs
    num_decodes, num_blocks = (
        len([each for each in padded.decodes if each]),
        len([each for each in padded.blocks if each]),
    )
    assert len(graphs) == num_decodes * len(padded.columns) + num_blocks
    for cache, values in zip(caches, before, strict=True):
        assert cache.storage.values[:-1].equal(values), "padded rows write to the dump page and the dump state only"
    for step in (fill_buckets(2, 0, 16, 1, 2), fill_buckets(4, 0, 16, 4, 4), fill_buckets(0, 2, 16, 1, 1)):
        num_replays = sum(graph.num_replays for graph in graphs)
        worker.run(step)
        assert sum(graph.num_replays for graph in graphs) == num_replays + 1
    worker.close()
    backend.close()
