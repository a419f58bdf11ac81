"""Models with random weights in memory: tensors as in a GGUF file, loaded the same way, without a file.

Tensors of one shape and number format share their blocks on the host, so that a model of 16 GB takes 3 GB there. On the
device each tensor has memory of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from sporelm.backends.backend_registry import open_backend
from sporelm.backends.protocol import Backend
from sporelm.bench.model_shapes import SHAPES, ModelShape
from sporelm.bench.synthetic import POOL_RUNS, BlockPools
from sporelm.bench.synthetic_formats import assign_formats
from sporelm.checkpoints import config_from_gguf
from sporelm.checkpoints.loader import ModelSource, load_parameters, map_tensors, packed_format
from sporelm.checkpoints.schema_registry import find_gguf_schema
from sporelm.engine import Engine, EngineConfig, LoadedModel, Worker
from sporelm.engine.capacity import bytes_per_page, bytes_per_state, snapshot_interval
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.speculative import NgramDrafter, Speculation
from sporelm.models import build
from sporelm.models.config import ModelConfig
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import BF16, F8_E4M3_64, F8_E4M3_128, QuantFormat
from sporelm.quant.stored_tensor import StoredTensor

FP8 = "fp8"  # FP8 layers with one scale for each matrix, and a head and an embedding in BF16, as published models have
FP8_FORMATS = (F8_E4M3_128, F8_E4M3_64)  # the first one that fits
FP8_MAX = 448.0
SPREAD = 4.0  # standard deviations that the largest FP8 number stands for
LOAD_THREADS = 8
STATES_PER_STREAM = 4
PERIOD = 16  # tokens of text that repeats; divides the vocabularies
RESIDUAL_OUTPUTS = ("attn_output", "ffn_down", "ffn_down_exps", "ssm_out")
STEP_BYTES = 8 << 30  # of the device's memory that steps need, at most

LLAMA_1B = replace(SHAPES["llama-1b"], vocab=128_256, tied=True)
MODEL_SHAPES: dict[str, ModelShape] = {
    "1b": LLAMA_1B,  # Llama 3.2
    "8b": SHAPES["llama-8b"],  # Llama 3.1
    "30b-a3b": SHAPES["qwen3-30b-a3b"],
    # Stories 15M of llama2.c, and one architecture of each kind, for comparisons of tokens.
    "story": ModelShape(6, 288, 768, 6, 6, 48, 32_000, 256, 10_000.0, tied=True),
    "tiny": SHAPES["tiny"],
    "tiny-moe": SHAPES["tiny-moe"],
    "tiny-delta": SHAPES["tiny-delta"],
    "tiny-latent": SHAPES["tiny-latent"],
    # What --tiny runs: rows of two blocks of 32 numbers.
    "mini": ModelShape(1, 64, 64, 2, 1, 32, 64, 2048, 10_000.0),
    "mini-moe": ModelShape(1, 64, 64, 2, 1, 32, 64, 2048, 10_000.0, experts=4, used=2),
}


class RandomBlocks:
    """Random tensors by shape and number format, each drawn once."""

    def __init__(self, width: int) -> None:
        self._pools = BlockPools(width)
        self._deviation = 1 / sqrt(width)
        self._tensors: dict[tuple[Any, ...], StoredTensor] = {}

    def tensor(self, name: str, number_format: type[QuantFormat], shape: tuple[int, ...]) -> StoredTensor:
        """Return a tensor whose numbers have a deviation of 1 / sqrt(width); vectors are near 1, or near -1."""
        key = (number_format, shape, name.endswith(".ssm_a"))
        if key not in self._tensors:
            if number_format in FP8_FORMATS and number_format not in self._pools.blocks:
                self._pools.blocks[number_format] = self._make_fp8_blocks(number_format.values)
            self._tensors[key] = self._pools.tensor(name, number_format, shape)
        drawn = self._tensors[key]
        return StoredTensor(name, drawn.format, drawn.shape, drawn.blocks)

    def zeros(self, name: str, number_format: type[QuantFormat], shape: tuple[int, ...]) -> StoredTensor:
        """Return a tensor of zeros: blocks whose scales are zero."""
        key = (number_format, shape, "zeros")
        if key not in self._tensors:
            blocks = np.zeros(number_format.tensor_nbytes(shape), np.uint8)
            self._tensors[key] = StoredTensor(name, number_format, shape, blocks)
        return self._tensors[key]

    def _make_fp8_blocks(self, group: int) -> np.ndarray:
        """Return the pool's runs in FP8, in groups of this many numbers, all with one scale."""
        import torch

        scale = np.float32(SPREAD * self._deviation / FP8_MAX)
        scaled = np.clip(self._pools.values / scale, -FP8_MAX, FP8_MAX).astype(np.float32)
        codes = torch.from_numpy(scaled).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        codes = codes.reshape(-1, group)
        head = np.broadcast_to(np.array([scale], "<f4").view(np.uint8), (len(codes), 4))
        return np.concatenate([head, codes], axis=1).reshape(POOL_RUNS, -1)


@dataclass(frozen=True)
class RandomInfo:
    """The header entry of a tensor."""

    number_format: type[QuantFormat]
    shape: tuple[int, ...]

    @property
    def type_name(self) -> str:
        return self.number_format.name

    @property
    def nbytes(self) -> int:
        return self.number_format.tensor_nbytes(self.shape)


class RandomFiles:
    """In place of an open file: tensors by name."""

    def __init__(self, formats: Mapping[str, type[QuantFormat]], shape: ModelShape, *, repeats: bool) -> None:
        self.tensors = {name: RandomInfo(formats[name], extents) for name, extents in shape.tensors().items()}
        self._repeats = repeats
        self._blocks = RandomBlocks(shape.width)
        for name in self.tensors:
            self.tensor(name)  # so that loading does not wait for random numbers

    def tensor(self, name: str) -> StoredTensor:
        info = self.tensors[name]
        stored = self._blocks.tensor(name, info.number_format, info.shape)
        if self._repeats and name.partition(".weight")[0].endswith(RESIDUAL_OUTPUTS):
            return self._blocks.zeros(name, info.number_format, info.shape)
        if self._repeats and name == "output.weight":  # the embedding has the same blocks
            token = np.arange(info.shape[0])
            return stored.take_rows(token - token % PERIOD + (token - 1) % PERIOD)
        return stored

    def close(self) -> None:
        """Do nothing: there is no file."""


def choose_formats(number_format: str, shape: ModelShape) -> dict[str, type[QuantFormat]]:
    """Return the number format of each tensor."""
    if number_format != FP8:
        return assign_formats(number_format, shape, number_format)
    formats = assign_formats("bf16", shape, FP8)
    in_layers = {name for name, each in formats.items() if each is BF16 and name.startswith("blk.")}
    return formats | {name: find_fp8_format(shape.tensors()[name][-1]) for name in in_layers}


def find_fp8_format(width: int) -> type[QuantFormat]:
    """Return the FP8 format for rows of this many numbers."""
    return next(each for each in FP8_FORMATS if width % each.values == 0)


def make_source(shape: ModelShape, number_format: str, *, repeats: bool = False) -> ModelSource:
    """Return a model's tensors and configuration, as if a GGUF file had been opened.

    repeats   the layers add zeros, so that the next token follows from the last one alone: with a head of its own it
              goes round in PERIOD tokens, without one it is always the same token
    """
    formats = choose_formats(number_format, shape)
    files: Any = RandomFiles(formats, shape, repeats=repeats)
    metadata = {"general.architecture": shape.architecture, "general.name": f"random {number_format}"}
    metadata |= {f"{shape.architecture}.{key}": value for key, value in shape.metadata().items()}
    main = formats.get("blk.0.attn_output.weight", BF16)
    config = config_from_gguf(metadata, shape.tensors(), "random weights", main.name)
    schema = find_gguf_schema(shape.architecture).for_file(files.tensors)
    return ModelSource("gguf", Path("random"), files, config, schema)


@dataclass(frozen=True)
class StepWork:
    """The least that a step reads and multiplies.

    weight_bytes   of packed weights, without the embedding table (unless it is the head too)
    expert_bytes   the part of it that belongs to experts
    expert_share   the part of the experts that a token uses
    kv_bytes       of the keys and values of one position
    matrix_values  in the layers' matrices that a token is multiplied with
    head_values    in the output matrix
    """

    weight_bytes: int
    expert_bytes: int
    expert_share: float
    kv_bytes: float
    matrix_values: float
    head_values: int

    def decode_bytes(self, streams: int, context: float) -> float:
        """Return the bytes that a decode step reads, if tokens choose experts evenly."""
        unused = self.expert_bytes * (1 - self.expert_share) ** streams
        return self.weight_bytes - unused + streams * context * self.kv_bytes

    def decode_seconds(self, streams: int, context: float, read_bytes_s: float, flops: float) -> float:
        """Return the least seconds of a decode step: of reading, or of multiplying."""
        operations = 2 * streams * (self.matrix_values + self.head_values)
        return max(self.decode_bytes(streams, context) / read_bytes_s, operations / flops)

    def prefill_seconds(self, tokens: int, flops: float) -> float:
        """Return the least seconds of a prompt, without the products inside attention."""
        return 2 * (tokens * self.matrix_values + self.head_values) / flops


def estimate_work(source: ModelSource, backend: Backend, kv: str) -> StepWork:
    """Return the work of a model as its weights are packed on a back-end."""
    config, model = source.config, build(source.config)
    params = model.params()
    sizes = {
        each.param.name: backend.packed_bytes(packed_format(source, each), each.param.shape)
        for each in map_tensors(source, params).tensors
    }
    share = config.experts.used / config.experts.count if config.experts else 1.0
    table = 0 if config.tie_embeddings else sizes["embedding.weight"]
    matrices = [each for each in params if len(each.shape) > 1 and each.name.startswith("layers.")]
    return StepWork(
        weight_bytes=sum(sizes.values()) - table,
        expert_bytes=sum(sizes[each.name] for each in params if each.is_experts),
        expert_share=share,
        kv_bytes=bytes_per_page(model.memory(), backend, KV_TYPES[kv]) / PAGE,
        matrix_values=sum(prod(each.shape) * (share if each.is_experts else 1.0) for each in matrices),
        head_values=config.vocab * config.width,
    )


def open_gpu_backend(
    device: str, dtype: str, *, batch_invariant: bool = False, max_streams: int = 256, token_budget: int | None = None
) -> Backend:
    """Open the CUDA back-end. On the CPU, under Triton's interpreter, steps are padded and overlap as on a GPU."""
    # Packed weights are a GPU's default.
    backend: Any = open_backend("cuda", device=device, dtype=dtype, weights="packed", batch_invariant=batch_invariant)
    if device == "cpu":
        from sporelm.backends.torch.torch_backend import ACCELERATOR_TRAITS

        backend.traits = replace(ACCELERATOR_TRAITS, max_batch=max_streams, token_budget=token_budget or 512)
    elif token_budget is not None:
        backend.traits = replace(backend.traits, token_budget=token_budget)
    backend.step_buckets = {"any": backend.traits.token_budget}
    return backend  # type: ignore[no-any-return]


class RandomModel:
    """An engine on a model with random weights. Close it to free the device's memory.

    load_s      seconds to check the tensors and to copy them to the device
    prepare_s   seconds to trace the model, to allocate the caches, and to compile kernels and capture graphs
    """

    def __init__(
        self,
        source: ModelSource,
        backend: Backend,
        *,
        context: int,
        streams: int,
        kv: str,
        ngram: bool = False,
    ) -> None:
        self.backend, self.config = backend, source.config
        self.step_work = estimate_work(source, backend, kv)
        model: Any = build(source.config)
        began = perf_counter()
        weights = load_parameters(source, model.params(), backend, threads=LOAD_THREADS)
        weights |= {name: backend.tensor(table) for name, table in model.tables(context).items()}
        backend.synchronize()
        self.load_s = perf_counter() - began
        began = perf_counter()
        self.limits = choose_limits(model, self.config, backend, context, streams, kv)
        self.worker = Worker(LoadedModel(model, weights), backend, limits=self.limits, kv=KV_TYPES[kv])
        self.worker.prepare()
        self.prepare_s = perf_counter() - began
        self._sampler_rows = max(self.limits.max_batch, self.limits.token_budget)
        self.engine = self.open_engine(ngram=ngram)

    def open_engine(self, *, ngram: bool = False) -> Engine:
        """Return an engine on the worker, with empty caches. Only one may be used at a time."""
        sampler = None
        if self.backend.traits.is_async and not ngram:
            sampler = DeviceSampler(self.backend, self.limits.vocab, self._sampler_rows)
        speculation = Speculation(NgramDrafter()) if ngram else None
        return Engine(self.worker, self.limits, speculation, None, sampler, self.backend.context)

    @cached_property
    def random(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def random_ids(self, count: int) -> list[int]:
        """Return random token ids."""
        ids: list[int] = self.random.integers(0, self.limits.vocab, count).tolist()
        return ids

    def close(self) -> None:
        """Free everything but the back-end."""
        self.engine.close()
        self.worker.close()


def choose_limits(
    model: Any, config: ModelConfig, backend: Backend, context: int, streams: int, kv: str
) -> EngineConfig:
    """Return the limits of an engine whose pages hold all streams, or as many as the memory allows."""
    memory = model.memory()
    state_bytes, page_bytes = bytes_per_state(memory, backend), bytes_per_page(memory, backend, KV_TYPES[kv])
    num_states = STATES_PER_STREAM * streams if state_bytes else 0
    num_pages = count_pages(context) * (streams + 1)
    if (free := backend.free_bytes()) is not None:
        room = max(free // 2, free - STEP_BYTES) - num_states * state_bytes
        num_pages = max(count_pages(context), min(num_pages, room // page_bytes))
    return EngineConfig(
        max_context=context,
        model_context=max(context, config.context_length),
        vocab=config.vocab,
        token_budget=max(backend.step_buckets.values()),
        max_batch=streams,
        num_pages=num_pages,
        num_states=num_states,
        state_interval=snapshot_interval(state_bytes, page_bytes) if num_states else 0,
    )


def free_device_memory(device: str) -> None:
    """Return freed memory to the device, before the next model is loaded."""
    import gc

    import torch

    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
