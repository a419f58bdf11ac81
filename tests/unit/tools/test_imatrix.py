"""Importance matrices: llama.cpp's files byte for byte, sums by hand, what a model gathers against llama-imatrix."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imatrix_models as models
from sporelm.backends.protocol import Backend
from sporelm.errors import ModelFileError, ModelNotFound, RequestError, SporeError
from sporelm.files.gguf import GgufWriter
from sporelm.ops import ALL
from sporelm.quant import Q8_0
from sporelm.tools.imatrix import ImatrixCollector, ImatrixOptions, collect_imatrix
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry, merge_imatrices, read_imatrix, write_imatrix

DATA = Path(__file__).parents[2] / "data"
NEW, OLD = DATA / "imatrix_golden_new.bin", DATA / "imatrix_golden_old.bin"
RUN = ImatrixOptions(context=models.CONTEXT, threads=1)


def make_entry(sums: object, counts: object) -> ImatrixEntry:
    return ImatrixEntry(np.atleast_2d(np.array(sums, np.float32)), np.array(counts, np.int64))


def stack() -> Imatrix:
    """One weight that every row uses, and a stack of three experts, one of them unused."""
    experts = make_entry([[4, 8], [0, 0], [3, 9]], [2, 0, 3])
    return Imatrix({"b.weight": make_entry([10, 20, 30], [5]), "a_exps.weight": experts}, ("t.txt",), 1, 4)


def test_files_are_those_of_llama_imatrix(tmp_path: Path) -> None:
    found = read_imatrix(NEW)
    assert (found.chunks, found.chunk_size, found.datasets) == (5, models.CONTEXT, (models.DATASET,))
    write_imatrix(tmp_path / "again.gguf", found)
    assert (tmp_path / "again.gguf").read_bytes() == NEW.read_bytes()
    write_imatrix(tmp_path / "again.dat", found)
    assert (tmp_path / "again.dat").read_bytes() == OLD.read_bytes()
    write_imatrix(tmp_path / "named otherwise", found, form="dat")
    assert (tmp_path / "named otherwise").read_bytes() == OLD.read_bytes()


def test_both_forms_say_the_same() -> None:
    new, old = read_imatrix(NEW), read_imatrix(OLD)
    assert (old.is_legacy, old.chunks, old.datasets) == (True, 5, (models.DATASET,))
    assert old.entries.keys() == new.entries.keys()
    for name, found in new.entries.items():
        shape = (1, found.sums.size)
        np.testing.assert_allclose(old.importance(name, shape), new.importance(name, shape), rtol=1e-6)


def test_a_model_gathers_what_llama_imatrix_does(tmp_path: Path) -> None:
    model = models.write(tmp_path / "m.gguf")
    *_, (found, total) = collect_imatrix(model, models.TEXT, models.DATASET, RUN)
    expected = read_imatrix(NEW)
    assert (found.chunks, total, found.datasets) == (5, 5, (models.DATASET,))
    assert found.entries.keys() == expected.entries.keys()
    for name, gathered in found.entries.items():
        assert np.array_equal(gathered.counts, expected.entries[name].counts)
        np.testing.assert_allclose(gathered.sums, expected.entries[name].sums, rtol=5e-3)  # the KV cache is f16
        assert np.corrcoef(gathered.sums, expected.entries[name].sums)[0, 1] > 0.99999


@pytest.mark.parametrize("backend", ["reference", pytest.param("torch", marks=pytest.mark.all)])
def test_other_back_ends_gather_the_same(tmp_path: Path, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    model, few = models.write(tmp_path / "m.gguf"), ImatrixOptions(models.CONTEXT, 1, backend=backend)
    ((found, _),) = collect_imatrix(model, models.TEXT, "t", few)
    ((expected, _),) = collect_imatrix(model, models.TEXT, "t", ImatrixOptions(models.CONTEXT, 1, threads=1))
    for name, gathered in found.entries.items():
        np.testing.assert_allclose(gathered.sums, expected.entries[name].sums, rtol=5e-3)


def test_going_on_is_as_if_never_stopped(tmp_path: Path) -> None:
    model, place = models.write(tmp_path / "m.gguf"), tmp_path / "i.gguf"
    steps = collect_imatrix(model, models.TEXT, "t", RUN)
    _, (found, total) = next(steps), next(steps)
    steps.close()
    write_imatrix(place, found)
    rest = list(collect_imatrix(model, models.TEXT, "t", RUN, before=read_imatrix(place)))
    assert [(each.chunks, each.datasets, count) for each, count in rest] == [(n, ("t",), total) for n in (3, 4, 5)]
    *_, (whole, _) = collect_imatrix(model, models.TEXT, "t", RUN)
    for name, gathered in rest[-1][0].entries.items():
        assert np.array_equal(gathered.counts, whole.entries[name].counts)
        np.testing.assert_allclose(gathered.sums, whole.entries[name].sums, rtol=1e-6)
    with pytest.raises(RequestError, match="all 5 chunks of 't' were computed already"):
        list(collect_imatrix(model, models.TEXT, "t", RUN, before=rest[-1][0]))
    with pytest.raises(RequestError, match="computed from 't', not from 'u'"):
        list(collect_imatrix(model, models.TEXT, "u", RUN, before=rest[-1][0]))
    with pytest.raises(RequestError, match="chunks of 64 tokens, not of 32"):
        list(collect_imatrix(model, models.TEXT, "t", ImatrixOptions(context=32), before=rest[-1][0]))
    for other in (
        {"blk.0.attn_q.weight": make_entry([1, 2], [2])},
        {"blk.9.attn_q.weight": make_entry(np.ones(96), [2])},
    ):
        with pytest.raises(RequestError, match=r"another model: its sums for 'blk\..\.attn_q\.weight'"):
            list(collect_imatrix(model, models.TEXT, "t", RUN, before=Imatrix(other, ("t",), 1, models.CONTEXT)))


def test_the_output_counts_when_asked(tmp_path: Path) -> None:
    model = models.write(tmp_path / "m.gguf")
    ((found, _),) = collect_imatrix(model, models.TEXT, "t", ImatrixOptions(models.CONTEXT, 1, outputs=True, threads=1))
    assert found.entries["output.weight"].counts.tolist() == [models.CONTEXT]
    assert "token_embd.weight" not in found.entries


def test_weights_that_are_not_numbers(tmp_path: Path) -> None:
    broken = {"blk.0.attn_norm.weight": np.full(96, 3e38, np.float32)}
    with pytest.raises(ModelFileError, match=r"not finite before 'blk\.0\.attn_"), np.errstate(all="ignore"):
        list(collect_imatrix(models.write(tmp_path / "m.gguf", change=broken), models.TEXT, "t", RUN))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (ImatrixOptions(context=0), "--context is 0"),
        (ImatrixOptions(chunks=0), "--chunks is 0"),
        (ImatrixOptions(context=4096), "^--context is 4096: this model"),
        (ImatrixOptions(context=64), "too few"),
    ],
)
def test_runs_that_cannot_be(tmp_path: Path, run: ImatrixOptions, reason: str) -> None:
    model = models.write(tmp_path / "m.gguf", matrices=Q8_0)
    with pytest.raises(SporeError, match=reason):
        list(collect_imatrix(model, "short", "t", run))


class TestGatherer:
    def test_experts_have_sums_of_their_own(self) -> None:
        random, gatherer = np.random.default_rng(3), ImatrixCollector()
        x = random.standard_normal((7, 5)).astype(np.float32)
        each = random.standard_normal((7, 2, 5)).astype(np.float32)
        experts = np.array([[0, 2], [2, 1], [0, 1], [2, 0], [0, 2], [1, 0], [0, 1]], np.int32)
        gatherer.add_experts("up", x, experts, 4)
        gatherer.add_experts("down", each, experts, 4)
        expected = {"up": np.zeros((4, 5)), "down": np.zeros((4, 5))}
        for token in range(7):
            for place in range(2):
                expected["up"][experts[token, place]] += x[token].astype(np.float64) ** 2
                expected["down"][experts[token, place]] += each[token, place].astype(np.float64) ** 2
        for name, sums in expected.items():
            found = gatherer.entries()[name]
            np.testing.assert_allclose(found.sums, sums, rtol=1e-6)
            assert found.counts.tolist() == [6, 4, 4, 0]
            assert found.num_unseen == 1

    def test_products_of_experts_say_which(self) -> None:
        gatherer, ids = ImatrixCollector(), Stub(np.array([[0, 2], [2, 1]], np.int32))
        x, each = Stub(np.full((2, 3), 2.0, np.float32)), Stub(np.full((2, 2, 3), 3.0, np.float32))
        stacks = {name: Stub(np.zeros((4, 5, 3), np.float32)) for name in ("gate", "up", "down")}
        gatherer.names = {id(stack): name for name, stack in stacks.items()}
        gatherer(ALL["linear_experts_silu_mul"], (x, stacks["gate"], stacks["up"], ids))
        gatherer(ALL["linear_experts"], (each, stacks["down"], ids, Stub(np.zeros((4, 5), np.float32))))
        for name, square in (("gate", 4.0), ("up", 4.0), ("down", 9.0)):
            found = gatherer.entries()[name]
            assert found.counts.tolist() == [1, 1, 2, 0]
            assert found.sums.tolist() == [[square * count] * 3 for count in (1, 1, 2, 0)]

    def test_groups_and_gates_are_products_too(self) -> None:
        gatherer = ImatrixCollector()
        arrays = {name: Stub(np.full((2, 3), 2.0, np.float32)) for name in ("x", "a", "b", "stranger")}
        gatherer.names = {id(arrays["a"]): "a", id(arrays["b"]): "b"}
        weights = (arrays["a"], arrays["b"], arrays["stranger"])
        gatherer(ALL["linear_group"], (arrays["x"], weights))
        gatherer(ALL["linear_silu_mul"], (arrays["x"], arrays["a"], arrays["b"]))
        gatherer(ALL["silu_mul"], (arrays["x"], arrays["a"]))
        for found in gatherer.entries().values():
            assert (found.sums.tolist(), found.counts.tolist()) == ([[16.0] * 3], [4])
        assert gatherer.entries().keys() == {"a", "b"}

    def test_columns_are_those_of_the_file(self) -> None:
        gatherer, order = ImatrixCollector(), np.array([2, 0, 1], np.int32)
        x, weight = np.array([[1, 2, 3]], np.float32), Stub(np.ones((2, 3), np.float32))
        weights = {"blk.0.attn_q.weight": weight, "blk.0.attn_q.order": Stub(order)}
        gatherer.register(weights, outputs=False, stored_name=lambda name: name)
        gatherer(ALL["linear"], (Stub(x[:, order]), weight))
        assert gatherer.entries()["blk.0.attn_q.weight"].sums.tolist() == [[1.0, 4.0, 9.0]]


class Stub:
    """Something with values, as a tensor has."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape

    def numpy(self) -> np.ndarray:
        return self.values


def test_importance_is_the_mean_square() -> None:
    found = stack()
    assert found.importance("none", (2, 3)) is None
    means = found.importance("b.weight", (7, 3))
    assert means is not None
    assert (means.dtype, means.tolist()) == (np.float32, [2.0, 4.0, 6.0])
    experts = found.importance("a_exps.weight", (3, 7, 2))
    assert experts is not None
    assert experts.tolist() == [[2.0, 4.0], [1.0, 1.0], [1.0, 3.0]], "an expert that met nothing counts alike"
    for shape in ((7, 4), (3, 7, 3)):
        with pytest.raises(RequestError, match="made for another model"):
            found.importance("b.weight", shape)


def test_merging_adds_up(tmp_path: Path) -> None:
    one, two = (
        stack(),
        Imatrix({"b.weight": make_entry([1, 1, 1], [3]), "c.weight": make_entry([1], [1])}, ("u.txt",), 1, 4),
    )
    found = merge_imatrices([one, two])
    assert found.entries["b.weight"].sums.tolist() == [[11.0, 21.0, 31.0]]
    assert found.entries["b.weight"].counts.tolist() == [8]
    assert set(found.entries) == {"a_exps.weight", "b.weight", "c.weight"}
    assert (found.chunks, found.chunk_size, found.datasets) == (2, 4, ("t.txt", "u.txt"))
    write_imatrix(tmp_path / "old.dat", one)
    twice = merge_imatrices(
        [one, read_imatrix(tmp_path / "old.dat")]
    )  # the older form only knows calls of a fixed number of rows
    assert twice.entries["b.weight"].counts.tolist() == [5 + 2 * 512]
    with pytest.raises(RequestError, match="of different models"):
        merge_imatrices([one, Imatrix({"b.weight": make_entry([1], [1])})])
    with pytest.raises(RequestError, match="nothing to merge"):
        merge_imatrices([])
    with pytest.raises(RequestError, match="nothing to write"):
        write_imatrix(tmp_path / "none.gguf", Imatrix({}))


def test_experts_that_met_nothing_are_ones_in_the_older_form(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.dat", stack())
    found = read_imatrix(tmp_path / "i.dat")
    assert found.entries["a_exps.weight"].sums.tolist() == [[2.0, 4.0, 1.0, 1.0, 1.0, 3.0]]  # one call
    assert found.entries["b.weight"].sums.tolist() == [[4.0, 8.0, 12.0]]  # the mean, times two calls
    write_imatrix(tmp_path / "i.gguf", stack())
    assert read_imatrix(tmp_path / "i.gguf").entries["a_exps.weight"].counts.tolist() == [2, 0, 3]


FOUR, ONE = np.ones(4, np.float32), np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "holds no sums"),
        ({"blk.0": FOUR}, "it has a tensor 'blk.0'"),
        ({"a.counts": ONE}, "it has a tensor 'a.counts'"),
        ({"a.in_sum2": FOUR}, "the counts for 'a' are missing"),
        ({"a.in_sum2": FOUR, "a.counts": np.ones(3, np.float32)}, "do not fit its 4 sums"),
        ({"a.in_sum2": FOUR, "a.counts": -ONE}, "do not fit"),
        ({"a.in_sum2": FOUR, "a.counts": ONE * np.float32(np.nan)}, "do not fit"),
        ({"a.in_sum2": FOUR * np.float32(np.inf), "a.counts": ONE}, "must be finite"),
        ({"a.in_sum2": -FOUR, "a.counts": ONE}, "must be finite and not negative"),
        ({"a.in_sum2": FOUR.astype(np.float16), "a.counts": ONE}, "must be F32, it is F16"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_other_files_are_not_an_importance_matrix(tmp_path: Path, tensors: dict, reason: str) -> None:
    writer = GgufWriter(tmp_path / "t.gguf")
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write()
    with pytest.raises(ModelFileError, match=reason):
        read_imatrix(tmp_path / "t.gguf")


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no importance matrix at all")
    with pytest.raises(ModelFileError, match="begins with a count of"):
        read_imatrix(tmp_path / "text")
    with pytest.raises(ModelNotFound):
        read_imatrix(tmp_path / "none")


@pytest.mark.parametrize("golden", [NEW, OLD], ids=["gguf", "dat"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(1, 9000), place=st.integers(0, 9000), value=st.integers(0, 255))
def test_damaged_files_end_with_one_line(tmp_path: Path, golden: Path, cut: int, place: int, value: int) -> None:
    data = bytearray(golden.read_bytes()[:cut])
    data[place % len(data)] = value
    (tmp_path / "damaged").write_bytes(data)
    reason = ""
    try:
        assert read_imatrix(tmp_path / "damaged").entries
    except SporeError as error:
        reason = str(error)
    assert "\n" not in reason


def test_a_watched_back_end_is_the_back_end() -> None:
    from sporelm import ops
    from sporelm.backends.observed_backend import observe_ops
    from sporelm.backends.reference import ReferenceBackend

    seen: list[str] = []
    inner = ReferenceBackend()
    backend: Backend = observe_ops(inner, lambda op, args: seen.append(op.name))
    x = backend.tensor(np.ones((2, 4), np.float32))
    y = ops.add(x, ops.add(x, x))
    assert y.device is backend
    assert y.numpy().tolist() == [[3.0] * 4] * 2
    assert seen == ["add", "add"]
    assert (backend.name, backend.missing_kernels()) == (inner.name, inner.missing_kernels())
    backend.close()
