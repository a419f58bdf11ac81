"""The Ascend back-end, with torch_npu's operators as its documentation describes them, on the CPU."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from conformance.padded_decoder import BUCKETS, DUMP_PAGE, PAGES_EACH  # noqa: E402
from conformance.padded_steps import pad_step, padded_specs  # noqa: E402
from conformance.tiny_decoder import STEPS, Steps, TinyDecoder, extents_of, specs  # noqa: E402
from sporelm import ops  # noqa: E402
from sporelm.backends.backend_registry import open_backend  # noqa: E402
from sporelm.backends.protocol import Missing, Ready  # noqa: E402
from sporelm.backends.torch import TorchBackend  # noqa: E402
from sporelm.backends.torch.step_context import STEP  # noqa: E402
from sporelm.backends.vendor import vendor_backend  # noqa: E402
from sporelm.backends.vendor.ascend import TABLE, AclGraphDevice, AclGraphProgram, AscendBackend  # noqa: E402
from sporelm.backends.vendor.vendor_backend import Operator, clear_fallbacks, count_fallbacks  # noqa: E402
from sporelm.evals.conformance.all_cases import CASES  # noqa: E402
from sporelm.evals.conformance.check import check_case, is_within_types  # noqa: E402
from sporelm.evals.conformance.conformance_case import Case, On  # noqa: E402
from sporelm.ops import trace  # noqa: E402
from sporelm.plan import Plan  # noqa: E402
from sporelm.tensor.dtype import F16  # noqa: E402
from unit.backends.vendor import emulated_npu  # noqa: E402

NAMED = {"attention": "window", "latent_attention": "512+64 from 192 f16", "store_latent": "512+64 from 192 f16"}
LINEAR_FORMATS = ("F16", "Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "Q4_1", "Q6_K")


@pytest.fixture(scope="module", autouse=True)
def _operators() -> None:
    emulated_npu.install()


@pytest.fixture(scope="module", params=["f16", "bf16"], name="ascend")
def _ascend(request: pytest.FixtureRequest) -> Iterator[Any]:
    backend = emulated_npu.EmulatedAscend(dtype=request.param, weights="packed")
    assert isinstance(backend.probe(), Ready)
    yield backend
    backend.close()


def list_cases() -> list[Any]:
    """Return the cases of fused ops, without --all a few of each op, and of products with quantized weights."""
    chosen, seen = [], dict.fromkeys(TABLE.by_op, 0)
    for case in CASES:
        is_linear = case.op == "linear" and any(f" {name} " in f"{case} " for name in LINEAR_FORMATS)
        if case.op not in seen and not is_linear:
            continue
        few = seen.get(case.op, 0) < 12 or NAMED.get(case.op, "\n") in case.name
        seen[case.op] = seen.get(case.op, 0) + 1
        if seen[case.op] > 200:
            continue
        chosen.append(pytest.param(case, id=str(case), marks=[] if few and not case.rare else [pytest.mark.all]))
    return chosen


@pytest.mark.parametrize("case", list_cases())
def test_agrees_with_the_reference(ascend: Any, reference: Any, case: Case) -> None:
    if not is_within_types(case, ascend):
        pytest.skip("its weights or inputs are beyond the range of the type")
    row = check_case("ascend", case, ascend, reference)
    assert row["state"] == "equal", row


@pytest.fixture(scope="module", name="reference")
def _reference() -> Any:
    return open_backend("reference")


def decoder_of(backend: Any, padded: bool) -> TinyDecoder:
    """Return the tiny decoder with a cache of float16, and one more page for padded rows."""
    backend.traits = replace(backend.traits, input_buckets=BUCKETS if padded else None)
    decoder = TinyDecoder(On(backend, "F16"), "F16")
    backend.free_pages([decoder.cache])
    kept = decoder.cache.shape[2], decoder.cache.shape[4]
    decoder.cache = backend.allocate_pages(DUMP_PAGE + 1, [kept], F16)[0]
    return decoder


def upload(backend: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: backend.upload(array) for name, array in arrays.items()}


@pytest.mark.parametrize("padded", [False, True])
def test_steps_have_the_results_of_plain_torch(padded: bool) -> None:
    clear_fallbacks()
    backends = TorchBackend(dtype="f16"), emulated_npu.EmulatedAscend(dtype="f16")
    decoders = [decoder_of(backend, padded and index == 1) for index, backend in enumerate(backends)]
    plans = [
        Plan(trace(decoder.forward, padded_specs(PAGES_EACH) if padded and index else specs()), backends[index])
        for index, decoder in enumerate(decoders)
    ]
    steps = Steps()
    for counts, rows in STEPS:
        exact = steps.step(counts, rows)
        expected = plans[0].run(exact, extents_of(exact))["logits"].copy()
        given: dict[str, Any] = exact
        if padded:
            arrays, _ = pad_step(exact, BUCKETS.row_block, BUCKETS.decodes, BUCKETS.blocks, PAGES_EACH, DUMP_PAGE)
            given = upload(backends[1], arrays)
        found = plans[1].run(given, extents_of(given))["logits"][:rows]
        # Cosines, sines and weights of norms are rounded to float16 as well here.
        difference, scale = np.abs(found - expected), np.abs(expected).max()
        assert difference.max() <= 5e-2 * scale
        assert difference.mean() <= 5e-3 * scale
    assert not [reason for reason in count_fallbacks() if reason.startswith("attention")]
    for backend, decoder, plan in zip(backends, decoders, plans, strict=True):
        plan.close()
        backend.free_pages([decoder.cache])
        backend.close()


def prepare_pages(columns: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return a cache of random f16 numbers, and scattered pages of four sequences."""
    torch.manual_seed(0)
    cache = torch.randn(4 * columns + 1, *shape).half()
    return cache, torch.randperm(4 * columns).int().view(4, columns)


def compare_with_plain(op: Any, args: tuple[Any, ...], starts: Any, lengths: Any, pages: Any, **options: Any) -> None:
    """Check that a fused function has the results of plain torch, and that it did not fall back."""
    clear_fallbacks()
    tokens = int(starts[-1])
    found = TABLE.by_op[op.name].function(*args, starts, lengths, pages, **options)[:tokens]
    assert not count_fallbacks()
    wide = [each.float() if torch.is_floating_point(each) else each for each in args]
    given = (np.asarray(starts), np.asarray(lengths), pages)
    expected = TorchBackend.functions[op.name](*[each[:tokens] for each in wide[:-1]], wide[-1], *given, **options)
    assert (found.float() - expected).abs().max() <= 4e-3 * expected.abs().max()


@pytest.mark.parametrize("window", [1, 30, 64, 65, 200, 1000])
@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (1, 70, 1, 130), (64, 1, 5, 17)])
def test_windows_are_fused(counts: tuple[int, ...], window: int) -> None:
    cache, pages = prepare_pages(5, (2, 2, 64, 16))
    starts = np.cumsum([0, *counts]).astype(np.int32)
    lengths = np.array([70, 300, 129, 256], np.int32)
    q = torch.randn(int(starts[-1]), 4 * 16).half()
    with STEP.begin(1, False):
        compare_with_plain(ops.attention, (q, cache), starts, lengths, pages, scale=0.25, window=window)


@pytest.mark.parametrize("window", [1, 30, 65, 200])
def test_windows_of_padded_decoding_follow_the_lengths_on_the_device(window: int) -> None:
    """A captured graph has one mask for all replays: it is computed from the lengths of each."""
    cache, pages = prepare_pages(5, (2, 2, 64, 16))
    q = torch.randn(4, 4 * 16).half()
    for lengths in ((3, 3, 3, 3), (70, 300, 129, 256)):
        starts, held = (upload_lengths(each) for each in (range(5), lengths))
        with STEP.begin(1, False):
            compare_with_plain(ops.attention, (q, cache), starts, held, pages, scale=0.25, window=window)


@pytest.mark.parametrize("window", [None, 30, 200])
def test_padded_blocks_are_fused(window: int | None) -> None:
    """Two sequences of one row, then two blocks of 32 rows. The second block has 7 real rows."""
    cache, pages = prepare_pages(5, (2, 2, 64, 16))
    q = torch.randn(2 + 2 * 32, 4 * 16).half()
    starts, lengths = upload_lengths((0, 1, 2, 34, 41)), upload_lengths((70, 300, 129, 256))
    with STEP.begin(32, False):
        compare_with_plain(ops.attention, (q, cache), starts, lengths, pages, scale=0.25, window=window)


def upload_lengths(values: Any) -> Any:
    uploaded = torch.tensor(list(values), dtype=torch.int32)
    uploaded.host_values = uploaded.numpy()
    return uploaded


@pytest.mark.parametrize(
    ("heads", "counts"),
    [
        (16, (1, 1, 1, 1)),
        (16, (1, 16, 3, 1)),
        (16, (70, 1, 17, 33)),  # chunks are cut after 16 rows each
        (1, (2, 2, 2, 2)),
        (128, (1, 1, 2, 16)),
        (128, (1, 17, 1, 40)),  # chunks are bands
    ],
)
def test_latent_attention_is_fused(heads: int, counts: tuple[int, ...]) -> None:
    """The shape of DeepSeek's models: latents of 512 numbers and rotated keys of 64, also with odd numbers of pages."""
    cache, pages = prepare_pages(5, (1, 1, 64, 576))
    starts = np.cumsum([0, *counts]).astype(np.int32)
    tokens = int(starts[-1])
    latent, q = torch.randn(tokens, heads * 512).half(), torch.randn(tokens, heads * 192).half()
    lengths = np.array([70, 300, 129, 256], np.int32)
    with STEP.begin(1, False):
        args = latent, q, cache
        compare_with_plain(ops.latent_attention, args, starts, lengths, pages, heads=heads, scale=0.07)


@pytest.mark.parametrize("block", [16, 32])
def test_padded_latent_attention_is_fused(block: int) -> None:
    """Blocks have fewer real rows than others, and pieces of 16 rows may have none."""
    cache, pages = prepare_pages(5, (1, 1, 64, 576))
    latent, q = torch.randn(2 + 2 * block, 4 * 512).half(), torch.randn(2 + 2 * block, 4 * 192).half()
    starts, lengths = upload_lengths((0, 1, 2, 2 + block, 9 + block)), upload_lengths((70, 300, 129, 256))
    with STEP.begin(block, False):
        compare_with_plain(ops.latent_attention, (latent, q, cache), starts, lengths, pages, heads=4, scale=0.07)


@pytest.mark.parametrize(
    ("heads", "rank", "counts", "reason"),
    [
        (3, 512, (1, 1, 1, 1), "3 heads"),
        (4, 256, (1, 1, 1, 1), "latents of 256 numbers with keys of 64"),
    ],
)
def test_latent_attention_beyond_the_limits_is_named(heads: int, rank: int, counts: Any, reason: str) -> None:
    cache, pages = prepare_pages(5, (1, 1, 64, rank + 64))
    starts = np.cumsum([0, *counts]).astype(np.int32)
    tokens = int(starts[-1])
    clear_fallbacks()
    with STEP.begin(1, False):
        TABLE.by_op["latent_attention"].function(
            torch.randn(tokens, heads * rank).half(),
            torch.randn(tokens, heads * 192).half(),
            cache,
            starts,
            np.array([70, 300, 129, 256], np.int32),
            pages,
            heads=heads,
            scale=0.07,
        )
    assert count_fallbacks() == {f"latent_attention: {reason}": 1}


class StandInGraph:
    """Repeats the recorded launches when it was replayed and updated, with the lengths of the update."""

    def __init__(self, work: Callable[[], Any], outputs: dict[str, Any]) -> None:
        self.launches, self.outputs, self.num_replays = work, outputs, 0

    def replay(self) -> None:
        self.num_replays += 1

    def update(self, cpu_update_input: list[dict[str, list[int]]]) -> None:
        lengths = cpu_update_input[0]["actual_seq_lengths_kv"]
        inner = emulated_npu.attention

        def attention(*args: Any, **options: Any) -> Any:
            return inner(*args, **options | {"actual_seq_lengths_kv": lengths})

        emulated_npu.attend_by.append(attention)
        try:
            for name, found in self.launches().items():
                self.outputs[name].copy_(found)
        finally:
            emulated_npu.attend_by.pop()

    def reset(self) -> None:
        self.outputs = {}


class StandInDevice(AclGraphDevice):
    """Captures as torch_npu does: results are there after a replay and an update."""

    def __init__(self) -> None:
        self.graphs: list[StandInGraph] = []

    def capture(self, work: Callable[[], Any]) -> tuple[Any, Any]:
        outputs = {name: tensor.clone().zero_() - 1 for name, tensor in work().items()}
        self.graphs.append(StandInGraph(work, outputs))
        return self.graphs[-1], outputs


def test_captured_steps_take_the_lengths_of_each_replay() -> None:
    eager, captured = emulated_npu.EmulatedAscend(dtype="f16"), emulated_npu.EmulatedAscend(dtype="f16")
    captured.graph_device = StandInDevice()
    decoders = [decoder_of(backend, True) for backend in (eager, captured)]
    plans = [
        Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend)
        for decoder, backend in zip(decoders, (eager, captured), strict=True)
    ]
    steps = Steps()
    for counts in ({0: 5, 1: 17, 2: 3}, *[{0: 1, 1: 1, 2: 1}] * 5):
        exact = steps.step(counts, 3)
        arrays, _ = pad_step(exact, BUCKETS.row_block, BUCKETS.decodes, BUCKETS.blocks, PAGES_EACH, DUMP_PAGE)
        expected, found = (
            plan.run(upload(backend, arrays), extents_of(arrays))["logits"][:3]
            for plan, backend in zip(plans, (eager, captured), strict=True)
        )
        assert np.array_equal(found, expected)
    program = plans[1].bucket_programs["any"].program
    assert isinstance(program, AclGraphProgram)
    assert program.num_graphs == 1
    assert captured.graph_device.graphs[0].num_replays == 4  # the first decoding step is run as it is
    for backend, decoder, plan in zip((eager, captured), decoders, plans, strict=True):
        plan.close()
        backend.free_pages([decoder.cache])
        backend.close()


def test_lengths_without_their_numbers_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="no copy on the host"):
        vendor_backend.host_list(torch.zeros(3, dtype=torch.int32))


def test_a_missing_extension_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(vendor_backend, "import_module", refuse)
    state = AscendBackend().probe()
    assert isinstance(state, Missing)
    assert state.reason.startswith("torch_npu is not installed. Install it, with the driver of Huawei Ascend, or set")
    state = AscendBackend(device="cuda:1").probe()
    assert isinstance(state, Missing)
    assert "not a device of Huawei Ascend (got device 'cuda:1'; allowed npu)" in state.reason


def test_an_extension_for_another_torch_is_named_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_backend, "import_module", lambda name: pytest.fail("imported"))
    monkeypatch.setattr(vendor_backend, "version", lambda name: "2.1.0.post8")
    state = AscendBackend().probe()
    assert isinstance(state, Missing)
    ours = ".".join(torch.__version__.split(".")[:2])
    assert state.reason == (
        f"torch_npu 2.1.0.post8 is for another torch (got torch {torch.__version__}; allowed 2.1). Install torch_npu"
        f" {ours} or torch 2.1, or set the option backend to torch"
    )


@pytest.mark.parametrize("error", [RuntimeError("no driver\nmore"), SystemExit("no driver\nmore")])
def test_an_extension_that_does_not_load_is_named_with_its_error(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> Any:
        raise error

    monkeypatch.setattr(vendor_backend, "import_module", refuse)
    monkeypatch.setattr(vendor_backend, "version", lambda name: torch.__version__)
    state = AscendBackend().probe()
    assert isinstance(state, Missing)
    assert state.reason == (
        f"torch_npu {torch.__version__} does not load with torch {torch.__version__} ({type(error).__name__}: no driver"
        " more). Check the driver of Huawei Ascend, install another version of torch_npu, or set the option backend to"
        " torch"
    )


def test_an_extension_without_a_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads, but does not add the device to torch; or it adds one, and another is asked for."""
    monkeypatch.setattr(vendor_backend, "import_module", lambda name: ModuleType(name))
    monkeypatch.setattr(vendor_backend, "version", lambda name: torch.__version__)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    state = AscendBackend().probe()
    assert isinstance(state, Missing)
    assert "has no device 'npu' here: torch_npu did not add it to torch. Install it again" in state.reason
    module = type("Module", (), {"device_count": staticmethod(lambda: 2)})
    monkeypatch.setattr(torch, "npu", module, raising=False)
    for device, remedy in (("npu:3", "Set the option device to npu:1"), ("npu:1", "Check the driver")):
        state = AscendBackend(device=device).probe()
        assert isinstance(state, Missing)
        assert f". {remedy}, or set the option backend to torch" in state.reason


def test_versions_are_compared_by_their_first_two_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    assert vendor_backend.matches_torch("2.13.0.post2")
    assert not vendor_backend.matches_torch("2.14.0")

    def refuse(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vendor_backend, "version", refuse)
    assert vendor_backend.find_version("torch_npu") is None


def test_an_operator_that_is_missing_or_has_other_arguments_leaves_the_op_to_plain_torch() -> None:
    class Older(emulated_npu.EmulatedAscend):
        table = vendor_backend.FusedKernelTable()

    Older.table.by_op = {
        "rms_norm": replace(TABLE.by_op["rms_norm"], operators=(Operator("npu::npu_no_such_norm", ("self",)),)),
        "add_rms_norm": replace(TABLE.by_op["add_rms_norm"], operators=(Operator("npu::npu_rms_norm", ("offset",)),)),
        "linear_silu_mul": TABLE.by_op["linear_silu_mul"],
    }
    backend = Older(dtype="f16")
    state = backend.probe()
    assert isinstance(state, Ready)
    assert state.details["fused operators"] == "linear_silu_mul"
    assert state.details["operators not used"] == (
        "add_rms_norm: npu::npu_rms_norm has no argument offset; rms_norm: the extension has no npu::npu_no_such_norm"
    )
    assert state.details["evidence"] == "not yet run on the device"
    assert backend.functions["rms_norm"] is TorchBackend.functions["rms_norm"]
    backend.close()


def test_calls_beyond_the_limits_are_counted() -> None:
    clear_fallbacks()
    backend = emulated_npu.EmulatedAscend(dtype="f16")
    reference = open_backend("reference")
    cases = [case for case in CASES if case.op == "attention" and "softcap" in case.name and not case.rare]
    assert cases
    for case in cases[:2]:
        assert check_case("ascend", case, backend, reference)["state"] == "equal"
    assert [reason for reason in count_fallbacks() if reason.startswith("attention: ")]
    backend.close()
