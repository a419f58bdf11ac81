"""What engines count, and the server of its requests, as Prometheus reads it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sporelm.serve.models import Models
from sporelm.serve.served_model import ServedModel

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset(("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"))
ELSEWHERE = "other"  # paths where nothing is, and methods that nobody uses: else clients could make ever more series

Snapshot = Mapping[str, Mapping[str, Any]]  # as `Metrics.snapshot` gives it
Sample = dict[str, Any]


class Figures:
    """The figures of all models, each with a label `model_name`, and of the server itself.

    What the engines of a model counted that are gone goes on to count: a counter that falls, or a series that ends,
    would be taken for a server that began anew.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by path, method and status
        self.gone: dict[str, dict[str, dict[str, Any]]] = {}  # by model and figure
        models.farewells.append(self.keep)

    def asked(self, path: str, method: str, status: int) -> None:
        """A request was answered; `path` is its route's, "" for none."""
        self.requests[path or ELSEWHERE, method if method in METHODS else ELSEWHERE, str(status)] += 1

    async def keep(self, model: ServedModel) -> None:
        """A model goes: what it counted stays."""
        figures = together(self.gone.get(model.name, {}), model.llm.metrics.snapshot())
        self.gone[model.name] = {name: each for name, each in figures.items() if each["type"] != "gauge"}

    def collect(self) -> "Iterator[Metric]":
        """One family of figures after the other, as prometheus_client wants them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

        families: dict[str, Metric] = {}
        for model in self.models.specs:
            for name, figure in self._of(model).items():
                kind = figure["type"]
                plain = name.removesuffix("_total") if kind == "counter" else name
                family = families.setdefault(name, Metric(plain, figure["help"], kind))
                for sample in figure["samples"]:
                    add(family, name, sample, {"model_name": model, **sample["labels"]})
        yield from families.values()
        loaded = GaugeMetricFamily("sporelm:model_loaded", "Whether a model is loaded.", labels=["model_name"])
        size = GaugeMetricFamily("sporelm:model_bytes", "Of weights and KV cache.", labels=["model_name"])
        for name in self.models.specs:
            at_hand = self.models.loaded.get(name)
            loaded.add_metric([name], float(at_hand is not None))
            if at_hand is not None:
                size.add_metric([name], at_hand.nbytes)
        yield loaded
        yield size
        labels = ["path", "method", "status"]
        requests = CounterMetricFamily("sporelm:http_requests", "Requests that were answered.", labels=labels)
        for values, count in self.requests.items():
            requests.add_metric(values, count)
        yield requests

    def _of(self, name: str) -> dict[str, dict[str, Any]]:
        model = self.models.loaded.get(name)
        return together(self.gone.get(name, {}), model.llm.metrics.snapshot() if model is not None else {})


def together(before: Snapshot, now: Snapshot) -> dict[str, dict[str, Any]]:
    """Two engines' figures as those of one: counters and histograms are added; gauges are what they are now."""
    found: dict[str, dict[str, Any]] = {name: dict(figure) for name, figure in before.items()}
    for name, figure in now.items():
        samples = list(figure["samples"])
        if name in found and figure["type"] != "gauge":
            known = {labels_of(sample): sample for sample in found[name]["samples"]}
            for sample in samples:
                old = known.get(labels_of(sample))
                known[labels_of(sample)] = sample if old is None else summed(old, sample)
            samples = list(known.values())
        found[name] = {**figure, "samples": samples}
    return found


def labels_of(sample: Sample) -> tuple[tuple[str, str], ...]:
    """What tells a sample of a figure from the others."""
    return tuple(sorted(sample["labels"].items()))


def summed(one: Sample, other: Sample) -> Sample:
    """Two samples of a counter, or of a histogram, as one."""
    if "buckets" not in one:
        return {**one, "value": one["value"] + other["value"]}
    pairs = zip(one["buckets"], other["buckets"], strict=True)  # the bounds are the same in every engine
    return {
        **one,
        "buckets": [(bound, count + more) for (bound, count), (_, more) in pairs],
        "count": one["count"] + other["count"],
        "sum": one["sum"] + other["sum"],
    }


def add(family: "Metric", name: str, sample: Sample, labels: dict[str, str]) -> None:
    """Add one sample of `Metrics.snapshot` to its family."""
    if "buckets" not in sample:
        family.add_sample(name, labels, sample["value"])
        return
    for bound, count in sample["buckets"]:
        le = "+Inf" if bound == float("inf") else repr(float(bound))
        family.add_sample(f"{name}_bucket", {**labels, "le": le}, count)
    family.add_sample(f"{name}_count", labels, sample["count"])
    family.add_sample(f"{name}_sum", labels, sample["sum"])


def exposed(figures: Figures) -> bytes:
    """All figures in Prometheus's text format."""
    from prometheus_client import generate_latest

    collected: Any = figures
    return generate_latest(collected)
