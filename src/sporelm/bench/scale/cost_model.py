"""The duration of a step: a roofline for each op, collectives in the alpha-beta model, and pipeline bubbles.

An op multiplies and reads memory. Each takes its amount over the processor's peak times the share of it that kernels
reach (`Efficiency`); the longer one counts whole, of the shorter one the part that does not overlap (Williams,
Waterman and Patterson 2009, who overlap all of it). Ranks of a tensor-parallel group divide heads, feed-forward columns
and the vocabulary, and sum their rows twice a layer (Shoeybi et al. 2019). A pipeline of p stages takes m micro-batches
in m + p - 1 turns (Huang et al. 2019).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil

from sporelm.bench.scale.hardware import AllReduce, Link, Machine
from sporelm.bench.scale.model_size import ModelSize
from sporelm.engine.step import Step
from sporelm.errors import RequestError

OPS_PER_LAYER = (
    12  # kernels: two norms, qkv, rope, KV write, attention, output, gate and up, activation, down, two sums
)
ACTIVATION_BYTES = 4  # rows between ops are f32, in collectives too


@dataclass(frozen=True)
class Efficiency:
    """The shares of a processor's peaks that kernels reach, and fixed costs in seconds. `calibration` fits them.

    compute             share of the peak of products, of matrices
    stream              share of the bandwidth, of matrices
    attention           share of the peak of f32 products, of attention
    kv_stream           share of the bandwidth, of keys and values
    rowwise             share of the bandwidth, of rows that norms, activations and sums read and write
    serial              part of the shorter of multiplying and reading that does not overlap with the longer one
    op_seconds          of each op: a launch, or the wait of threads for each other
    step_seconds        of each step: scheduling, inputs, sampling
    sequence_seconds    of each sequence in a step, likewise
    """

    compute: float = 0.6
    stream: float = 0.75
    attention: float = 0.3
    kv_stream: float = 0.6
    rowwise: float = 0.5
    serial: float = 0.2
    op_seconds: float = 2e-6
    step_seconds: float = 100e-6
    sequence_seconds: float = 5e-6

    @classmethod
    def from_json(cls, values: Mapping[str, float]) -> "Efficiency":
        """Return the efficiency of a calibration file. Raises RequestError for unknown names and unusable values."""
        known = {each.name for each in fields(cls)}
        for name, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            if name not in known or not is_number:
                allowed = "positive numbers for " + ", ".join(sorted(known))
                raise RequestError(f"efficiency: unknown value (got {name[:60]}: {value!r:.40}; allowed {allowed}).")
        return cls(**values)

    def to_json(self) -> dict[str, float]:
        """Return the values by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


# Assumed, not measured: large GEMMs reach 60 % of a GPU's peak, reads 75 % of its bandwidth. Steps are launched as one
# graph, and the engine schedules while the device computes (docs/lab.md: 0 to 6 % idle at 256 streams).
GPU_EFFICIENCY = Efficiency(
    compute=0.6,
    stream=0.75,
    attention=0.4,
    kv_stream=0.6,
    rowwise=0.5,
    serial=0.1,
    op_seconds=2e-6,
    step_seconds=200e-6,
    sequence_seconds=1e-6,
)


@dataclass(frozen=True)
class ParallelLayout:
    """Ranks: `tp` in each of `pp` stages. A step is cut into `micro_batches` that follow each other in the pipeline."""

    tp: int = 1
    pp: int = 1
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "micro_batches"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name}: too small (got {getattr(self, name)}; allowed 1 and more).")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True)
class StepLoad:
    """The sums over a step's sequences that decide its duration.

    num_tokens       new tokens
    num_sequences    sequences
    num_outputs      rows of logits
    read_positions   positions whose keys and values attention reads
    pairs            of a new token and a position that it attends to
    """

    num_tokens: float
    num_sequences: float
    num_outputs: float
    read_positions: float
    pairs: float

    @classmethod
    def decode(cls, batch: int, context: float) -> "StepLoad":
        """Return the load of `batch` sequences that hold `context` positions, with a new token each."""
        positions = batch * (context + 1)
        return cls(batch, batch, batch, positions, positions)

    @classmethod
    def prefill(cls, tokens: int, context: int = 0, num_outputs: int = 1) -> "StepLoad":
        """Return the load of `tokens` new tokens of one prompt, behind `context` positions."""
        pairs = tokens * context + tokens * (tokens + 1) / 2
        return cls(tokens, 1, num_outputs, context + tokens, pairs)

    @classmethod
    def from_step(cls, step: Step) -> "StepLoad":
        """Return the load of a scheduler's step."""
        num_tokens = num_outputs = read_positions = 0
        pairs = 0.0
        for scheduled in step.sequences:
            count, position = len(scheduled.tokens), scheduled.position
            num_tokens += count
            num_outputs += scheduled.num_outputs
            read_positions += position + count
            pairs += count * (position + (count + 1) / 2)
        return cls(num_tokens, len(step.sequences), num_outputs, read_positions, pairs)

    def divide(self, parts: int) -> "StepLoad":
        """Return one of `parts` equal micro-batches. A single sequence cannot be cut below one token."""
        parts = max(1, min(parts, int(self.num_tokens)))
        return StepLoad(*(getattr(self, each.name) / parts for each in fields(self)))


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step, and what they are spent on; `parts` add up to `seconds`."""

    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class CostModel:
    """The durations of a model's steps on some machines.

    all_reduce          how a tensor-parallel group sums; "gather" is that of groups without a library
    ranks_per_machine   ranks that a machine holds; 0: one on each of its processors
    """

    model: ModelSize
    machine: Machine
    layout: ParallelLayout = ParallelLayout()
    efficiency: Efficiency = Efficiency()
    all_reduce: AllReduce = "best"
    ranks_per_machine: int = 0

    def step(self, load: StepLoad) -> StepTime:
        """Return the time of a step."""
        layout, efficiency = self.layout, self.efficiency
        turn = self._stage(load.divide(layout.micro_batches))
        num_batches = max(1, min(layout.micro_batches, int(load.num_tokens)))
        parts = {name: seconds * num_batches for name, seconds in turn.items()}
        if layout.pp > 1:
            parts["bubble"] = (layout.pp - 1) * sum(turn.values())
        for name, seconds in self._output(load).items():  # on the last stage only
            parts[name] = parts.get(name, 0.0) + seconds
        parts["engine"] = efficiency.step_seconds + load.num_sequences * efficiency.sequence_seconds
        return StepTime(parts)

    def prompt(self, tokens: int, token_budget: int) -> StepTime:
        """Return the time of a prompt that is computed alone, in chunks of `token_budget`."""
        total: dict[str, float] = {}
        for begin in range(0, tokens, token_budget):
            count = min(token_budget, tokens - begin)
            load = StepLoad.prefill(count, begin, int(begin + count == tokens))
            for name, seconds in self.step(load).parts.items():
                total[name] = total.get(name, 0.0) + seconds
        return StepTime(total)

    # ---- memory

    @property
    def num_machines(self) -> int:
        """Machines that hold one replica."""
        return ceil(self.layout.num_ranks / self.num_ranks_here)

    @property
    def num_ranks_here(self) -> int:
        """Ranks of one machine."""
        return self.ranks_per_machine or self.machine.num_processors

    @property
    def rank_weight_bytes(self) -> float:
        """Bytes of the weights of the fullest rank: the output matrix, and the embedding, beside a stage's layers."""
        model, layout = self.model, self.layout
        layers = ceil(model.layers / layout.pp) * self._layer_bytes()
        return layers + (1 if layout.pp > 1 else 2) * model.output_values * model.value_bytes / layout.tp

    def num_pages(self, page_positions: int, memory_share: float = 0.9) -> int:
        """Return how many KV pages fit beside the weights. Raises RequestError if there is room for none."""
        free = memory_share * self.machine.processor.memory_bytes - self.rank_weight_bytes
        stage_layers = ceil(self.model.layers / self.layout.pp)
        position = self.model.kv_bytes / self.model.layers * stage_layers * self._key_share()
        pages = int(free // (position * page_positions))
        if pages < 1:
            needed, allowed = self.rank_weight_bytes / 1e9, memory_share * self.machine.processor.memory_bytes / 1e9
            raise RequestError(
                f"{self.model.name} on {self.machine.name}: the weights do not fit (got {needed:.1f} GB a rank; "
                f"allowed {allowed:.1f}). Use more ranks."
            )
        return pages

    # ---- parts

    def _key_share(self) -> float:
        """Return the part of the keys and values that a rank holds: whole heads, at least one."""
        return ceil(self.model.kv_heads / self.layout.tp) / self.model.kv_heads

    def _query_share(self) -> float:
        """Return the part of the query heads that a rank holds: those of its key heads, unless ranks share these."""
        model, tp = self.model, self.layout.tp
        return self._key_share() if tp <= model.kv_heads else ceil(model.heads / tp) / model.heads

    def _layer_bytes(self) -> float:
        """Return the bytes of a rank's matrices of one layer."""
        model, tp = self.model, self.layout.tp
        queries = 2 * model.width * model.query_width * self._query_share()
        keys = 2 * model.width * model.key_width * self._key_share()
        return (queries + keys + model.ffn_values / tp) * model.value_bytes

    def _roofline(
        self, operations: float, nbytes: float, shares: tuple[float, float], peak: float
    ) -> tuple[float, float]:
        """Return the seconds of multiplying and of reading; the part of the shorter one that overlaps is left out."""
        multiplying = operations / (peak * shares[0])
        reading = nbytes / (self.machine.processor.bytes_per_second * shares[1])
        if multiplying > reading:
            return multiplying, reading * self.efficiency.serial
        return multiplying * self.efficiency.serial, reading

    def _stage(self, load: StepLoad) -> dict[str, float]:
        """Return the seconds of the layers of a stage for one micro-batch, by what they are spent on."""
        model, efficiency, processor = self.model, self.efficiency, self.machine.processor
        layers = ceil(model.layers / self.layout.pp)
        shares = (efficiency.compute, efficiency.stream)
        peak = processor.peak(model.number_type)
        tokens, tp = load.num_tokens, self.layout.tp
        query_share = self._query_share()
        attention_values = 2 * model.width * (model.query_width * query_share + model.key_width * self._key_share())
        read_share = 1.0
        if model.experts:  # each token selects evenly
            read_share = 1 - (1 - model.used_experts / model.experts) ** tokens
        multiply, read = self._roofline(
            2 * tokens * attention_values, attention_values * model.value_bytes, shares, peak
        )
        ffn = self._roofline(
            2 * tokens * model.used_ffn_values / tp,
            model.ffn_values / tp * model.value_bytes * read_share,
            shares,
            peak,
        )
        attention_peak = processor.peak("f16" if model.number_type == "f16" else "f32")
        attend = self._roofline(
            4 * load.pairs * model.query_width * query_share,
            2 * load.read_positions * model.key_width * self._key_share() * model.kv_value_bytes,
            (efficiency.attention, efficiency.kv_stream),
            attention_peak,
        )
        rows = tokens * (8 * model.width + 4 * model.query_width * query_share + 3 * model.ffn / tp) * ACTIVATION_BYTES
        communication = 2 * self._group_link().all_reduce(tokens * model.width * ACTIVATION_BYTES, tp, self.all_reduce)
        parts = {
            "products": layers * (multiply + ffn[0]),
            "weights": layers * (read + ffn[1]),
            "attention": layers * attend[0],
            "kv": layers * attend[1],
            "rows": layers * rows / (processor.bytes_per_second * efficiency.rowwise),
            "launches": layers * OPS_PER_LAYER * efficiency.op_seconds,
            "links": layers * communication if tp > 1 else 0.0,
        }
        if self.layout.pp > 1:
            parts["links"] += self._stage_link().send(tokens * model.width * ACTIVATION_BYTES)
        return parts

    def _output(self, load: StepLoad) -> dict[str, float]:
        """Return the seconds of the logits, and of the exchange of each row's best token."""
        if not load.num_outputs:
            return {}
        model, tp = self.model, self.layout.tp
        values = model.output_values / tp
        shares = (self.efficiency.compute, self.efficiency.stream)
        peak = self.machine.processor.peak(model.number_type)
        multiply, read = self._roofline(2 * load.num_outputs * values, values * model.value_bytes, shares, peak)
        return {"products": multiply, "weights": read, "links": self._group_link().all_gather(8 * load.num_outputs, tp)}

    def _group_link(self) -> Link:
        """Return the slowest link within a tensor-parallel group."""
        return self.machine.link if self.layout.tp <= self.num_ranks_here else self.machine.network

    def _stage_link(self) -> Link:
        """Return the slowest link between two stages."""
        return self.machine.link if self.layout.num_ranks <= self.num_ranks_here else self.machine.network

    def with_efficiency(self, efficiency: Efficiency) -> "CostModel":
        """Return this model with other shares."""
        return replace(self, efficiency=efficiency)
