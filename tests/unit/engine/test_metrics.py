"""The figures of an engine: what is counted, when, and under which names."""

import json
import threading

import pytest

from sporelm.engine import Request
from sporelm.engine.metrics import BETWEEN_TOKENS, Histogram, Metrics, classify_miss
from sporelm.engine.speculative import Speculation
from unit.engine.fake import Oracle, engine


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample of a counter or a gauge."""
    (found,) = [sample for sample in metrics.snapshot()[name]["samples"] if sample["labels"] == labels]
    return found["value"]


def histogram(metrics: Metrics, name: str) -> dict:
    (sample,) = metrics.snapshot()[name]["samples"]
    return sample


def test_a_value_at_a_bound_belongs_to_its_bucket():
    histogram = Histogram((1.0, 2.0))
    for seen in (0.5, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(seen)
    histogram.observe(3.0, times=2)
    sample = histogram.sample()
    assert sample["buckets"] == [[1.0, 2], [2.0, 4], [float("inf"), 7]]
    assert (sample["count"], sample["sum"]) == (7, 18.0)


def test_a_run_is_counted():
    made = engine()
    requests = [made.add(Request(list(range(length)), max_tokens=5)) for length in (3, 70)]
    assert value(made.metrics, "vllm:num_requests_waiting") == 2
    made.step()
    assert value(made.metrics, "vllm:num_requests_running") == 2
    assert value(made.metrics, "vllm:kv_cache_usage_perc") == 2 / 24
    assert value(made.metrics, "sporelm:kv_pages_held") == 2
    made.run(requests)
    metrics = made.metrics
    assert value(metrics, "vllm:num_requests_running") == value(metrics, "vllm:num_requests_waiting") == 0
    assert value(metrics, "vllm:kv_cache_usage_perc") == value(metrics, "sporelm:kv_pages_held") == 0
    assert value(metrics, "vllm:prompt_tokens_total") == 73
    assert value(metrics, "vllm:generation_tokens_total") == 10
    assert value(metrics, "vllm:request_success_total", finished_reason="length") == 2
    assert value(metrics, "vllm:prefix_cache_queries_total") == 73
    assert histogram(metrics, "vllm:inter_token_latency_seconds")["count"] == 8  # the first ones have none before
    for name in ("time_to_first_token", "e2e_request_latency", *(f"request_{part}_time" for part in PHASES)):
        assert histogram(metrics, f"vllm:{name}_seconds")["count"] == 2, name
    steps = histogram(metrics, "vllm:iteration_tokens_total")
    assert steps["sum"] == 73 + 8  # each token but the last of a request is computed once
    spent = {sample["labels"]["part"]: sample["value"] for sample in seconds(metrics)}
    assert spent.keys() == {"schedule", "run", "sample", "commit"}
    assert all(taken > 0 for taken in spent.values())


PHASES = ("queue", "prefill", "decode")


def seconds(metrics: Metrics) -> list[dict]:
    samples: list[dict] = metrics.snapshot()["sporelm:step_seconds_total"]["samples"]
    return samples


def test_phases_of_a_request_add_up():
    made = engine()
    request = made.add(Request([1, 2, 3], max_tokens=4))
    made.run([request])
    phases = [histogram(made.metrics, f"vllm:request_{phase}_time_seconds")["sum"] for phase in PHASES]
    first = histogram(made.metrics, "vllm:time_to_first_token_seconds")["sum"]
    whole = histogram(made.metrics, "vllm:e2e_request_latency_seconds")["sum"]
    between = histogram(made.metrics, "vllm:inter_token_latency_seconds")["sum"]
    assert first == pytest.approx(phases[0] + phases[1])
    assert between == pytest.approx(phases[2])
    assert sum(phases) <= whole + 1e-9


def test_the_ends_of_requests():
    made = engine()
    waiting, running, failing = (made.add(Request([number], max_tokens=9)) for number in (1, 2, 3))
    made.cancel(waiting)
    made.step()
    made.cancel(running)
    made.cancel(running)  # it has ended already
    made.runner.broken = True
    made.run([failing])
    metrics = made.metrics
    ends = {word: value(metrics, "vllm:request_success_total", finished_reason=word) for word in ("abort", "error")}
    assert ends == {"abort": 2, "error": 1}
    assert histogram(metrics, "vllm:request_queue_time_seconds")["count"] == 2  # one never ran
    assert value(metrics, "vllm:generation_tokens_total") == 2  # a step that fails says nothing


def test_prefixes_that_are_found_and_prefixes_that_are_missed():
    made = engine()
    text = [number % 90 for number in range(140)]
    for prompt in (text, text, [*text[:70], 91, *text[71:]]):
        made.run([made.add(Request(prompt, max_tokens=1))])
    made.run([made.add(Request(text, max_tokens=1, cache_salt="other"))])
    metrics = made.metrics
    assert value(metrics, "vllm:prefix_cache_hits_total") == 128 + 64
    missed = {kind: value(metrics, "sporelm:prefix_cache_misses_total", reason=kind) for kind in KINDS}
    assert missed == {"first_seen": 1, "evicted": 0, "differs": 1, "new_salt": 1}


KINDS = ("first_seen", "evicted", "differs", "new_salt")


def test_every_reason_has_a_kind():
    reasons = ("first seen", "evicted", "differs at token 70", "first request with this salt")
    assert tuple(map(classify_miss, reasons)) == KINDS


def test_preemptions():
    made = engine(num_pages=5, max_context=256)
    requests = [made.add(Request(list(range(60)), max_tokens=80, cache_salt=str(number))) for number in range(3)]
    made.run(requests)
    assert value(made.metrics, "vllm:num_preemptions_total") > 0
    assert value(made.metrics, "vllm:request_success_total", finished_reason="length") == 3


@pytest.mark.usefixtures("clock")
def test_guesses():
    made = engine(Speculation(Oracle(wrong=7)))
    made.run([made.add(Request([1, 2, 3], max_tokens=60))])
    metrics = made.metrics
    drafts = "vllm:spec_decode_num_"
    drafted, accepted = (value(metrics, f"{drafts}{kind}_tokens_total") for kind in ("draft", "accepted"))
    by_place = metrics.snapshot()[f"{drafts}accepted_tokens_per_pos_total"]["samples"]
    right = [sample["value"] for sample in by_place]
    assert drafted > accepted > 0
    assert sum(right) == accepted
    assert right == sorted(right, reverse=True)  # the second guess can be right only where the first one was
    assert right[0] <= value(metrics, f"{drafts}drafts_total") <= drafted
    assert value(metrics, "vllm:generation_tokens_total") == 60


def test_names_and_types_are_what_dashboards_expect():
    snapshot = engine().metrics.snapshot()
    assert json.loads(json.dumps(snapshot))
    for name, family in snapshot.items():
        assert name.startswith(("vllm:", "sporelm:"))
        assert family["type"] in ("counter", "gauge", "histogram")
        assert family["help"].endswith(".")
        # `iteration_tokens_total` is a histogram in vLLM too
        assert (family["type"] == "counter") == (name.endswith("_total") and "iteration" not in name)
    assert {0.01, 0.025, 80.0} < set(BETWEEN_TOKENS)


def test_reading_while_steps_run():
    made = engine()
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                sample = histogram(made.metrics, "vllm:inter_token_latency_seconds")
                assert sample["count"] == sample["buckets"][-1][1]
        except BaseException as failure:
            failures.append(failure)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(30):
        made.run([made.add(Request([number, 2], max_tokens=20)) for _ in range(3)])
    done.set()
    reader.join()
    assert not failures
    assert value(made.metrics, "vllm:generation_tokens_total") == 30 * 3 * 20
