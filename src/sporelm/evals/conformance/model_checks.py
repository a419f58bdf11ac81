"""Tiny models end to end on a back-end, op by op and as plans, against the reference back-end."""

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from sporelm.backends.backend_registry import HOST_BACKENDS, open_backend
from sporelm.backends.protocol import Backend
from sporelm.checkpoints import config_from_hf
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import LoadedModel, Worker
from sporelm.evals.conformance.random_weights import blocks_of
from sporelm.evals.meta_device.tiny_configs import CONFIGS
from sporelm.models import Decoder, build
from sporelm.ops import ALL
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F16, F32

KINDS = ("attention", "experts", "state space")  # of `tiny_configs.CONFIGS`
STORAGE = ("F16", "Q8_0")  # of matrices
CONTEXT, PROMPT, NEW_TOKENS = 256, 23, 6
MAX_DIVERGENCE = 1e-2  # nat per token, the bar for number formats and number types
MAX_SHARE_F32 = 1e-3  # of the largest logit, for back-ends that compute in float32


def check_models(name: str, options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each tiny model, storage and mode.

    A row has model, storage, mode (eager or planned), state (equal, differs, fails), the mean KL divergence in nat per
    token, the number of steps whose most likely token is the same, and the error.
    """
    given = {} if name in HOST_BACKENDS else dict(options)
    for kind in KINDS:
        for storage in STORAGE:
            with_reference = open_backend("reference")
            expected = run_model(kind, storage, with_reference, eager=False)
            with_reference.close()
            for eager in (True, False):
                row = {"model": kind, "storage": storage, "mode": "eager" if eager else "planned"}
                backend = open_backend(name, **given)
                try:
                    found = run_model(kind, storage, backend, eager=eager)
                except Exception as error:  # the row reports any error of a third-party back-end
                    yield row | {"state": "fails", "error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
                    continue
                finally:
                    is_exact = storage == "F16" and backend.number_types(ALL["linear"]).activation is F32
                    backend.close()
                yield row | compare_logits(found, expected, is_exact)


def compare_logits(found: np.ndarray, expected: np.ndarray, is_exact: bool) -> dict[str, Any]:
    """Return the state of logits [steps, vocab], their divergence, and how many most likely tokens are the same."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return {"state": "differs", "error": f"logits {list(found.shape)} with numbers that are not finite"}
    left, right = (x.astype(np.float64) - x.max(axis=1, keepdims=True) for x in (expected, found))
    left, right = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (left, right))
    divergence = float((np.exp(left) * (left - right)).sum(axis=1).mean())
    share = float(np.abs(found - expected).max() / np.abs(expected).max())
    equal = divergence <= MAX_DIVERGENCE and (not is_exact or share <= MAX_SHARE_F32)
    same = int((found.argmax(axis=1) == expected.argmax(axis=1)).sum())
    figures = {"divergence": divergence, "error_share": share, "same_tokens": same, "steps": len(found)}
    return {"state": "equal" if equal else "differs", "error": ""} | figures


def run_model(kind: str, storage: str, backend: Backend, *, eager: bool) -> np.ndarray:
    """Return the logits after a prompt and after each of a few tokens: float32 [1 + NEW_TOKENS, vocab]."""
    config = dict(CONFIGS[kind])
    if "max_position_embeddings" in config:
        config["max_position_embeddings"] = CONTEXT
    model = build(config_from_hf(config, "config.json"))
    assert isinstance(model, Decoder)
    weights = make_weights(model, backend, storage)
    limits = EngineConfig(
        CONTEXT, CONTEXT, model.config.vocab, 64, 2, count_pages(CONTEXT), num_states=2, state_interval=1
    )
    worker = Worker(LoadedModel(model, weights), backend, limits=limits, kv=F16, eager=eager)
    random = np.random.default_rng(crc32(kind.encode()))
    ids = random.integers(0, model.config.vocab, PROMPT + NEW_TOKENS).tolist()
    pages = tuple(range(count_pages(PROMPT + NEW_TOKENS)))
    found = []
    try:
        for start, stop in [(0, PROMPT), *((index, index + 1) for index in range(PROMPT, len(ids)))]:
            scheduled = ScheduledSequence(0, ids[start:stop], start, pages, 1, state_slot=0)
            found.append(np.array(worker.run(Step([scheduled], [])).logits[0], np.float32))
    finally:
        worker.close()
    return np.stack(found)


def make_weights(model: Decoder, backend: Backend, storage: str) -> dict[str, Any]:
    """Return random weights that keep the size of activations: matrices in a number format where rows are whole
    blocks."""
    weights: dict[str, Any] = {}
    for param in model.params():
        random = np.random.default_rng(crc32(param.name.encode()))
        values = random.standard_normal(param.shape, np.float32) / np.float32(np.sqrt(max(1, param.shape[-1])))
        if len(param.shape) == 1:
            values = 1 + values if "norm" in param.name else values
        if param.plain:
            weights[param.name] = backend.tensor(values.astype(np.float32))
            continue
        form = FORMATS[storage]
        if len(param.shape) == 1 or param.shape[-1] % form.values:
            form = FORMATS["F32"]
        blocks = blocks_of(form, values.reshape(-1, param.shape[-1]))
        stored = StoredTensor(param.name, form, param.shape, np.ascontiguousarray(blocks).view(np.uint8).reshape(-1))
        weights[param.name] = backend.pack(stored)
    return weights | {name: backend.tensor(table) for name, table in model.tables(CONTEXT).items()}
