"""Takes the samples. Those of Sporelm and of the peer alternate, so that a slow minute affects both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median
from typing import Protocol

from sporelm.bench.bench_rows import BenchRow, PeerFigure, SpeedLimit
from sporelm.bench.peer import LlamaPeer, PeerVariant
from sporelm.errors import RequestError, UsageError

# As `llama-batched-bench -npp 128 -ntg 64` has it.
BATCH_PROMPT = 128
BATCH_TOKENS = 64

LimitFunction = Callable[["BenchCase", float | None], SpeedLimit | None]  # given the read bandwidth in bytes/s, or None
Announce = Callable[[str, int, int], None]  # phase, done, total


class BenchEngine(Protocol):
    """The measured engine; `LLM` implements it."""

    def bench_prefill(self, n: int) -> float:
        """Seconds from submitting a random prompt of n tokens to its first token."""

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0) -> float:
        """Seconds to decode n tokens in each of `batch` sequences that hold `depth` tokens already."""

    def bench_whole(self, n: int, batch: int, prompt: int) -> float:
        """Seconds from submitting `batch` prompts of `prompt` tokens at once until each has n tokens more."""


@dataclass(frozen=True)
class BenchCase:
    """One row to measure. `decode`: tg, else pp. `prompt`: length of prompts whose time is included."""

    tokens: int
    decode: bool
    batch: int = 1
    depth: int = 0
    prompt: int = 0

    @property
    def test(self) -> str:
        if self.prompt:
            return f"pp{self.prompt}+tg{self.tokens}"
        return f"{'tg' if self.decode else 'pp'}{self.tokens}"

    @property
    def label(self) -> str:
        """The test with its batch and depth, where they are not the usual ones."""
        return self.test + f", batch {self.batch}" * (self.batch > 1) + f", depth {self.depth}" * (self.depth > 0)

    @property
    def context(self) -> int:
        """Positions that a sequence holds at the end."""
        return self.prompt + self.tokens + self.depth

    @property
    def words(self) -> str:
        """The command-line options of this case."""
        if not self.decode:
            return f"-p {self.tokens}"
        if self.prompt:
            return f"--whole -b {self.batch}"
        if self.batch > 1:
            return f"-b {self.batch}"
        return f"-n {self.tokens} -d {self.depth}" if self.depth else f"-n {self.tokens}"

    def sample(self, engine: BenchEngine) -> float:
        """Measure the tokens per second of Sporelm once."""
        if self.prompt:
            return self.batch * self.tokens / engine.bench_whole(self.tokens, self.batch, self.prompt)
        if self.decode:
            return self.batch * self.tokens / engine.bench_decode(self.tokens, batch=self.batch, depth=self.depth)
        return self.tokens / engine.bench_prefill(self.tokens)

    def sample_peer(self, peer: LlamaPeer, variant: PeerVariant) -> float:
        """Measure the tokens per second of a peer once."""
        if not self.decode:
            return peer.prefill(self.tokens, variant)
        if self.prompt:
            return peer.whole_batch(self.tokens, self.batch, self.prompt, variant)
        if self.batch > 1:
            return peer.decode_batch(self.tokens, self.batch, self.depth, variant)
        return peer.decode(self.tokens, self.depth, variant)


def build_cases(
    prompts: Sequence[int],
    new: Sequence[int],
    batches: Sequence[int],
    depths: Sequence[int],
    *,
    whole: bool = False,
) -> list[BenchCase]:
    """Return the rows for the options; 0 skips a test. `whole`: batches with the time of their prompts too.

    Raises RequestError for what cannot be measured.
    """
    for name, values, least in (("-p", prompts, 0), ("-n", new, 0), ("-b", batches, 1), ("-d", depths, 0)):
        if wrong := [value for value in values if value < least]:
            raise RequestError(f"{name} {wrong[0]} cannot be measured: at least {least} is needed")
    found = [BenchCase(count, decode=False) for count in prompts if count]
    if 1 in batches:
        found += [BenchCase(count, decode=True, depth=depth) for depth in depths for count in new if count]
    if any(new):
        found += [BenchCase(BATCH_TOKENS, decode=True, batch=size, depth=BATCH_PROMPT) for size in batches if size > 1]
    if whole:
        found += [BenchCase(BATCH_TOKENS, decode=True, batch=size, prompt=BATCH_PROMPT) for size in batches]
    if not found:
        raise UsageError("nothing to measure: give -p or -n with a number above 0")
    return found


def choose_context(wanted: Sequence[BenchCase], model_context: int, asked: int | None, default: int) -> int | None:
    """The --max-context with which every case fits: `asked` where it was given, else more than `default` if need be.

    None leaves the choice to the engine. Raises RequestError for a case that does not fit into `asked`, or into the
    `model_context` positions that the model has.
    """
    largest = max(wanted, key=lambda case: case.context)
    needs = f"{largest.words} needs a context of {largest.context} positions"
    if largest.context > model_context:
        raise RequestError(f"{needs}, the model has {model_context}, which --max-context cannot raise: ask for less")
    if asked is not None and largest.context > asked:
        raise RequestError(f"{needs}, --max-context is {asked}: raise it (the model has {model_context})")
    return largest.context if asked is None and largest.context > default else asked


@dataclass
class SampleSeries:
    """Samples of one program, and the read bandwidth in bytes/s around each."""

    speeds: list[float] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)

    def compute_limits(self, case: BenchCase, limit: LimitFunction) -> tuple[float, ...]:
        """Return the machine's limit at the time of each sample; empty if memory was not measured."""
        found = [limit(case, bandwidth) for bandwidth in self.bandwidths]
        return tuple(each.value for each in found if each is not None)


VariantSamples = dict[PeerVariant, SampleSeries]


def measure_cases(
    engine: BenchEngine,
    wanted: Sequence[BenchCase],
    repeat: int,
    limit: LimitFunction,
    peers: Sequence[LlamaPeer] = (),
    announce: Announce = lambda phase, done, total: None,
    measure_stream: Callable[[], float] | None = None,
) -> list[BenchRow]:
    """Take `repeat` samples of each case after one warm-up run; of a peer, keep the fastest variant.

    Memory bandwidth can change within a run, so `measure_stream` is called before and after each decode sample; the
    mean of both gives that sample's limit. `announce` is called before each sample with its label, which has the median
    so far.
    """
    if repeat < 1:
        raise RequestError(f"--repeat is {repeat}: it must be at least 1")
    ours = {case: SampleSeries() for case in wanted}
    theirs: dict[BenchCase, list[VariantSamples]] = {
        case: [{variant: SampleSeries() for variant in peer.variants} for peer in peers] for case in wanted
    }
    rounds = 1 + repeat
    for turn in range(rounds):
        for index, case in enumerate(wanted):
            done, total = turn * len(wanted) + index, rounds * len(wanted)
            label = f"{case.label}: sample {turn} of {repeat}" if turn else f"{case.label}: warm-up"
            label += f", {median(ours[case].speeds):.1f} tok/s so far" if ours[case].speeds else ""
            announce(label, done, total)
            if turn == 0:
                case.sample(engine)
                continue
            sampler = BandwidthSampler(measure_stream if case.decode else None)
            sampler.take(ours[case], partial(case.sample, engine))
            for peer, variants in zip(peers, theirs[case], strict=True):
                for variant, series in variants.items():
                    announce(f"{case.label}: {peer.name} {variant.name}, sample {turn} of {repeat}", done, total)
                    sampler.take(series, partial(case.sample_peer, peer, variant))
    announce("the machine's limits", 1, 1)
    return [make_row(case, ours[case], limit, list(zip(peers, theirs[case], strict=True))) for case in wanted]


class BandwidthSampler:
    """Takes samples, and measures the read bandwidth before the first and after each."""

    def __init__(self, measure_stream: Callable[[], float] | None) -> None:
        self._measure_stream = measure_stream
        self._last = measure_stream() if measure_stream is not None else 0.0

    def take(self, series: SampleSeries, sample: Callable[[], float]) -> None:
        """Add a sample to a series, with the mean read bandwidth before and after it."""
        series.speeds.append(sample())
        if self._measure_stream is not None:
            before, self._last = self._last, self._measure_stream()
            series.bandwidths.append(mean((before, self._last)))


def make_row(
    case: BenchCase, ours: SampleSeries, limit: LimitFunction, theirs: Sequence[tuple[LlamaPeer, VariantSamples]]
) -> BenchRow:
    """Return the row of a case."""
    bandwidth = median(ours.bandwidths) if ours.bandwidths else None
    peers = tuple(pick_best_variant(case, peer, variants, limit) for peer, variants in theirs)
    samples, limits = tuple(ours.speeds), ours.compute_limits(case, limit)
    return BenchRow(case.test, case.batch, case.depth, samples, limit(case, bandwidth), peers, limits)


def pick_best_variant(case: BenchCase, peer: LlamaPeer, variants: VariantSamples, limit: LimitFunction) -> PeerFigure:
    """Return the peer's variant with the highest median."""
    best = max(variants, key=lambda variant: median(variants[variant].speeds))
    series = variants[best]
    return PeerFigure(f"{peer.name} {best.name}", tuple(series.speeds), series.compute_limits(case, limit))
