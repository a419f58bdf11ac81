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
from conformance.padded_steps import pad_step, padded_specs
from conformance.tiny_decoder import Steps, TinyDecoder, extents_of, specs
from sporelm.backends.cuda.cuda_backend import CudaBackend
from sporelm.backends.torch import TorchBackend
from sporelm.backends.torch.op_functions import op_functions
from sporelm.errors import ContextError
from sporelm.evals.conformance.conformance_case import On
from sporelm.ops import trace
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
