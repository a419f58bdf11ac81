"""Runs the programs of every bucket of inputs on a device without values, padded and with exact extents."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from sporelm.backends.backend_registry import open_backend
from sporelm.backends.protocol import Backend
from sporelm.checkpoints import config_from_hf
from sporelm.engine.encoder_runner import EncoderText, make_encoder_inputs
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.padded_inputs import PaddedInputs
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import LoadedModel, Worker
from sporelm.evals.meta_device.tiny_configs import CONFIGS, CONTEXT
from sporelm.models import Decoder, Encoder, build
from sporelm.models.encoder_inputs import text_specs, trace_texts
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.ops.paged_attention import PAGE
from sporelm.plan import Plan
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor

STORAGE = (("F32", "f32"), ("BF16", "bf16"), ("Q8_0", "q8_0"), ("Q4_0", "fp8"))  # of matrices, and of the KV cache
EXACT_STEPS = ((1,), (1,) * 16, (70,), (1, 1, 65, 3, 128))  # rows of each sequence; the last step is run twice
TEXTS = ((7,), (1, 130, 64))  # tokens of each text


def check_buckets(
    name: str, options: Mapping[str, str], kinds: Iterable[str] = tuple(CONFIGS), every: int = len(STORAGE)
) -> list[dict[str, Any]]:
    """Run a tiny model of each kind on a back-end's device without values; return a row per kind.

    options   of the back-end: its `device` and `dtype`
    every     each storage of weights runs one padded step of this number. By default the storages take turns, so that
              all of them together run each step once; 1: each of them runs every step

    A row has the kind, the architecture, the numbers of padded and of exact steps, the state (legal or fails), and the
    error. Raises BackendError if the back-end cannot run.
    """
    open_backend(name, **options).close()
    return [_check_kind(kind, name, options, every) for kind in kinds]


def _check_kind(kind: str, name: str, options: Mapping[str, str], every: int) -> dict[str, Any]:
    config = CONFIGS[kind]
    row: dict[str, Any] = {"kind": kind, "architecture": config["model_type"], "padded": 0, "exact": 0}
    case = "no step"
    try:
        for first, (number_format, kv) in enumerate(STORAGE):
            for is_padded in (True, False):
                backend = open_backend(name, **options)
                if not is_padded:
                    backend.traits = replace(backend.traits, input_buckets=None)
                try:
                    for step, padded in _run_model(config, backend, number_format, kv, slice(first, None, every)):
                        case = step
                        row["padded" if padded else "exact"] += 1
                finally:
                    backend.close()
    except Exception as error:  # the row reports any error of a third-party back-end
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return row | {"state": "fails", "error": f"{number_format}, {kv}, after {case}: {message}"}
    return row | {"state": "legal", "error": ""}


def _run_model(
    config: Mapping[str, Any], backend: Backend, number_format: str, kv: str, selected: slice
) -> Iterator[tuple[str, bool]]:
    """Launch the selected padded steps, or those of exact extents; yield a name of each, and whether it was padded."""
    model = build(config_from_hf(dict(config), "config.json"))
    weights = make_weights(model, backend, number_format)
    if isinstance(model, Encoder):
        if backend.traits.input_buckets is None:  # texts have exact extents on any device
            yield from _run_texts(model, weights, backend)
        return
    traits, context = backend.traits, min(CONTEXT, model.config.context_length)
    states = {"num_states": 2, "state_interval": 1}
    limits = EngineConfig(
        context, context, model.config.vocab, traits.token_budget, traits.max_batch, count_pages(context), **states
    )
    worker = Worker(LoadedModel(model, weights), backend, limits=limits, kv=KV_TYPES[kv])
    try:
        padded_inputs = worker.runner.padded_inputs
        if padded_inputs is not None:
            for name, step in list(padded_steps(padded_inputs))[selected]:
                worker.run(step)
                yield name, True
        elif traits.input_buckets is None:
            for rows in (*EXACT_STEPS, EXACT_STEPS[-1]):
                worker.run(make_step(rows, context))
                yield f"a step of {rows} rows", False
    finally:
        worker.close()


def _run_texts(model: Encoder, weights: Mapping[str, Any], backend: Backend) -> Iterator[tuple[str, bool]]:
    plan = Plan(trace_texts(model.embed, weights, text_specs(512, 8)), backend, 512)
    try:
        for counts in TEXTS:
            inputs = make_encoder_inputs([EncoderText([0] * count) for count in counts])
            extents = {"tokens": sum(counts), "texts": len(counts), "starts": len(counts) + 1}
            plan.launch(inputs._asdict(), extents)
            yield f"texts of {counts} tokens", False
    finally:
        plan.close()


def make_weights(model: Decoder | Encoder, backend: Backend, number_format: str) -> dict[str, Any]:
    """Return weights of zeros: matrices in a number format where their rows are whole blocks, else float32."""
    weights = {}
    for param in model.params():
        if param.plain:
            weights[param.name] = backend.tensor(np.zeros(param.shape, np.float32))
            continue
        form = FORMATS[number_format]
        if len(param.shape) == 1 or param.shape[-1] % form.values:
            form = FORMATS["F32"]
        blocks = np.zeros(form.tensor_nbytes(param.shape), np.uint8)
        weights[param.name] = backend.pack(StoredTensor(param.name, form, param.shape, blocks))
    return weights | {name: backend.tensor(table) for name, table in model.tables(CONTEXT).items()}


def padded_steps(inputs: PaddedInputs) -> Iterator[tuple[str, Step]]:
    """Yield a step for each combination of buckets of decode rows and blocks, with the other buckets in turn."""
    pairs = [(decodes, blocks) for decodes, blocks in product(inputs.decodes, inputs.blocks) if decodes + blocks]
    for number, (decodes, blocks) in enumerate(pairs):
        columns = inputs.columns[number % len(inputs.columns)]
        outputs = inputs.outputs[number // len(inputs.columns) % len(inputs.outputs)]
        name = f"{decodes} decode rows, {blocks} blocks, {columns} pages, {outputs} outputs"
        yield name, fill_buckets(decodes, blocks, inputs.buckets.row_block, columns, outputs)


def fill_buckets(decodes: int, blocks: int, row_block: int, columns: int, outputs: int) -> Step:
    """Return a step that fills its buckets: sequences of one row, and a chunk of whole blocks, with all their pages.

    It has fewer outputs where it has fewer rows, and more pages where the chunk needs them.
    """
    rows = [1] * decodes + [blocks * row_block] * bool(blocks)
    sequences, left = [], outputs
    for request_id, count in enumerate(rows):
        num_pages = max(columns, count_pages(count))
        num_outputs = min(count, left)
        left -= num_outputs
        position = num_pages * PAGE - count
        sequences.append(
            ScheduledSequence(request_id, [0] * count, position, tuple(range(num_pages)), num_outputs, state_slot=0)
        )
    return Step(sequences, [])


def make_step(rows: Iterable[int], context: int) -> Step:
    """Return a step of sequences with these numbers of rows, in the middle of their second page."""
    position = PAGE + PAGE // 2
    sequences = [
        ScheduledSequence(request_id, [0] * count, position, tuple(range(count_pages(position + count))), 1)
        for request_id, count in enumerate(rows)
    ]
    return Step(sequences, [(0, 1)] if context > PAGE else [])
