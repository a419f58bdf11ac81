"""What engines count, as Prometheus reads it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sporelm.serve.models import Models

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collected:
    """The figures of all models that are loaded, each with a label `model_name`, and of the server itself."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def collect(self) -> "Iterator[Metric]":
        """One family of figures after the other, as prometheus_client wants them."""
        from prometheus_client.core import GaugeMetricFamily, Metric

        families: dict[str, Metric] = {}
        for model in list(self.models.loaded.values()):
            for name, figure in model.llm.metrics.snapshot().items():
                kind = figure["type"]
                plain = name.removesuffix("_total") if kind == "counter" else name
                family = families.setdefault(name, Metric(plain, figure["help"], kind))
                for sample in figure["samples"]:
                    add(family, name, sample, {"model_name": model.name, **sample["labels"]})
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


def add(family: "Metric", name: str, sample: Mapping[str, Any], labels: dict[str, str]) -> None:
    """Add one sample of `Metrics.snapshot` to its family."""
    if "buckets" not in sample:
        family.add_sample(name, labels, sample["value"])
        return
    for bound, count in sample["buckets"]:
        le = "+Inf" if bound == float("inf") else repr(float(bound))
        family.add_sample(f"{name}_bucket", {**labels, "le": le}, count)
    family.add_sample(f"{name}_count", labels, sample["count"])
    family.add_sample(f"{name}_sum", labels, sample["sum"])


def exposed(models: Models) -> bytes:
    """All figures in Prometheus's text format."""
    from prometheus_client import generate_latest

    collected: Any = Collected(models)
    return generate_latest(collected)
