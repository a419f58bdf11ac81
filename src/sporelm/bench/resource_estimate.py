"""Estimates of memory and speed without loading a model.

They follow from its shapes, the back-end's sizes of packed weights and pages, and the memory bandwidth.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from sporelm.api.model_loader import packed_bytes_per_param
from sporelm.backends.memory_residency import available_on
from sporelm.backends.protocol import Backend
from sporelm.bench.driver import BenchCase
from sporelm.bench.roofline import Workload, compute_workload
from sporelm.checkpoints.loader import ModelSource
from sporelm.engine.capacity import DEFAULT_CONTEXT, bytes_per_page, bytes_per_state, step_bytes
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.errors import RequestError
from sporelm.models import build
from sporelm.models.config import ModelConfig
from sporelm.ops.canonical_pages import KV_TYPES

PROGRAM_BYTES = 70 << 20  # the interpreter, its libraries and the compiled kernels, measured on Linux
TOKEN_BYTES = 700  # of the tokenizer, for each token of its vocabulary: texts, tables of ids and merges
ROPE_VALUES = 2  # a cosine and a sine per pair of columns: head_dim float32 values per position, held twice
MAX_BATCH = 1024


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that running takes: `context` positions in each of `batch` sequences, numbers of type `kv` in the cache.

    weights    as the back-end packs them
    kv         the pages of keys and values, all of them in use
    step       the values of one step, at the most tokens that a step has
    tables     of rotary positions
    program    the interpreter, its libraries, the tokenizer
    states     one recurrent state for each sequence
    """

    context: int
    batch: int
    kv_type: str
    weights: int
    kv: int
    step: int
    tables: int
    program: int
    available: int | None
    states: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.step + self.tables + self.program + self.states

    @property
    def can_fit(self) -> bool | None:
        """Whether this much memory is available now; None if the available memory is unknown."""
        return None if self.available is None else self.total <= self.available

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"total": self.total, "fits": self.can_fit}


@dataclass(frozen=True)
class SpeedEstimate:
    """Tokens a second at most in all sequences together, at a batch and a depth, and what sets the limit."""

    batch: int
    depth: int
    tok_s: float
    limit: str  # "stream" (reading memory) or "compute"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class ResourceEstimate:
    """The estimates for one model on one back-end."""

    def __init__(self, source: ModelSource, backend: Backend, kv: str | None = None) -> None:
        """kv: numbers of the cache, as `LLM` chooses them if None.

        Raises UnsupportedModel for an architecture we lack, ModelFileError for a file that lacks tensors.
        """
        self.config: ModelConfig = source.config
        self.backend = backend
        self.kv = kv or ("f32" if source.config.dtype == "F32" else "f16")
        model = build(source.config)
        self._memory = model.memory()
        sizes = packed_bytes_per_param(source, model.params(), backend, dequantize=False)
        self.weights = sum(sizes.values())
        self.experts = sum(nbytes for param, nbytes in sizes.items() if param.is_experts)

    def memory(self, context: int | None = None, batch: int = 1) -> MemoryEstimate:
        """Estimate the memory of a run. `context` None: the number of positions that a model is opened with by default.

        Raises RequestError for a context that the model does not have, or a batch that cannot be.
        """
        config = self.config
        most = max(self.backend.step_buckets.values())
        positions = min(config.context_length, DEFAULT_CONTEXT) if context is None else context
        if not 1 <= positions <= config.context_length:
            raise RequestError(f"--context is {positions}: this model allows 1 to {config.context_length}")
        if not 1 <= batch <= MAX_BATCH:
            raise RequestError(f"--batch is {batch}: it must be between 1 and {MAX_BATCH}")
        page = bytes_per_page(self._memory, self.backend, KV_TYPES[self.kv])
        return MemoryEstimate(
            context=positions,
            batch=batch,
            kv_type=self.kv,
            weights=self.weights,
            kv=count_pages(positions) * batch * page,
            step=estimate_step_bytes(config, min(most, positions * batch), batch),
            tables=ROPE_VALUES * positions * config.head_dim * 4 if config.rotary else 0,
            program=PROGRAM_BYTES + config.vocab * TOKEN_BYTES,
            available=available_on(self.backend),
            states=batch * bytes_per_state(self._memory, self.backend),
        )

    @cached_property
    def workload(self) -> Workload:
        """The work of the model per token."""
        kind = KV_TYPES[self.kv]
        return compute_workload(self.config, self.weights, kind.nbytes / kind.values, self.experts)

    def decode(self, machine: Mapping[str, float], batch: int = 1, depth: int = 0) -> SpeedEstimate:
        """How fast tokens can come at most; `machine` is what the back-end's `limits()` measured.

        A step reads each weight once for the whole batch (only the selected experts) and the keys and values of each
        sequence, reads and writes its recurrent state, and multiplies each token with every matrix on its path. The
        slower of the two limits applies.
        """
        work = self.workload
        stream = work.limit(BenchCase(1, decode=True, batch=batch, depth=depth), machine)
        compute = work.peak_rate(machine) / (2 * (work.matrix_values + work.output_values))
        if compute < stream.value:
            return SpeedEstimate(batch, depth, compute, "compute")
        return SpeedEstimate(batch, depth, stream.value, "stream")


def estimate_step_bytes(config: ModelConfig, tokens: int, rows: int) -> int:
    """Return the bytes of a step's values if only the logits of `rows` tokens are computed, the last of each prompt."""
    return step_bytes(config, tokens) - 4 * config.vocab * max(0, tokens - rows)
