"""Models split between a device and the CPU: the same greedy text as on the CPU alone, wherever they are cut.

Torch's CPU device and the reference stand for the device; none of this has run on a GPU.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_near_in_nat
from families import CASES, Case, write_case
from lora_files import random_pairs, write_peft
from sporelm.api.device_split import DeviceBudget, DeviceSplit, SplitSizes
from sporelm.api.model_loader import ModelLoader
from sporelm.backends.cpu_offload import DEVICE, HOST, CpuOffloadBackend
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.lora import make_target_model, read_adapter
from sporelm.engine import Engine, Request, Sampling, Worker
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.lora_runtime import LoraMatrices
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import BackendError
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.plan.partition import PartitionedProgram
from sporelm.quant import Q4_K, Q8_0, QuantFormat
from tiny_files import write_folder, write_gguf
from tiny_models import SUPER, TINY, WIDE, Tiny

CONTEXT = 192
# Dense, with a window, sinks, experts, latents, sparse latents, states, states and experts, shared keys and values,
# shared layers, several passes, per-layer embeddings.
FAMILIES = (
    *("llama", "gemma3", "gpt-oss", "mixtral", "qwen2moe", "deepseek3", "deepseek32", "mamba2", "lfm2", "jamba"),
    *("recurrent-gemma", "rwkv7", "gemma3n", "zamba2", "nanbeige"),
)
WITH_REFERENCE = ("llama", "mixtral", "lfm2")
CUTS = [
    pytest.param(
        device,
        case,
        id=f"{device}-{case.name}",
        marks=() if case.name in (FAMILIES if device == "torch" else WITH_REFERENCE) else pytest.mark.all,
    )
    for device in ("torch", "reference")
    for case in CASES
]


@pytest.fixture(scope="module")
def host() -> Iterator[Any]:
    backend = open_available("cpu", threads=1, shares_arena=True)
    yield backend
    backend.close()


@pytest.fixture(scope="module", params=["torch", "reference"])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    backend = open_available(request.param, threads=1)
    yield backend
    backend.close()


@pytest.fixture
def torch() -> Iterator[Any]:
    backend = open_available("torch", threads=1)
    yield backend
    backend.close()


def make_splits(source: ModelSource, device: Any, host: Any, *, experts_on_host: bool = False) -> Iterator[DeviceSplit]:
    """Every split by layers: with and without the output, and with everything on one part."""
    budget = DeviceBudget(None, 4, 4, 64, CONTEXT)
    loader = ModelLoader(source, device, "f32", dequantize=False)
    sizes = SplitSizes(loader, host, budget, experts_on_host=experts_on_host)
    count = len(sizes.layers)
    for first in range(count + 1):
        layers = tuple(range(first, count))
        yield sizes.build(layers, False, has_output=bool(first % 2), device="it")
        if first in (0, count):
            yield sizes.build(layers, first == 0, has_output=not first % 2, device="it")


def split_loader(source: ModelSource, device: Any, host: Any, split: DeviceSplit, kv: str = "f32") -> ModelLoader:
    composite: Any = CpuOffloadBackend(device, host, split.device_map, owns_parts=False)
    return ModelLoader(source, composite, kv, dequantize=False)


def make_worker(loader: ModelLoader, *, eager: bool = False) -> tuple[Worker, EngineConfig]:
    limits = EngineConfig(CONTEXT, CONTEXT, loader.config.vocab, 100, 4, 24)
    if loader.state_bytes:
        limits = replace(limits, num_states=12, state_interval=1)
    return loader.create_worker(loader.load_decoder(CONTEXT, 1, None), limits, None, eager=eager), limits


def run_greedily(loader: ModelLoader, ids: list[int], *, eager: bool = False) -> list[int]:
    worker, limits = make_worker(loader, eager=eager)
    request = Request(ids, max_tokens=12)
    engine = Engine(worker, limits)
    engine.run([engine.add(request)])
    worker.close()
    return request.generated


@pytest.mark.parametrize(("device", "case"), CUTS, indirect=["device"])
def test_a_model_cut_anywhere_says_the_same(case: Case, device: Any, host: Any, tmp_path: Path) -> None:
    ids = case.ids()[:20]
    with closing(open_model(write_case(tmp_path, case))) as source:
        alone = ModelLoader(source, host, "f32", dequantize=False)
        expected = run_greedily(alone, ids)
        for experts_on_host in (False, True) if alone.expert_bytes else (False,):
            for split in make_splits(source, device, host, experts_on_host=experts_on_host):
                found = run_greedily(split_loader(source, device, host, split), ids)
                assert found == expected, split.placement


def test_op_by_op_a_split_model_says_the_same(device: Any, host: Any, tmp_path: Path) -> None:
    for name in ("jamba", "zamba2", "qwen2moe"):
        case = next(case for case in CASES if case.name == name)
        with closing(open_model(write_case(tmp_path / name, case))) as source:
            expected = run_greedily(ModelLoader(source, host, "f32", dequantize=False), case.ids()[:10])
            split = list(make_splits(source, device, host, experts_on_host=name == "qwen2moe"))[1]
            assert run_greedily(split_loader(source, device, host, split), case.ids()[:10], eager=True) == expected


@pytest.mark.parametrize(("tiny", "form"), [(WIDE, Q8_0), (SUPER, Q4_K)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_quantized_models_are_near(tiny: Tiny, form: type[QuantFormat], dtype: str, host: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny, matrices=form)
    ids = tiny.ids()
    step = Step([ScheduledSequence(0, ids, 0, tuple(range(-(-len(ids) // 64))), len(ids))], [])
    with closing(open_available("torch", threads=1, dtype=dtype)) as device, closing(open_model(path)) as source:
        worker, _ = make_worker(ModelLoader(source, host, "f32", dequantize=False))
        expected = worker.run(step).logits.copy()
        worker.close()
        for split in make_splits(source, device, host):
            worker, _ = make_worker(split_loader(source, device, host, split))
            assert_near_in_nat(worker.run(step).logits, expected, 0.01 if dtype == "f32" else 0.05, mean=True)
            worker.close()


@pytest.mark.parametrize("name", ["gemma3", "jamba", "qwen2moe"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.2, top_p=0.95, seed=3)], ids=["greedy", "drawn"]
)
def test_prefixes_forks_and_sessions_are_those_of_one_part(
    name: str, sampling: Sampling, torch: Any, host: Any, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == name)
    prompt = case.ids()

    def make_request(**service: Any) -> Request:
        return Request(prompt, sampling=sampling, max_tokens=16, **service)

    def generate(engine: Engine, *requests: Request) -> list[list[int]]:
        engine.run([engine.add(request) for request in requests])
        return [request.generated for request in requests]

    with closing(open_model(write_case(tmp_path / "model", case))) as source:
        worker, limits = make_worker(ModelLoader(source, host, "f32", dequantize=False))
        (alone,) = generate(Engine(worker, limits), make_request())
        longer = [*prompt, *alone]
        (continued,) = generate(Engine(worker, limits), Request(longer, sampling=sampling, max_tokens=8))
        worker.close()
        split = list(make_splits(source, torch, host))[2]
        worker, limits = make_worker(split_loader(source, torch, host, split))
        engine = Engine(worker, limits)
        again = [make_request(), make_request()]
        assert [generate(engine, each)[0] for each in again] == [alone] * 2
        assert again[1].cached_tokens == 64
        assert generate(Engine(worker, replace(limits, token_budget=7)), make_request()) == [alone], "chunks"
        tight = Engine(worker, replace(limits, num_pages=3))
        assert generate(tight, *[make_request(cache_salt=str(number)) for number in range(3)]) == [alone] * 3
        engine = Engine(worker, limits)
        sequence = engine.sequence()
        generate(engine, Request(prompt[:50], max_tokens=1, sequence=sequence))
        child = engine.fork(sequence)
        assert generate(engine, make_request(sequence=sequence), make_request(sequence=child)) == [alone] * 2
        engine.save_session(child, tmp_path / "a.session", "model", {})
        # A session of a split model is one of any other split, and of the CPU alone.
        others = [split_loader(source, torch, host, each) for each in list(make_splits(source, torch, host))[1:4:2]]
        for loader in (*others, ModelLoader(source, host, "f32", dequantize=False)):
            other, limits = make_worker(loader)
            waking = Engine(other, limits)
            woken, _ = waking.load_session(tmp_path / "a.session", "model")
            request = Request(longer, sampling=sampling, max_tokens=8, sequence=woken)
            assert generate(waking, request) == [continued], "woken"
            assert request.cached_tokens == len(longer) - 1
            other.close()
        worker.close()


@pytest.mark.parametrize("eager", [False, True], ids=["planned", "eager"])
def test_adapters_change_a_split_model_as_one_on_the_cpu(device: Any, host: Any, tmp_path: Path, eager: bool) -> None:
    tiny = TINY[0]
    path = write_folder(tmp_path / "model", tiny)
    adapter = write_peft(tmp_path / "adapter", random_pairs(tiny, 3), 6.0)
    ids = tiny.ids()[:7]
    step = Step([ScheduledSequence(number, ids, 0, (number,), len(ids), number) for number in (0, 1)], [])

    def run(loader: ModelLoader) -> np.ndarray:
        worker, _ = make_worker(loader, eager=eager)
        parts = read_adapter(adapter, make_target_model(loader.params, loader.config)).parts
        tensors = {name: LoraMatrices(*map(loader.backend.tensor, part)) for name, part in parts.items()}
        worker.set_lora_runtime(worker.build_lora_runtime({1: tensors}))
        logits = worker.run(step).logits.copy()
        worker.close()
        return logits

    with closing(open_model(path)) as source:
        expected = run(ModelLoader(source, host, "f32", dequantize=False))
        for split in make_splits(source, device, host):
            found = run(split_loader(source, device, host, split))
            np.testing.assert_allclose(found, expected, atol=2e-4, err_msg=split.placement)
    assert np.abs(expected[: len(ids)] - expected[len(ids) :]).max() > 0.1, "the adapter changes something"


@pytest.mark.parametrize("name", ["llama", "qwen2moe", "jamba", "nanbeige"])
def test_memory_adds_up(name: str, torch: Any, host: Any, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    with closing(open_model(write_case(tmp_path, case))) as source:
        alone = [ModelLoader(source, each, "f16", dequantize=False) for each in (torch, host)]
        for split in make_splits(source, torch, host):
            loader = split_loader(source, torch, host, split, kv="f16")
            assert loader.weight_bytes_by_part == list(split.weight_bytes)
            assert sum(split.weight_bytes) == loader.nbytes
            pages, states = loader.page_bytes_by_part, loader.state_bytes_by_part
            if len(split.layers) == split.num_layers:
                assert (pages, states) == ([alone[DEVICE].page_bytes, 0], [alone[DEVICE].state_bytes, 0])
            if not split.layers:
                assert (pages, states) == ([0, alone[HOST].page_bytes], [0, alone[HOST].state_bytes])
            on_device = sum(
                torch.page_bytes(memory.position_shape, KV_TYPES["f16"])
                for index, memory in loader.model.memory_by_layer()
                if index in split.layers and hasattr(memory, "position_shape")
            )
            assert pages[DEVICE] == on_device


def test_activations_cross_once_per_border(torch: Any, host: Any, tmp_path: Path) -> None:
    """Layers in the middle of a model cross once each way; experts on the host twice in each layer with experts."""

    def count_segments(source: ModelSource, split: DeviceSplit) -> set[int]:
        worker, _ = make_worker(split_loader(source, torch, host, split))
        assert worker.runner.plan is not None
        programs = [each.program for each in worker.runner.plan.bucket_programs.values()]
        worker.close()
        return {len(each.segments) for each in programs if isinstance(each, PartitionedProgram)}

    dense, mixture = (next(case for case in CASES if case.name == name) for name in ("llama", "mixtral"))
    with closing(open_model(write_case(tmp_path / "dense", dense))) as source:
        sizes = make_sizes(source, torch, host)
        last = len(sizes.layers) - 1
        assert count_segments(source, sizes.build((last,), False, has_output=True, device="it")) == {2}
        assert count_segments(source, sizes.build((last,), False, has_output=False, device="it")) == {3}
    with closing(open_model(write_case(tmp_path / "mixture", mixture))) as source:
        sizes = make_sizes(source, torch, host, experts_on_host=True)
        count = len(sizes.layers)
        every = tuple(range(count))
        assert count_segments(source, sizes.build(every, True, has_output=True, device="it")) == {2 * count + 1}


def make_sizes(source: ModelSource, device: Any, host: Any, *, experts_on_host: bool = False) -> SplitSizes:
    loader = ModelLoader(source, device, "f32", dequantize=False)
    return SplitSizes(loader, host, DeviceBudget(None, 4, 4, 64, CONTEXT), experts_on_host=experts_on_host)


def test_segments_of_the_host_share_memory(torch: Any, host: Any, tmp_path: Path) -> None:
    """With experts on the host, each layer has a segment there: their values lie in one arena, not in one each."""
    mixture = next(case for case in CASES if case.name == "mixtral")
    with closing(open_model(write_case(tmp_path, mixture))) as source:
        sizes = make_sizes(source, torch, host, experts_on_host=True)
        split = sizes.build(tuple(range(len(sizes.layers))), True, has_output=True, device="it")
        worker, _ = make_worker(split_loader(source, torch, host, split))
        assert worker.runner.plan is not None
        program: Any = worker.runner.plan.bucket_programs["many"].program
        arenas = {segment.program._arena.address for segment in program.segments if segment.part_index == HOST}
        assert len(arenas) == 1
        worker.close()


def test_a_packed_weight_stays_on_its_part(torch: Any, host: Any, tmp_path: Path) -> None:
    with closing(open_model(write_folder(tmp_path / "model", TINY[0]))) as source:
        split = next(make_splits(source, torch, host))
        loader = split_loader(source, torch, host, split)
        weights: Any = loader.load_decoder(CONTEXT, 1, None).weights
        composite: Any = loader.backend
        weight = weights["layers.0.attn_q.weight"]
        assert composite.weight_part("layers.0.attn_q.weight") == DEVICE
        with pytest.raises(BackendError, match="cannot be read as an array"):
            composite.local(weight, HOST)
        norm = weights["layers.0.attn_norm.weight"]
        assert composite.local(norm, HOST).device is host
        assert composite.local(norm, HOST) is composite.local(norm, HOST), "copied once"


def test_a_wrong_number_of_caches_is_refused(torch: Any, host: Any, tmp_path: Path) -> None:
    with closing(open_model(write_folder(tmp_path / "model", TINY[0]))) as source:
        split = next(make_splits(source, torch, host))
        composite: Any = split_loader(source, torch, host, split).backend
        with pytest.raises(BackendError, match="wrong number of caches of pages"):
            composite.allocate_pages(1, [(2, 8)], None)
