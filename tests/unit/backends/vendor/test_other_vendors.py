"""Back-ends of vendors whose extensions are on no index, with stand-ins of the signatures that dlinfer calls.

This proves that our calls have these names and shapes, and that results are right if the operators are what their names
say. It says nothing about a device.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from conformance.padded_decoder import BUCKETS, DUMP_PAGE, PAGES_EACH  # noqa: E402
from conformance.padded_steps import pad_step, padded_specs  # noqa: E402
from conformance.tiny_decoder import Steps, TinyDecoder, extents_of  # noqa: E402
from sporelm.backends.backend_registry import VENDOR_OF_KIND, VENDORS, backend_names, open_backend  # noqa: E402
from sporelm.backends.protocol import Missing, Ready  # noqa: E402
from sporelm.backends.vendor import vendor_backend  # noqa: E402
from sporelm.backends.vendor.cambricon import CambriconBackend  # noqa: E402
from sporelm.backends.vendor.iluvatar import IluvatarBackend  # noqa: E402
from sporelm.backends.vendor.metax import MetaxBackend  # noqa: E402
from sporelm.backends.vendor.moore_threads import MooreThreadsBackend  # noqa: E402
from sporelm.backends.vendor.vendor_backend import TorchGraphCapture  # noqa: E402
from sporelm.errors import BackendError  # noqa: E402
from sporelm.evals.conformance.all_cases import CASES  # noqa: E402
from sporelm.evals.conformance.check import check_case, is_within_types  # noqa: E402
from sporelm.evals.conformance.conformance_case import Case, On  # noqa: E402
from sporelm.ops import trace  # noqa: E402
from sporelm.plan import Plan  # noqa: E402
from sporelm.tensor.dtype import F16  # noqa: E402

OPS = ("rms_norm", "add_rms_norm", "linear_silu_mul", "store_kv", "attention", "route")
_LIBRARIES: list[Any] = []


def normalize(x: Any, gamma: Any, eps: float) -> Any:
    wide = x.float()
    return (wide * wide.square().mean(-1, keepdim=True).add(eps).rsqrt() * gamma.float()).to(x.dtype)


def fused_rms_norm(
    x: Any, residual: Any, gamma: Any, beta: Any, bias: Any, eps: float, store_before_norm: bool, *others: Any
) -> Any:
    assert beta is None
    assert bias is None
    total = x if residual is None else x + residual
    normed = normalize(total, gamma, eps)
    return (normed, total) if store_before_norm else normed


def active(x: Any, act_mode: str, is_gated: bool) -> Any:
    assert act_mode == "silu"
    assert is_gated
    left, right = x.chunk(2, -1)
    return torch.nn.functional.silu(left) * right


def reshape_paged_cache(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
    assert key.dim() == value.dim() == 3
    assert slots.dtype is torch.int32
    size = key_cache.shape[2]
    for rows, cache in ((key, key_cache), (value, value_cache)):
        cache[slots.long() // size, :, slots.long() % size] = rows


def single_query_cached_kv_attn(
    q: Any, key_cache: Any, value_cache: Any, out: Any, table: Any, lengths: Any, *others: Any
) -> None:
    key_scale, value_scale, slopes, longest, left, right, scale = others
    assert key_scale is value_scale is slopes is None
    assert (left, right) == (-1, -1)
    assert q.dim() == out.dim() == 4
    assert table.dtype is torch.int32
    assert int(lengths.max()) <= longest
    for index, length in enumerate(lengths.tolist()):
        k, v = (x[table[index].long()].transpose(0, 1).flatten(1, 2)[:, :length] for x in (key_cache, value_cache))
        group = q.shape[2] // k.shape[0]
        k, v = (x.repeat_interleave(group, 0).float() for x in (k, v))
        scores = torch.einsum("hd,hkd->hk", q[index, 0].float(), k) * scale
        out[index, 0] = torch.einsum("hk,hkd->hd", scores.softmax(-1), v).to(out.dtype)


def moe_softmax_topk(logits: Any, topk: int) -> Any:
    found = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    return found.values[:, :topk], found.indices[:, :topk].int()


class CpuCambricon(CambriconBackend):
    """On the CPU, with stand-ins."""

    kind = "cpu"
    extension = ""


class CpuMetax(MetaxBackend):
    """On the CPU, with stand-ins."""

    kind = "cpu"
    extension = ""


@pytest.fixture(scope="module", params=[CpuCambricon, CpuMetax], name="vendor")
def _vendor(request: pytest.FixtureRequest) -> Iterator[Any]:
    module = ModuleType("torch_mlu_ops")
    functions = (fused_rms_norm, active, reshape_paged_cache, single_query_cached_kv_attn, moe_softmax_topk)
    vars(module).update({function.__name__: function for function in functions})
    sys.modules["torch_mlu_ops"] = module
    if not _LIBRARIES:
        library, moe = torch.library.Library("_C", "FRAGMENT"), torch.library.Library("_moe_C", "FRAGMENT")
        library.define("fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float epsilon) -> ()")
        library.define("silu_and_mul(Tensor(a!) out, Tensor x) -> ()")
        moe.define("topk_softmax(Tensor(a!) weights, Tensor(b!) ids, Tensor(c!) rows, Tensor logits) -> ()")

        def fused_add_rms_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> None:
            residual += x
            x.copy_(normalize(residual, weight, epsilon))

        def silu_and_mul(out: Any, x: Any) -> None:
            out.copy_(active(x, "silu", True))

        def topk_softmax(weights: Any, ids: Any, rows: Any, logits: Any) -> None:
            found, chosen = moe_softmax_topk(logits, weights.shape[1])
            weights.copy_(found)
            ids.copy_(chosen)

        library.impl("fused_add_rms_norm", fused_add_rms_norm, "CPU")
        library.impl("silu_and_mul", silu_and_mul, "CPU")
        moe.impl("topk_softmax", topk_softmax, "CPU")
        _LIBRARIES.extend((library, moe))
    backend = request.param(dtype="f16")
    state = backend.probe()
    assert isinstance(state, Ready)
    assert "add_rms_norm" in state.details["fused operators"]
    assert "operators not used" not in state.details
    yield backend
    backend.close()
    del sys.modules["torch_mlu_ops"]


def list_cases() -> list[Case]:
    """Return a few cases of each op."""
    found: list[Case] = []
    for op in OPS:
        found += [case for case in CASES if case.op == op and not case.rare][:10]
        found += [case for case in CASES if case.op == op == "route" and case.name.endswith("NaN")]
    return found


@pytest.mark.parametrize("case", list_cases(), ids=str)
def test_agrees_with_the_reference(vendor: Any, case: Case) -> None:
    reference = open_backend("reference")
    if not is_within_types(case, vendor):
        pytest.skip("its weights or inputs are beyond the range of the type")
    row = check_case(vendor.name, case, vendor, reference)
    assert row["state"] == "equal", row


class RepeatedGraph:
    """Runs the recorded work again when it is replayed, into the same outputs."""

    def __init__(self, launches: Any, outputs: dict[str, Any]) -> None:
        self.launches, self.outputs, self.num_replays = launches, outputs, 0

    def replay(self) -> None:
        self.num_replays += 1
        for name, found in self.launches().items():
            self.outputs[name].copy_(found)

    def reset(self) -> None:
        self.outputs = {}


class RepeatingDevice(TorchGraphCapture):
    """Captures as a device does: results are there after a replay."""

    def __init__(self) -> None:
        self.graphs: list[RepeatedGraph] = []

    def capture(self, work: Any) -> tuple[Any, Any]:
        outputs = {name: tensor.clone().zero_() - 1 for name, tensor in work().items()}
        self.graphs.append(RepeatedGraph(work, outputs))
        return self.graphs[-1], outputs


def test_captured_steps_have_the_results_of_steps_call_by_call(vendor: Any) -> None:
    eager, captured = type(vendor)(dtype="f16"), type(vendor)(dtype="f16")
    captured.graph_device = RepeatingDevice()
    backends = (eager, captured)
    for backend in backends:
        backend.traits = replace(backend.traits, input_buckets=BUCKETS)
    decoders = [TinyDecoder(On(backend, "F16"), "F16") for backend in backends]
    for backend, decoder in zip(backends, decoders, strict=True):
        backend.free_pages([decoder.cache])
        kept = decoder.cache.shape[2], decoder.cache.shape[4]
        decoder.cache = backend.allocate_pages(DUMP_PAGE + 1, [kept], F16)[0]
    plans = [
        Plan(trace(decoder.forward, padded_specs(PAGES_EACH)), backend)
        for decoder, backend in zip(decoders, backends, strict=True)
    ]
    steps = Steps()
    for counts in ({0: 5, 1: 17, 2: 3}, *[{0: 1, 1: 1, 2: 1}] * 5):
        arrays, _ = pad_step(
            steps.step(counts, 3), BUCKETS.row_block, BUCKETS.decodes, BUCKETS.blocks, PAGES_EACH, DUMP_PAGE
        )
        found = [
            plan.run({name: backend.upload(each) for name, each in arrays.items()}, extents_of(arrays))["logits"][:3]
            for plan, backend in zip(plans, backends, strict=True)
        ]
        assert np.array_equal(*found)
    assert sum(graph.num_replays for graph in captured.graph_device.graphs) == 4  # each shape first runs as it is
    for backend, decoder, plan in zip(backends, decoders, plans, strict=True):
        plan.close()
        backend.free_pages([decoder.cache])
        backend.close()


@pytest.mark.parametrize("constructor", [CambriconBackend, MetaxBackend, MooreThreadsBackend, IluvatarBackend])
def test_graphs_are_captured_by_the_module_of_the_device(constructor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are those of `torch.cuda`, with the vendor's class of graphs."""
    calls: list[Any] = []

    @contextmanager
    def graph(graph: Any, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        calls.append((type(graph).__name__, pool, capture_error_mode))
        yield

    names = {"graph": staticmethod(graph), "graph_pool_handle": staticmethod(lambda: (0, 7))}
    module = type("Module", (), names | {constructor.graph_class: type(constructor.graph_class, (), {})})
    monkeypatch.setattr(constructor, "kind", "cpu")
    monkeypatch.setattr(constructor, "extension", "")
    monkeypatch.setattr(torch.version, "corex", "4.3", raising=False)
    state = constructor().probe()
    assert isinstance(state, Ready)
    assert state.details["graph mode"].startswith(
        f"call by call: torch's module for the device has no {constructor.graph_class}"
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    backend = constructor()
    state = backend.probe()
    assert isinstance(state, Ready)
    assert state.details["graph mode"] == f"captured steps ({constructor.graph_class})"
    _, outputs = backend.graph_device.capture(lambda: {"y": 3})
    assert outputs == {"y": 3}
    assert calls == [(constructor.graph_class, (0, 7), "thread_local")]
    backend.close()


def test_each_vendor_says_what_is_missing() -> None:
    assert set(VENDOR_OF_KIND.values()) <= VENDORS.keys()
    assert set(VENDORS) <= set(backend_names())
    for name in VENDORS:
        with pytest.raises(BackendError, match=f"back-end '{name}' cannot run here: .*(not installed|not a build)"):
            open_backend(name)


@pytest.mark.parametrize("constructor", [MetaxBackend, MooreThreadsBackend])
def test_extensions_with_version_numbers_of_their_own_are_loaded(
    constructor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(vendor_backend, "import_module", loaded.append)
    monkeypatch.setattr(vendor_backend, "version", lambda name: "0.7")
    assert constructor().find_extension_obstacle() == ""
    assert loaded == [constructor.extension]


def test_a_vendor_without_operators_is_plain_torch() -> None:
    for constructor in (IluvatarBackend, MooreThreadsBackend):
        state = constructor(device="meta").probe()
        assert not isinstance(state, Missing)
        assert state.details["fused operators"] == "none"
        assert state.details["evidence"] == "not yet run on the device"
