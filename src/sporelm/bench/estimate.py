"""What a model will need and how fast it can be, without loading it: from its shapes, the back-end's own sizes of
packed weights and pages, and the bandwidth of the memory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from sporelm.api.incoming import packed_sizes
from sporelm.backends.backend import Backend
from sporelm.bench.driver import Case
from sporelm.bench.limits import Work, work_of
from sporelm.engine.capacity import DEFAULT_CONTEXT, bytes_per_page, bytes_per_state, step_bytes
from sporelm.engine.kv.pages import pages_for
from sporelm.errors import RequestError
from sporelm.models import build
from sporelm.ops.cache import KV_TYPES
from sporelm.weights.config import ModelConfig
from sporelm.weights.load import ModelSource
from sporelm.weights.resident import available_on

PROGRAM_BYTES = 70 << 20  # the interpreter, its libraries and the compiled kernels, measured on Linux
TOKEN_BYTES = 700  # of the tokenizer, for each token of its vocabulary: texts, tables of ids and merges
ROPE_VALUES = 2  # a cosine and a sine for each pair of columns: head_dim float32 values a position, and once more
MOST_BATCH = 1024


@dataclass(frozen=True)
class Memory:
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
    def fits(self) -> bool | None:
        """Whether that can be had now; None where nobody knows how much there is."""
        return None if self.available is None else self.total <= self.available

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"total": self.total, "fits": self.fits}


@dataclass(frozen=True)
class Speed:
    """Tokens a second at most in all sequences together, at a batch and a depth, and what sets the limit."""

    batch: int
    depth: int
    tok_s: float
    limit: str  # "stream" (reading memory) or "compute"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Estimate:
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
        sizes = packed_sizes(source, model.params(), backend, dequantize=False)
        self.weights = sum(sizes.values())
        self.experts = sum(nbytes for param, nbytes in sizes.items() if param.is_experts)

    def memory(self, context: int | None = None, batch: int = 1) -> Memory:
        """What running takes. `context` None: as many positions as a model is opened with if nothing is asked for.

        Raises RequestError for a context that the model does not have, or a batch that cannot be.
        """
        config, most = self.config, max(self.backend.regimes.values())
        positions = min(config.context_length, DEFAULT_CONTEXT) if context is None else context
        if not 1 <= positions <= config.context_length:
            raise RequestError(f"--context is {positions}: this model allows 1 to {config.context_length}")
        if not 1 <= batch <= MOST_BATCH:
            raise RequestError(f"--batch is {batch}: it must be between 1 and {MOST_BATCH}")
        page = bytes_per_page(self._memory, self.backend, KV_TYPES[self.kv])
        return Memory(
            context=positions,
            batch=batch,
            kv_type=self.kv,
            weights=self.weights,
            kv=pages_for(positions) * batch * page,
            step=values_bytes(config, min(most, positions * batch), batch),
            tables=ROPE_VALUES * positions * config.head_dim * 4 if config.rotary else 0,
            program=PROGRAM_BYTES + config.vocab * TOKEN_BYTES,
            available=available_on(self.backend),
            states=batch * bytes_per_state(self._memory, self.backend),
        )

    @cached_property
    def work(self) -> Work:
        """What the model asks of a machine."""
        kind = KV_TYPES[self.kv]
        return work_of(self.config, self.weights, kind.nbytes / kind.values, self.experts)

    def decode(self, machine: Mapping[str, float], batch: int = 1, depth: int = 0) -> Speed:
        """How fast tokens can come at most; `machine` is what the back-end's `limits()` measured.

        A step reads each weight once for the whole batch, of experts those that a token chose, and each sequence's keys
        and values, reads and writes its recurrent state, and multiplies each token with every matrix that it goes
        through: the slower of both counts.
        """
        work = self.work
        stream = work.limit(Case(1, decode=True, batch=batch, depth=depth), machine)
        peak = machine["int8_dot_ops_s" if work.integer else "f32_ops_s"]
        compute = peak / (2 * (work.matrix_values + work.output_values))
        if compute < stream.value:
            return Speed(batch, depth, compute, "compute")
        return Speed(batch, depth, stream.value, "stream")


def values_bytes(config: ModelConfig, tokens: int, rows: int) -> int:
    """What the values of a step take in which only the scores of `rows` tokens are wanted, the last of each prompt."""
    return step_bytes(config, tokens) - 4 * config.vocab * max(0, tokens - rows)
