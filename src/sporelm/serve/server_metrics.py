"""The metrics of all engines and of the server's requests, in the format of Prometheus."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sporelm.serve.model_pool.model_pool import ModelPool
from sporelm.serve.model_pool.served_model import ServedModel

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset(("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"))
OTHER = "other"  # unknown paths and methods: as labels they would let clients create any number of series

Snapshot = Mapping[str, Mapping[str, Any]]  # as `Metrics.snapshot` returns it
Sample = dict[str, Any]


class ServerMetrics:
    """Collects the metrics of all models, each with a label `model_name`, and of the server itself.

    Counters of engines that were closed go on: a counter that falls, or a series that ends, would look like a restart
    of the server.
    """

    def __init__(self, models: ModelPool) -> None:
        self.models = models
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by path, method and status
        self.closed_engines: dict[str, dict[str, dict[str, Any]]] = {}  # by model and metric
        models.on_unload.append(self.keep_counts)

    def count_request(self, path: str, method: str, status: int) -> None:
        """Count an answered request; `path` is that of its route, "" without one."""
        self.requests[path or OTHER, method if method in METHODS else OTHER, str(status)] += 1

    async def keep_counts(self, model: ServedModel) -> None:
        """Keep the counters and histograms of a model that is unloaded."""
        metrics = add_snapshots(self.closed_engines.get(model.name, {}), model.async_llm.metrics.snapshot())
        self.closed_engines[model.name] = {name: each for name, each in metrics.items() if each["type"] != "gauge"}

    def collect(self) -> "Iterator[Metric]":
        """Yield the metric families, for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

        families: dict[str, Metric] = {}
        for model_name in self.models.specs:
            for name, metric in self._model_metrics(model_name).items():
                metric_type = metric["type"]
                base_name = name.removesuffix("_total") if metric_type == "counter" else name
                family = families.setdefault(name, Metric(base_name, metric["help"], metric_type))
                for sample in metric["samples"]:
                    add_sample(family, name, sample, {"model_name": model_name, **sample["labels"]})
        yield from families.values()
        is_loaded = GaugeMetricFamily("sporelm:model_loaded", "Whether a model is loaded.", labels=["model_name"])
        nbytes = GaugeMetricFamily("sporelm:model_bytes", "Of weights and KV cache.", labels=["model_name"])
        for name in self.models.specs:
            model = self.models.loaded.get(name)
            is_loaded.add_metric([name], float(model is not None))
            if model is not None:
                nbytes.add_metric([name], model.nbytes)
        yield is_loaded
        yield nbytes
        labels = ["path", "method", "status"]
        requests = CounterMetricFamily("sporelm:http_requests", "Requests that were answered.", labels=labels)
        for values, count in self.requests.items():
            requests.add_metric(values, count)
        yield requests

    def _model_metrics(self, name: str) -> dict[str, dict[str, Any]]:
        model = self.models.loaded.get(name)
        current = model.async_llm.metrics.snapshot() if model is not None else {}
        return add_snapshots(self.closed_engines.get(name, {}), current)


def add_snapshots(earlier: Snapshot, current: Snapshot) -> dict[str, dict[str, Any]]:
    """Return the metrics of two engines as those of one: counters and histograms are added, gauges are the current."""
    total: dict[str, dict[str, Any]] = {name: dict(metric) for name, metric in earlier.items()}
    for name, metric in current.items():
        samples = list(metric["samples"])
        if name in total and metric["type"] != "gauge":
            by_labels = {labels_of(sample): sample for sample in total[name]["samples"]}
            for sample in samples:
                before = by_labels.get(labels_of(sample))
                by_labels[labels_of(sample)] = sample if before is None else add_samples(before, sample)
            samples = list(by_labels.values())
        total[name] = {**metric, "samples": samples}
    return total


def labels_of(sample: Sample) -> tuple[tuple[str, str], ...]:
    """Return the labels of a sample, hashable."""
    return tuple(sorted(sample["labels"].items()))


def add_samples(one: Sample, other: Sample) -> Sample:
    """Return the sum of two samples of a counter, or of a histogram."""
    if "buckets" not in one:
        return {**one, "value": one["value"] + other["value"]}
    pairs = zip(one["buckets"], other["buckets"], strict=True)  # the bounds are the same in every engine
    return {
        **one,
        "buckets": [(bound, count + more) for (bound, count), (_, more) in pairs],
        "count": one["count"] + other["count"],
        "sum": one["sum"] + other["sum"],
    }


def add_sample(family: "Metric", name: str, sample: Sample, labels: dict[str, str]) -> None:
    """Add a sample of `Metrics.snapshot` to its family."""
    if "buckets" not in sample:
        family.add_sample(name, labels, sample["value"])
        return
    for bound, count in sample["buckets"]:
        le = "+Inf" if bound == float("inf") else repr(float(bound))
        family.add_sample(f"{name}_bucket", {**labels, "le": le}, count)
    family.add_sample(f"{name}_count", labels, sample["count"])
    family.add_sample(f"{name}_sum", labels, sample["sum"])


def exposition(metrics: ServerMetrics) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    from prometheus_client import generate_latest

    registry: Any = metrics
    return generate_latest(registry)
