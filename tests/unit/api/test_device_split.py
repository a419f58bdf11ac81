"""The split of a model between a device and the CPU: what fits, what options and errors say, and the engine it gives.

Torch's CPU device stands for the device, with a memory of its own where a test gives it one.
"""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from available import open_available
from families import CASES, write_case
from sporelm import LLM, SamplingParams
from sporelm.api import split_loading
from sporelm.api.device_split import DeviceBudget, DeviceSplit, min_split_bytes, split_model
from sporelm.api.model_loader import ModelLoader
from sporelm.backends.cpu_offload import DEVICE, HOST
from sporelm.backends.torch_detection import list_torch_devices
from sporelm.checkpoints import open_model
from sporelm.cli.main import main
from sporelm.engine.capacity import page_bytes_by_part
from sporelm.errors import MemoryShortage, RequestError
from sporelm.models.params import Param
from sporelm.ops.canonical_pages import KV_TYPES

PROMPTS = ["Once upon a time", "The little dog"]
PARAMS = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
RATES = (2e9, 1e9)
SMALL = {"max_context": 128, "threads": 1}


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing."""
    monkeypatch.setattr(split_loading, "measure_split", lambda split, device, host: replace(split, rates=RATES))


@pytest.fixture
def expected(story: Path) -> list[list[int]]:
    with LLM(story, backend="cpu", **SMALL) as llm:
        return [each.token_ids for each in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture
def own_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives torch's CPU device a memory of its own, with this many free bytes."""
    open_available("torch").close()
    from sporelm.backends.torch import TorchBackend

    def give(nbytes: int) -> None:
        monkeypatch.setattr(TorchBackend, "free_bytes", lambda backend: nbytes)

    return give


def layer_bytes(story: Path) -> tuple[int, int]:
    """The least budget with one layer of the story model, and the bytes of the whole model."""
    with (
        closing(open_available("torch", threads=1)) as device,
        closing(open_available("cpu", threads=1)) as host,
        closing(open_model(story)) as source,
    ):
        loader = ModelLoader(source, device, None, dequantize=False)
        return min_split_bytes(loader, host, DeviceBudget(None, 2, 4, 512, 128)), loader.nbytes


def test_layers_fill_the_memory_from_the_last_one(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "llama")
    with (
        closing(open_available("torch", threads=1)) as device,
        closing(open_available("cpu", threads=1)) as host,
        closing(open_model(write_case(tmp_path, case))) as source,
    ):
        loader = ModelLoader(source, device, "f16", dequantize=False)
        whole = DeviceBudget(1 << 30, 2, 4, 16, 128)
        least, found = min_split_bytes(loader, host, whole), list[DeviceSplit]()
        for nbytes in (*range(least - 1, least + 3 * loader.nbytes, 4096), 1 << 30):
            split = split_model(loader, host, replace(whole, nbytes=nbytes), "torch")
            if not found or split.device_map != found[-1].device_map:
                found.append(split)
            used = split.weight_bytes[DEVICE] + (split.room or 0)
            assert used <= nbytes
            assert split.room is not None
            in_pages = 2 * loader.page_bytes * len(split.layers) // split.num_layers
            assert not split.layers or split.room >= in_pages, "the cache of a context fits"
        counts = [(len(split.layers), split.has_output) for split in found]
        assert counts[0] == (0, False)
        assert counts[-1] == (found[0].num_layers, True)
        assert (1, False) in counts
        assert (1, True) in counts, "the output goes first"
        assert found[-1].device_map.weights["embedding.weight"] == DEVICE
        assert found[-2].device_map.weights["embedding.weight"] == HOST, "lookup tables go last"


def test_experts_stay_on_the_host(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "qwen2moe")
    path = write_case(tmp_path, case)
    with (
        closing(open_available("torch", threads=1)) as device,
        closing(open_available("cpu", threads=1)) as host,
        closing(open_model(path)) as source,
    ):
        loader = ModelLoader(source, device, None, dequantize=False)
        split = split_model(loader, host, DeviceBudget(None, 2, 0, 16, 128), "torch", experts_on_host=True)
        for param in loader.params:
            assert split.device_map.weights[param.name] == (HOST if param.is_experts else DEVICE)
        expert_bytes = ModelLoader(source, host, None, dequantize=False).expert_bytes
        assert split.weight_bytes[HOST] == expert_bytes
        experts = source.config.experts
        assert experts is not None
        assert split.device_map.read_bytes[HOST] == round(expert_bytes * experts.used / experts.count)
        assert "layers and the output without experts on torch" in split.placement
        assert "the experts on cpu" in split.placement


def test_a_mixture_is_split_where_the_host_reads_less(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "qwen2moe")
    with (
        closing(open_available("torch", threads=1)) as device,
        closing(open_available("cpu", threads=1)) as host,
        closing(open_model(write_case(tmp_path, case))) as source,
    ):
        loader, found = ModelLoader(source, device, None, dequantize=False), set[bool]()
        for nbytes in range(50_000, 2 * loader.nbytes, 20_000):
            budget = DeviceBudget(nbytes, 2, 0, 16, 128)
            split = split_loading.split_mixture(loader, host, budget, "torch")
            others = [split_model(loader, host, budget, "torch", experts_on_host=each) for each in (False, True)]
            assert split.device_map.read_bytes[HOST] == min(each.device_map.read_bytes[HOST] for each in others)
            found.add(split.experts_on_host)
        assert found == {False, True}


def test_a_split_model_is_announced_before_it_is_loaded(story: Path, expected: list[list[int]]) -> None:
    least, _ = layer_bytes(story)
    events: list[str] = []
    with LLM(
        story,
        backend="torch",
        device_memory=least + 20_000,
        announce=events.append,
        progress=lambda phase, done, total: events.append(phase),
        **SMALL,
    ) as llm:
        assert [each.token_ids for each in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.split is not None
        assert llm.split.layers == (1,)
        assert llm.notes[0] == events[0] == str(llm.split)
        assert events[0].startswith("device split: 1 of 2 layers (1 to 1) on torch (")
        assert "; expected: at most " in events[0]
        read = llm.split.device_map.read_bytes
        assert llm.split.max_tokens_per_second == pytest.approx(1 / (read[0] / RATES[0] + read[1] / RATES[1]))
        assert "load" in events[1:]
        assert llm.backend.name == "torch+cpu"
        assert llm.model_bytes == sum(llm.split.weight_bytes)
        cached = page_bytes_by_part(
            llm.loaded_engine.decoder_worker.runner.model.memory(), llm.backend, KV_TYPES[llm.kv]
        )
        assert llm.split.weight_bytes[DEVICE] + llm.engine.limits.num_pages * cached[DEVICE] <= least + 20_000
        assert llm.kv_bytes == llm.engine.limits.num_pages * sum(cached)


def test_a_device_with_room_holds_the_whole_model(story: Path) -> None:
    open_available("torch").close()
    with LLM(story, backend="torch", device_memory="1G", **SMALL) as llm:
        assert llm.split is None
        assert llm.backend.name == "torch"
        assert llm.kv_bytes + llm.model_bytes <= 10**9


def test_a_model_that_does_not_fit_is_split_by_itself(
    story: Path, expected: list[list[int]], own_memory: Callable[[int], None]
) -> None:
    least, nbytes = layer_bytes(story)
    own_memory(nbytes - 1)
    with pytest.raises(MemoryShortage, match=r"leave out the option strict, and the model is split"):
        LLM(story, backend="torch", strict=True, **SMALL)
    own_memory(2 * least + 40_000)  # half of the free memory is used
    with LLM(story, backend="torch", **SMALL) as llm:
        assert [each.token_ids for each in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.split is not None
        assert llm.split.layers == (1,)
        assert any(note.startswith("device split: 1 of 2 layers") for note in llm.notes)
    own_memory(1)
    with LLM(story, backend="torch", **SMALL) as llm:
        assert [each.token_ids for each in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.split is not None
        assert llm.split.layers == ()
    own_memory(1 << 40)
    with LLM(story, backend="torch", **SMALL) as llm:
        assert llm.split is None


def test_shorter_steps_go_before_a_split(
    story: Path, own_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sporelm.backends.torch import TorchBackend

    _, nbytes = layer_bytes(story)
    use_device = TorchBackend.use_device

    def use_long_steps(backend: TorchBackend, device: Any) -> None:
        use_device(backend, device)
        backend.step_buckets = {"any": 8192}

    monkeypatch.setattr(TorchBackend, "use_device", use_long_steps)
    own_memory(nbytes + 30_000_000)
    with LLM(story, backend="torch", **SMALL) as llm:
        assert llm.split is None
        assert llm.engine.limits.token_budget == 512
        assert "steps have 512 tokens at most: the device does not hold the model beside 8192" in llm.notes
    own_memory(nbytes + 300_000_000)
    with LLM(story, backend="torch", **SMALL) as llm:
        assert llm.engine.limits.token_budget == 8192
        assert not llm.notes


def test_a_draft_model_lies_on_one_part(story: Path, expected: list[list[int]]) -> None:
    least, _ = layer_bytes(story)
    for size in (least + 20_000, 4 * least):
        with LLM(story, backend="torch", device_memory=size, draft_model=story, speculate="draft", **SMALL) as llm:
            assert [each.token_ids for each in llm.generate(PROMPTS, PARAMS)] == expected
            assert llm.split is not None
            assert llm.loaded_engine.draft is not None
            places = set(llm.loaded_engine.draft.device.page_parts)  # type: ignore[attr-defined]
            assert len(places) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backend": "torch", "device_memory": "1M"},
            r"device_memory: too small for one layer.* \(got 1\.0 MB; allowed",
        ),
        ({"backend": "torch", "device_memory": "900T"}, r"device_memory: more than is free on torch \(got"),
        ({"backend": "torch", "device_memory": "lots"}, r"the option device_memory is 'lots': give bytes, or a size"),
        ({"backend": "torch", "device_memory": 0}, r"the option device_memory is 0: give bytes"),
        ({"backend": "torch", "device_memory": True}, r"the option device_memory is True: give bytes"),
        ({"backend": "cpu", "device_memory": "1G"}, r"device_memory: needs a device beside the CPU \(got the back-end"),
        ({"backend": "cpu", "experts_on": "cpu"}, r"experts_on: needs a device beside the CPU"),
        ({"backend": "torch", "experts_on": "cpu"}, r"experts_on: .* has no experts \(got 'cpu'\)\. Leave it out"),
        ({"backend": "torch", "experts_on": "cuda"}, r"experts_on is 'cuda': it must be 'cpu', or None"),
    ],
    ids=str,
)
def test_options_that_cannot_be_met(options: dict[str, Any], message: str, story: Path) -> None:
    open_available("torch").close()
    with pytest.raises((RequestError, MemoryShortage), match=message):
        LLM(story, **options, **SMALL)


def test_automatic_choice_with_a_split_wants_a_device(story: Path) -> None:
    if list_torch_devices():
        pytest.skip("a device is here")
    with pytest.raises(Exception, match="finds no device"):
        LLM(story, backend="auto", device_memory="1M", **SMALL)


def test_the_command_line_shows_the_split(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least, _ = layer_bytes(story)
    size = str(least + 20_000)
    words = ["--backend", "torch", "--device-memory", size, "--threads", "1"]
    assert main(["run", str(story), "-p", "Once", "-n", "2", "--temp", "0", "--max-context", "128", *words]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("spore: device split: 1 of 2 layers (1 to 1) on torch") for line in lines) == 1
    assert not main(["info", str(story), "--context", "128", "--no-speed", "--json", *words])
    split = json.loads(capsys.readouterr().out)["split"]
    assert (split["device_layers"], split["host_layers"], split["output"]) == ([1], [0], "cpu")
    assert not main(["info", str(story), "--context", "128", "--no-speed", *words])
    assert "1 of 2 layers (1 to 1) on torch" in " ".join(capsys.readouterr().out.split())
    assert main(["run", str(story), "-p", "Once", "--backend", "torch", "--device-memory", "much"]) == 2
    assert "--device-memory is 'much': give bytes" in capsys.readouterr().err


def test_an_experts_weight_is_known_by_its_name() -> None:
    assert Param("layers.0.ffn_gate_exps.weight", (2, 3, 4)).is_experts
    assert not Param("layers.0.ffn_gate_shexp.weight", (3, 4)).is_experts
