"""Benchmark of overlap: how long a device that runs by itself waits for the engine.

Usage: python bench/overlap.py [MODEL] [--step-ms 5] [--steps 300] [--repeat 5] [--json]
The device is a stand-in: a step takes --step-ms from its launch, or from the end of the step before if that is later,
and computes nothing. The engine, its sampler and its grammars are real; grammars are compiled for MODEL's vocabulary
(SmolLM2 when none is named). As in `spore serve`, what is loaded is exempt from garbage collection. Each figure is the
time in which the device had nothing to do, as a share of the time in which it ran; "alone" is the same without overlap,
each step launched after the one before was committed.

greedy N       N streams that take the greatest logit
schema N       N streams held to a JSON schema, whose masks depend on the token before; one begins every third step
lockstep N     the same begun at once: all reach the costly masks near the end of a string in the same steps
"""

import argparse
import gc
from collections.abc import Sequence
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from benchmark_script import make_parser, print_json, run_script

from sporelm import LLM, Grammar, SamplingParams
from sporelm.engine import Engine, EngineConfig, ModelOutput, Request, Step
from sporelm.engine.runner import InputArrays
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.step import UNKNOWN

CONTEXT = 4096
SCHEMA = {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 200}, "minItems": 40}


class StandIn:
    """A device whose launches end at a time. What it returns is known at once, and may be read from then on."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.end_time = 0.0  # of the last launch
        self.idle_seconds = self.busy_seconds = 0.0

    def launch(self, seconds: float) -> float:
        """Launch work that takes `seconds`; return when it ends."""
        now = perf_counter()
        if self.end_time:
            self.idle_seconds += max(0.0, now - self.end_time)
        self.busy_seconds += seconds
        self.end_time = max(now, self.end_time) + seconds
        return self.end_time

    def fetch(self, handle: "Later") -> np.ndarray:
        while (rest := handle.ready_time - perf_counter()) > 0:
            sleep(max(0.0, rest - 1e-4))
        return handle.array

    def start_fetch(self, handle: "Later") -> "LaterFetch":
        return LaterFetch(self, handle)


class Later:
    """An array that is ready at a time."""

    def __init__(self, array: np.ndarray, ready_time: float) -> None:
        self.array, self.ready_time, self.shape = array, ready_time, array.shape

    def __getitem__(self, rows: slice) -> "Later":
        return Later(self.array[rows], self.ready_time)


class LaterFetch:
    """A copy to the host that has begun."""

    def __init__(self, device: StandIn, handle: Later) -> None:
        self.device, self.handle = device, handle

    def result(self) -> np.ndarray:
        return self.device.fetch(self.handle)


class StandInRunner:
    """Launches steps: inputs are filled as for a device, and each row's greatest logit is its position."""

    kv = "f16"

    def __init__(self, limits: EngineConfig, device: StandIn) -> None:
        self.limits, self.device, self.inputs = limits, device, InputArrays(limits)

    def run(self, step: Step, previous: Any = None) -> ModelOutput:
        arrays, extents = self.inputs.fill(step)
        if previous is not None:
            for each in step.sequences:
                if each.tokens[-1] == UNKNOWN:
                    _ = previous.rows[each.request_id]
        ready_time = self.device.launch(self.device.step_seconds)
        best = (arrays["positions"][arrays["rows"]] % 1000 + 300).astype(np.int32)
        logits = np.broadcast_to(np.float32(0), (extents["rows"], self.limits.vocab))
        return ModelOutput(Later(best, ready_time), Later(logits, ready_time), self.device)


class StandInPlan:
    """In place of a sampling program: takes an allowed token of each masked row."""

    def __init__(self, device: StandIn) -> None:
        self.device = device

    def launch(self, inputs: dict[str, Any], extents: dict[str, int]) -> dict[str, Later]:
        ready_time = self.device.launch(0.0)
        tokens = inputs["greedy"].array.copy()
        draws = np.stack([tokens, np.ones_like(tokens), np.zeros_like(tokens)], axis=1)
        if "mask_words" in inputs:
            for place, words in zip(inputs["mask_places"], inputs["mask_words"], strict=True):
                if place[0] >= 0:
                    tokens[place[0]] = draws[place[0], 0] = pick_allowed(words, int(tokens[place[0]]))
        return {"tokens": Later(tokens, ready_time), "draws": Later(draws, ready_time)}


def pick_allowed(words: np.ndarray, wanted: int) -> int:
    """Return the first allowed token from `wanted` on, or the first of all."""
    used = np.flatnonzero(words)
    at = used[np.searchsorted(used, wanted // 32) % len(used)]
    bits = int(words[at]) & 0xFFFFFFFF
    return int(at) * 32 + (bits & -bits).bit_length() - 1


class StandInSampler(DeviceSampler):
    """Builds the inputs of sampling programs as for a device."""

    def _plan(self, program: Any) -> Any:
        return StandInPlan(self.backend)


def measure(
    streams: int, constraints: Sequence[Any], vocab: int, args: argparse.Namespace, *, spacing: int = 0, overlaps: bool
) -> float:
    """Return the share of time in which the device had nothing to do. Streams begin `spacing` steps apart."""
    pages = streams * (CONTEXT // 64)
    limits = EngineConfig(CONTEXT, CONTEXT, vocab, max(streams, 512), streams, pages)
    device = StandIn(args.step_ms / 1000)
    engine = Engine(StandInRunner(limits, device), limits, device_sampler=StandInSampler(device, vocab))
    requests = []
    for number in range(streams):
        constraint = constraints[number] if constraints else None
        requests.append(engine.add(Request([1, 2, 3 + number], max_tokens=CONTEXT, constraint=constraint)))
        for _ in range(spacing):
            engine.step()
    assert engine.overlap is not None
    while any(not request.num_generated for request in requests):
        engine.step()
    device.idle_seconds = device.busy_seconds = 0.0
    for _ in range(args.steps):
        if not overlaps:
            engine.overlap.drain()
        engine.step()
    idle, busy = device.idle_seconds, device.busy_seconds
    for request in requests:
        engine.cancel(request)
    return idle / busy


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    rows = []
    with LLM(args.model, max_context=512) as llm:
        gc.collect()
        gc.freeze()
        vocab = llm.engine.limits.vocab
        params = SamplingParams(max_tokens=100, grammar=Grammar(json_schema=SCHEMA), ignore_eos=True)

        def make_constraints(count: int) -> list[Any]:
            return [llm.prepare_generation([1], params).request.constraint for _ in range(count)]

        for name, streams in (("greedy", 1), ("greedy", 64), ("greedy", 256), ("schema", 64), ("lockstep", 64)):
            found: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(args.repeat):
                for overlaps in (True, False):
                    constraints = () if name == "greedy" else make_constraints(streams)
                    spacing = 3 if name == "schema" else 0
                    idle = measure(streams, constraints, vocab, args, spacing=spacing, overlaps=overlaps)
                    found[overlaps].append(idle)
            row = {"name": f"{name} {streams}", "idle": median(found[True]), "alone": median(found[False])}
            rows.append(row | {"samples": found[True]})
            if not args.json:
                print(f"{row['name']:12} idle {row['idle']:7.2%}   alone {row['alone']:7.2%}", flush=True)
    if args.json:
        return print_json(rows)
    return 0


if __name__ == "__main__":
    run_script(main)
