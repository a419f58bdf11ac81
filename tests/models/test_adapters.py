"""Steps with adapters: as if they were merged into the weights, and for others as if there were none."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import open_available
from close import assert_close
from families import CASES, write_case
from lora_files import merged, random_pairs, write_peft
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.checkpoints.lora import make_target_model, read_adapter
from sporelm.engine import LoadedModel, Worker
from sporelm.engine.lora_runtime import LoraMatrices
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import BackendError
from sporelm.models import build
from sporelm.quant import F32, Q4_1, QuantFormat
from sporelm.tensor.dtype import F32 as KV
from tiny_files import write_folder, write_gguf
from tiny_models import TINY, WIDE, Tiny

IDS = [1, 80, 17, 33, 5, 99, 42]
ALPHA = 6.0


@pytest.fixture(scope="module")
def cpu() -> Iterator[Any]:
    backend = open_available("cpu", threads=2)
    yield backend
    backend.close()


class Steps:
    """A worker, and adapters that are loaded by number."""

    def __init__(self, path: Path, backend: Any, *, eager: bool = False) -> None:
        source = open_model(path)
        model = build(source.config)
        weights = load_parameters(source, model.params(), backend)
        source.close()
        tables = {name: backend.tensor(table) for name, table in model.tables(256).items()}
        self.base = make_target_model(model.params(), source.config)
        self.worker = Worker(LoadedModel(model, weights | tables), backend, kv=KV, eager=eager)
        self.backend = backend

    def use(self, adapters: dict[int, Path]) -> None:
        made = {}
        for number, path in adapters.items():
            parts = read_adapter(path, self.base).parts
            made[number] = {name: LoraMatrices(*map(self.backend.tensor, part)) for name, part in parts.items()}
        self.worker.set_lora_runtime(self.worker.build_lora_runtime(made) if made else None)

    def logits(self, *adapters: int, ids: list[int] = IDS) -> np.ndarray:
        """float32 [adapters, ids, vocab]: a sequence of these ids with each adapter, in one step."""
        parts = [ScheduledSequence(number, ids, 0, (number,), len(ids), each) for number, each in enumerate(adapters)]
        return self.worker.run(Step(parts, [])).logits.reshape(len(adapters), len(ids), -1).copy()

    def close(self) -> None:
        self.worker.close()


@pytest.fixture
def steps() -> Iterator[Callable[..., Steps]]:
    """Makes workers, and closes them."""
    made: list[Steps] = []

    def make(path: Path, backend: Any, **options: Any) -> Steps:
        made.append(Steps(path, backend, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "tiny", [pytest.param(tiny, id=tiny.name, marks=[] if tiny is TINY[2] else [pytest.mark.all]) for tiny in TINY]
)
def test_an_adapter_is_as_if_it_were_merged(
    backend: Any, tiny: Tiny, steps: Callable[..., Steps], tmp_path: Path
) -> None:
    """In float32; of every architecture, with biases, windows and tied embeddings."""
    pairs = random_pairs(tiny, 3)
    adapter = write_peft(tmp_path / "adapter", pairs, ALPHA)
    plain = steps(write_folder(tmp_path / "plain", tiny), backend)
    whole = steps(write_folder(tmp_path / "merged", tiny, merged(tiny, pairs, ALPHA / 3)), backend)
    ids = [token % tiny.config["vocab_size"] for token in IDS]
    before = plain.logits(0, ids=ids)
    plain.use({5: adapter})
    found = plain.logits(5, ids=ids)
    assert np.abs(found - before).max() > 0.5
    np.testing.assert_allclose(found, whole.logits(0, ids=ids), atol=1e-4, rtol=0)


def several(tmp_path: Path) -> dict[int, Path]:
    """Three adapters: of all matrices, of queries and values, and of one layer's gate, each of another rank."""
    sets = {
        4: random_pairs(WIDE, 5, seed=1),
        7: random_pairs(WIDE, 8, ("q_proj", "v_proj"), seed=2),
        9: random_pairs(WIDE, 2, ("layers.1.mlp.gate_proj",), seed=3),
    }
    return {number: write_peft(tmp_path / str(number), pairs, ALPHA) for number, pairs in sets.items()}


@pytest.mark.parametrize("number_format", [Q4_1, pytest.param(F32, marks=pytest.mark.all)], ids=lambda form: form.name)
def test_rows_do_not_feel_their_neighbours_adapters(
    cpu: Any, number_format: type[QuantFormat], steps: Callable[..., Steps], tmp_path: Path
) -> None:
    """Bit for bit: without an adapter as in the plan that knows of none, whose products are fused otherwise; with one
    as alone."""
    path = write_gguf(tmp_path / "model.gguf", WIDE, matrices=number_format)
    planned, eager = steps(path, cpu), steps(path, cpu, eager=True)
    plain = planned.logits(0)
    for each in (planned, eager):
        each.use(several(tmp_path))
    alone = {number: planned.logits(number)[0] for number in (4, 7, 9)} | {0: plain[0]}
    assert len({row.tobytes() for row in alone.values()}) == 4
    together = (0, 7, 4, 0, 9, 4)
    for each in (planned, eager):
        for number, row in zip(together, each.logits(*together), strict=True):
            assert_close(row, alone[number], "exact")
    for ids in ([1], IDS * 8):  # one token, and many
        assert_close(planned.logits(4, ids=ids)[0, :1], alone[4][:1], "exact")
        assert_close(planned.logits(0, 4, ids=ids)[0, :1], alone[0][:1], "exact")


def test_adapters_come_and_go(cpu: Any, steps: Callable[..., Steps], tmp_path: Path) -> None:
    made = steps(write_folder(tmp_path / "model", WIDE), cpu)
    paths, plain = several(tmp_path), made.logits(0)
    with pytest.raises(BackendError, match="adapter 4, which is not loaded"):
        made.logits(0, 4)
    made.use({4: paths[4]})
    four = made.logits(4)
    made.use({9: paths[9], 4: paths[4]})
    assert_close(made.logits(9, 4)[1:], four, "exact")
    with pytest.raises(BackendError, match="adapter 7, which is not loaded"):
        made.logits(7)
    made.use({})
    with pytest.raises(BackendError, match="not loaded"):
        made.logits(4)
    assert_close(made.logits(0), plain, "exact")


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_adapters_in_slots_of_a_table_need_no_new_programs(
    name: str, cpu: Any, steps: Callable[..., Steps], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded, used, unloaded, others loaded; mixed in a batch; with the results of the CPU's plans with constants."""
    backend, programs = open_available(name, threads=1), list[Any]()
    make_program = backend.program

    def count(*args: Any) -> Any:
        programs.append(make_program(*args))
        return programs[-1]

    monkeypatch.setattr(backend, "program", count)
    path = write_folder(tmp_path / "model", WIDE)
    made, others, paths = steps(path, backend), steps(path, cpu), several(tmp_path)
    plain = made.logits(0)
    assert len(programs) == 1

    def use(*numbers: int) -> None:
        for each in (made, others):
            each.use({number: paths[number] for number in numbers})

    for numbers in ((4,), (4, 7), (7,), (9, 7), (), (9,), (7, 9, 4)):
        use(*numbers)
        mixed = (0, *numbers, *numbers[:1], 0)
        for ids in (IDS, IDS[:1], IDS * 3):
            expected = others.logits(*mixed, ids=ids)
            assert np.abs(made.logits(*mixed, ids=ids) - expected).max() <= 1e-5 * np.ptp(expected)
        assert len(programs) == 2, f"after {numbers}"
    assert_close(made.logits(0), plain, "exact")
    table = made.worker.runner.adapter_table
    assert table is not None
    assert (table.num_slots, table.rank) == (4, 8)

    paths |= {number: write_peft(tmp_path / str(number), random_pairs(WIDE, number, seed=number), ALPHA)
              for number in (1, 2, 3)}  # fmt: skip
    use(4, 7, 9, 1, 2)
    assert (made.worker.runner.adapter_table.num_slots, made.worker.runner.adapter_table.rank) == (8, 8)
    expected = others.logits(1, 4, 2, 9, 0)
    assert np.abs(made.logits(1, 4, 2, 9, 0) - expected).max() <= 1e-5 * np.ptp(expected)
    paths[5] = write_peft(tmp_path / "5", random_pairs(WIDE, 9, seed=5), ALPHA)
    use(4, 5)
    assert (made.worker.runner.adapter_table.num_slots, made.worker.runner.adapter_table.rank) == (8, 16)
    expected = others.logits(5, 4, 0)
    assert np.abs(made.logits(5, 4, 0) - expected).max() <= 1e-5 * np.ptp(expected)
    assert len(programs) == 4
    discarded = made.worker.build_lora_runtime({})
    made.worker.discard_lora_runtime(discarded)
    expected = others.logits(5, 4)
    assert np.abs(made.logits(5, 4) - expected).max() <= 1e-5 * np.ptp(expected)
    assert len(programs) == 4
    made.close()
    assert backend.context.close() == []


def test_what_is_embedded_has_its_adapter_too(cpu: Any, steps: Callable[..., Steps], tmp_path: Path) -> None:
    made = steps(write_folder(tmp_path / "model", WIDE), cpu)
    made.use(several(tmp_path))
    rows = [made.worker.embed(Step([ScheduledSequence(0, IDS, 0, (0,), 1, number)], [])).copy() for number in (0, 4, 4)]
    assert not np.array_equal(rows[0], rows[1])
    assert_close(rows[1], rows[2], "exact")


def test_a_step_with_adapters_is_plain_data() -> None:
    step = Step([ScheduledSequence(1, [5], 0, (0,), 1, 4), ScheduledSequence(2, [6], 0, (1,), 1)], [])
    assert Step.from_json(step.to_json()) == step
    old = step.to_json()
    for part in old["parts"]:
        del part["adapter"]
    assert [scheduled.adapter_id for scheduled in Step.from_json(old).sequences] == [0, 0]


# Families whose files hold several matrices in one tensor, and the end of its name.
JOINED = {
    "qwen35": "q_proj",  # with its gate
    "qwen3next": "in_proj_qkvz",
    "mamba2": "in_proj",
    "mamba": "x_proj",
    "falcon-h1": "mamba.in_proj",
    "lfm2": "conv.in_proj",
    "mpt": "Wqkv",
    "gptneox": "query_key_value",  # head by head
    "internlm2": "wqkv",  # group by group
    "gpt2": "c_attn",  # turned about
    "phi3": "gate_up_proj",
    "granitemoe-shared": "shared_mlp.input_linear",
}
MORE = {"qwen35": ("linear_attn.out_proj", "in_proj_qkv"), "gpt2": ("mlp.c_fc",)}  # in another order; turned about


ALWAYS = ("qwen35", "mamba2", "gptneox", "gpt2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.all]) for name in JOINED]
)
def test_an_adapter_of_joined_matrices_is_as_if_it_were_merged(
    cpu: Any, name: str, steps: Callable[..., Steps], tmp_path: Path
) -> None:
    """In float32: what files hold in one tensor has one A, and each of ours its rows of B."""
    case = next(case for case in CASES if case.name == name)
    whole, turned = case.tensors(), {}
    ends = (JOINED[name], *MORE.get(name, ()))
    places = [write_case(tmp_path / place, case) for place in ("plain", "merged")]
    for tensor, weight in whole.items():  # as PEFT has them: [out, in], whichever way they lie
        if tensor.removesuffix(".weight").endswith(ends):
            turned[tensor] = weight.T if "c_" in tensor else weight
    model: Any = SimpleNamespace(weights=lambda: turned)
    pairs = random_pairs(model, 3, ends)
    sums = {name: sum.T if "c_" in name else sum for name, sum in merged(model, pairs, ALPHA / 3).items()}
    assert {end for end in ends if any(name.removesuffix(".weight").endswith(end) for name in sums)} == set(ends)
    sums = {name: np.ascontiguousarray(array) for name, array in (whole | sums).items()}
    save_file(sums, places[1] / "model.safetensors", metadata={"format": "pt"})
    plain, changed = (steps(place, cpu) for place in places)
    before, expected = plain.logits(0), changed.logits(0)
    plain.use({5: write_peft(tmp_path / "adapter", pairs, ALPHA)})
    found = plain.logits(5)
    assert np.abs(found - before).max() > 0.01 * np.ptp(expected)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.ptp(expected), rtol=0)


BOTH_NAMES = {
    "ling3": (("attention.dense", "self_attn.o_proj"), ("attention.f_proj", "self_attn.forget_gate.f_proj")),
    "axk2": (("q_b_proj", "q_gate_proj"), ("W_up", "mlp.fc2")),
    "kimi-linear": (("f_b_proj", "forget_gate.f_b_proj"), ("block_sparse_moe.shared_experts", "mlp.shared_experts")),
    "nemotron-h": (("backbone.layers", "model.layers"),),
    "laguna": (("shared_expert.", "shared_experts."),),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "ling3" else [pytest.mark.all]) for name in BOTH_NAMES]
)
def test_an_adapter_by_the_names_of_modules_is_that_by_the_names_of_tensors(
    cpu: Any, name: str, steps: Callable[..., Steps], tmp_path: Path
) -> None:
    """Bit for bit."""
    case = next(case for case in CASES if case.name == name)
    made = steps(write_case(tmp_path / "model", case), cpu)
    known = {f"{each}.weight": np.empty((one.out, one.width)) for each, one in made.base.stored_matrices("hf").items()}
    model: Any = SimpleNamespace(weights=lambda: known)
    pairs, renamed = random_pairs(model, 3, ("",)), {}
    for tensor, pair in pairs.items():
        for stored, module in BOTH_NAMES[name]:
            tensor = tensor.replace(stored, module)
        renamed[tensor] = pair
    assert len(renamed) == len(pairs)
    assert renamed.keys() != pairs.keys()
    before = made.logits(0)
    made.use({1: write_peft(tmp_path / "a", pairs, ALPHA), 2: write_peft(tmp_path / "b", renamed, ALPHA)})
    one, other = made.logits(1), made.logits(2)
    assert np.abs(one - before).max() > 0.01 * np.ptp(before)
    assert_close(other, one, "exact")
