"""A tiny model of each kind of block on the CUDA back-end, in padded steps, gives the logits of the CPU."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close
from sporelm.backends.protocol import Backend, InputBuckets
from sporelm.checkpoints import config_from_hf
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import LoadedModel, Worker
from sporelm.evals.meta_device.tiny_configs import CONFIGS
from sporelm.models import Decoder, build
from sporelm.quant import F32
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32 as KV_F32

CONTEXT = 256
BUCKETS = InputBuckets(row_block=4, decodes=(0, 2), blocks=(0, 2, 4), pages=(1, 4), outputs=(1, 2, 16))
# Rows of two sequences in each step: chunks, one row beside a chunk, and one row each.
COUNTS = ((9, 3), (1, 7), (1, 1), (0, 1))
EXACT = ("sparse latent attention",)  # kinds with arguments on the host
FEW = ("gated delta rule",)  # without --all
KINDS = [
    pytest.param(kind, marks=[] if kind in FEW else [pytest.mark.all])
    for kind, config in CONFIGS.items()
    if isinstance(build(config_from_hf(dict(config), "config.json")), Decoder)
]


@pytest.fixture(scope="module")
def backends() -> Iterator[tuple[Backend, Backend]]:
    """The CUDA back-end with padded steps, and the CPU."""
    cuda = open_available("cuda", dtype="f32", weights="packed")
    cuda.traits = replace(cuda.traits, input_buckets=BUCKETS)
    opened = cuda, open_available("cpu", threads=1)
    yield opened
    for backend in opened:
        backend.close()


def random_weights(model: Decoder, backend: Backend) -> dict[str, Any]:
    """Return random weights, the same on every back-end."""
    random = np.random.default_rng(5)
    weights: dict[str, Any] = {}
    for param in model.params():
        values = random.standard_normal(param.shape, np.float32) * np.float32(0.3)
        if param.plain:
            weights[param.name] = backend.tensor(values)
        else:
            weights[param.name] = backend.pack(StoredTensor(param.name, F32, param.shape, values.view(np.uint8)))
    return weights | {name: backend.tensor(table) for name, table in model.tables(CONTEXT).items()}


def run_steps(model: Decoder, backend: Backend) -> tuple[list[np.ndarray], bool]:
    """Return the logits of each step, and whether its inputs were padded."""
    states = {"num_states": 3, "state_interval": 64}
    limits = EngineConfig(CONTEXT, CONTEXT, model.config.vocab, 16, 2, 8, **states)
    worker = Worker(LoadedModel(model, random_weights(model, backend)), backend, limits=limits, kv=KV_F32)
    random, lengths, logits = np.random.default_rng(6), [0, 0], []
    for counts in COUNTS:
        sequences = []
        for index, count in enumerate(counts):
            if count:
                ids = random.integers(0, model.config.vocab, count).tolist()
                table = (5, 0, 3, 6) if index else (1, 7, 2, 4)
                sequences.append(ScheduledSequence(index + 1, ids, lengths[index], table, 1, state_slot=2 - index))
                lengths[index] += count
        output = worker.run(Step(sequences, []))
        logits.append(np.array(backend.fetch(output.logits)[: len(sequences)]))
    is_padded = worker.runner.padded_inputs is not None
    worker.close()
    return logits, is_padded


@pytest.mark.parametrize("kind", KINDS)
def test_padded_steps_have_the_logits_of_the_cpu(kind: str, backends: tuple[Backend, Backend]) -> None:
    model = build(config_from_hf(dict(CONFIGS[kind]), "config.json"))
    (found, is_padded), (expected, _) = (run_steps(model, backend) for backend in backends)
    assert is_padded == (kind not in EXACT)
    for left, right in zip(found, expected, strict=True):
        magnitude = np.abs(right).max()
        assert_close(left / magnitude, right / magnitude, "f32")
