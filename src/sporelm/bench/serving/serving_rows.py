"""Figures of a load: latency percentiles, tokens and requests per second, and failures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from sporelm.bench.serving.load_generator import LoadRun, OfferedLoad, RequestOutcome


@dataclass(frozen=True)
class LatencyStats:
    """Percentiles and the mean of times, in milliseconds; None where nothing was timed."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "LatencyStats | None":
        """Of times in seconds, with straight lines between neighbours, as numpy's percentiles."""
        if not seconds:
            return None
        ordered = sorted(1e3 * each for each in seconds)
        p50, p90, p99 = (interpolate_percentile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(p50, p90, p99, fmean(ordered))

    def as_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 3) for name in STATISTICS}

    def cell(self) -> str:
        return "/".join(format_three_digits(getattr(self, name)) for name in STATISTICS)


STATISTICS = ("p50", "p90", "p99", "mean")


def interpolate_percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def format_three_digits(value: float) -> str:
    """With three digits that count, at most two of them behind the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"


@dataclass(frozen=True)
class ServingRow:
    """All runs of one load: times of the answers of all runs together, speeds as the median over the runs."""

    load: OfferedLoad
    runs: tuple[LoadRun, ...]

    @cached_property
    def outcomes(self) -> list[RequestOutcome]:
        return [outcome for run in self.runs for outcome in run.outcomes]

    @cached_property
    def answers(self) -> list[RequestOutcome]:
        """The outcomes without an error."""
        return [outcome for outcome in self.outcomes if not outcome.error]

    @cached_property
    def errors(self) -> dict[str, int]:
        """How many failed, by kind, the most frequent first."""
        return dict(Counter(outcome.error for outcome in self.outcomes if outcome.error).most_common())

    @property
    def messages(self) -> dict[str, str]:
        """The message of the first failure of each kind."""
        found: dict[str, str] = {}
        for outcome in self.outcomes:
            if outcome.error:
                found.setdefault(outcome.error, outcome.message)
        return found

    @property
    def whole(self) -> bool:
        return all(run.whole for run in self.runs)

    @cached_property
    def samples(self) -> tuple[float, ...]:
        """Output tokens a second of each run: those of whole answers, from the first request to the last answer."""
        return tuple(
            sum(each.tokens for each in run.outcomes if not each.error) / measure_duration(run.outcomes)
            for run in self.runs
        )

    @property
    def tok_s(self) -> float:
        return median(self.samples)

    @property
    def requests_s(self) -> float:
        """Answers a second."""
        return median(
            sum(not each.error for each in run.outcomes) / measure_duration(run.outcomes) for run in self.runs
        )

    @property
    def ttft(self) -> LatencyStats | None:
        """From the request to the first text."""
        return LatencyStats.of([each.ttft for each in self.answers])

    @property
    def itl(self) -> LatencyStats | None:
        """Between one piece of text and the next; some servers send several tokens in a piece."""
        return LatencyStats.of([seconds for each in self.answers for seconds in each.inter_token_seconds])

    @property
    def tpot(self) -> LatencyStats | None:
        """From an answer's first text to its end, by the tokens after the first."""
        return LatencyStats.of(
            [(each.seconds - each.ttft) / (each.tokens - 1) for each in self.answers if each.tokens > 1]
        )

    @property
    def e2e(self) -> LatencyStats | None:
        """From the request to the end of the answer."""
        return LatencyStats.of([each.seconds for each in self.answers])

    @property
    def counted_by(self) -> str:
        """The source of token counts: the server's usage, pieces of text, or both."""
        kinds = {each.counted for each in self.answers}
        return "usage and pieces" if len(kinds) > 1 else "usage" if kinds == {True} else "pieces" if kinds else ""

    @property
    def cpu_client(self) -> float:
        """The share of one core that this program took."""
        wall = sum(run.wall for run in self.runs)
        return sum(run.cpu for run in self.runs) / wall if wall else 0.0

    def as_json(self) -> dict[str, Any]:
        """The row as `--json` has it."""
        spreads = {name: getattr(self, name) for name in ("ttft", "itl", "tpot", "e2e")}
        prompts = [each.prompt_tokens for each in self.answers if each.prompt_tokens is not None]
        cached = [each.cached_tokens for each in self.answers if each.cached_tokens is not None]
        return {
            "concurrency": self.load.users or None,
            "rate": self.load.rate,
            "requests": len(self.outcomes),
            "answers": len(self.answers),
            "errors": self.errors,
            "said": self.messages,
            "whole": self.whole,
            "prompt_tokens": sum(prompts) if prompts else None,
            "cached_tokens": sum(cached) if cached else None,
            "output_tokens": sum(each.tokens for each in self.answers),
            "counted_by": self.counted_by,
            "output_tok_s": round(self.tok_s, 3),
            "samples": [round(sample, 3) for sample in self.samples],
            "requests_s": round(self.requests_s, 4),
            **{f"{name}_ms": spread.as_json() if spread else None for name, spread in spreads.items()},
            "cpu_client": round(self.cpu_client, 4),
        }

    def cells(self) -> list[str]:
        """The row as text, in the order of `SERVING_COLUMNS`."""
        spreads = [spread.cell() if spread else "" for spread in (self.ttft, self.itl, self.e2e)]
        failed = ", ".join(f"{count} {kind}" for kind, count in self.errors.items())
        count = f"{len(self.answers)}" if self.whole else f"{len(self.answers)} (stopped)"
        return [
            self.load.name, count, failed, f"{self.tok_s:.1f}", format_three_digits(self.requests_s), *spreads,
            f"{self.cpu_client:.0%}",
        ]  # fmt: skip


SERVING_COLUMNS = [
    *("load", "answers", "failed", "tok/s", "req/s", "TTFT ms p50/p90/p99/mean", "between tokens, ms"),
    *("end to end, ms", "client CPU"),
]


def measure_duration(outcomes: Sequence[RequestOutcome]) -> float:
    """Seconds from the first request to the last answer; never nothing, so that it can be divided by."""
    if not outcomes:
        return 1.0
    return max(1e-9, max(each.ended for each in outcomes) - min(each.began for each in outcomes))
