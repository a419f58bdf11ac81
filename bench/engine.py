"""Benchmarks of the engine under load: every figure is a ratio of two times taken in the same run.

Usage: python bench/engine.py [MODEL] [--only NAME,..] [--threads N] [--repeat N] [--json]
MODEL is what `spore run` takes; SmolLM2 when none is named. The names:

stall      8 answers run, prompts of 512 tokens arrive now and then: 99th percentile, and median, of the time between
           two tokens of an answer while they are computed / the median while there are none; and the same percentile
           while there are none, which is what the machine itself does
prefix     a prompt of 3,000 tokens, and another that shares all but its end: time to first token, second / first
wake       a conversation of 2,000 tokens woken from its file and continued / computed again
overhead   16 answers run: share of a step that is not the back-end's (its thread's time, median)
ngram      one answer that repeats its prompt, without guesses / with --speculate ngram: how many times faster; `else`
           is text that does not repeat
schema     8 answers run, each held to a JSON schema / free: time of a token, less 1
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

from sporelm import LLM, Grammar, SamplingParams  # noqa: E402
from sporelm.engine import Request  # noqa: E402
from sporelm.errors import SporeError  # noqa: E402
from sporelm.files import store  # noqa: E402

REPEATING = [
    "List: apple, banana, cherry, date, elderberry, fig, grape, lemon, mango, orange.\n" * 3 + "List:",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
    "    return width * height * depth\n\n\n" * 2 + "def area(width, height):\n",
    "Name: Anna\nCity: Paris\nJob: baker\nName: Ben\nCity: Rome\nJob: baker\nName: Carl\nCity: Oslo\nJob: baker\nName:",
]
OTHER = [
    "The history of the Roman empire begins with",
    "Once upon a time, a small robot",
    "The best way to cook rice is",
]
SCHEMA = {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 40}


class Bench:
    """The measurements on one model; each gives its ratio in every repeat."""

    def __init__(self, model: str | None, threads: int | None, repeat: int) -> None:
        self.path = store.resolve(model)
        self.threads = threads
        self.repeat = repeat
        self.random = np.random.default_rng(0)

    @contextmanager
    def open_llm(self, **options: Any) -> Iterator[LLM]:
        with LLM(self.path, threads=self.threads, **options) as llm:
            llm.bench_decode(8, batch=2)  # programs are made, pages touched
            yield llm

    def ids(self, llm: LLM, count: int) -> list[int]:
        found: list[int] = self.random.integers(0, llm.config.vocab, count).tolist()
        return found

    def stall(self) -> dict[str, list[float]]:
        with self.open_llm(max_context=2048) as llm:
            self.calm = list[float]()
            self.typical = list[float]()
            busy = [self._stalled(llm) for _ in range(self.repeat)]
            return {"p99 / median": busy, "median / median": self.typical, "calm: p99 / median": self.calm}

    def _stalled(self, llm: LLM) -> float:
        engine = llm.engine
        answers = [engine.add(Request(self.ids(llm, 128), max_tokens=1500)) for _ in range(8)]
        while any(not answer.num_generated for answer in answers):
            engine.step()
        calm = [self._gap(llm) for _ in range(20)][20:]
        busy = list[float]()
        for _ in range(6):
            calm += [self._gap(llm) for _ in range(40)]
            prompt = engine.add(Request(self.ids(llm, 512), max_tokens=1))
            while prompt.finish_reason is None:
                busy.append(self._gap(llm))
        for answer in answers:
            engine.cancel(answer)
        self.calm.append(quantiles(calm, n=100)[98] / median(calm))
        self.typical.append(median(busy) / median(calm))
        return quantiles(busy, n=100)[98] / median(calm)

    def _gap(self, llm: LLM) -> float:
        """Seconds of a step: every answer that runs gets a token in it, so it is the time between two of them."""
        began = perf_counter()
        llm.engine.step()
        return perf_counter() - began

    def prefix(self) -> dict[str, list[float]]:
        ratios = []
        with self.open_llm(max_context=4096) as llm:
            for _ in range(self.repeat):
                shared = self.ids(llm, 3000)
                first, second = (
                    llm.generate([[*shared, *self.ids(llm, 20)]], SamplingParams(max_tokens=1))[0].timings.ttft_s
                    for _ in range(2)
                )
                ratios.append(second / first)
        return {"second / first": ratios}

    def wake(self) -> dict[str, list[float]]:
        ratios = []
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        with tempfile.TemporaryDirectory() as folder, self.open_llm(max_context=4096) as llm:
            for number in range(self.repeat):
                text = " ".join(f"{llm.tokenizer.decode(self.ids(llm, 1))}" for _ in range(1600))
                path = Path(folder) / f"{number}.session"
                talk = llm.conversation()
                began = perf_counter()
                list(talk.ask(text, params))
                computing = perf_counter() - began
                talk.sleep(path)
                for cold in range(20):  # others use the pages: nothing of it can be found there
                    llm.generate([self.ids(llm, 3500)], SamplingParams(max_tokens=1)) if not cold % 2 else None
                began = perf_counter()
                woken = llm.wake(path)
                list(woken.ask("Go on.", params))
                ratios.append((perf_counter() - began) / computing)
                woken.close()
        return {"woken / computed": ratios}

    def overhead(self) -> dict[str, list[float]]:
        shares = []
        native = 0.0
        with self.open_llm(max_context=1024) as llm:
            thread_pool = llm.backend.thread_pool  # type: ignore[attr-defined]
            inner = thread_pool.run

            def timed(*args: Any) -> Any:
                nonlocal native
                began = thread_time()
                found = inner(*args)
                native += thread_time() - began
                return found

            thread_pool.run = timed
            for _ in range(self.repeat):
                shares.append(self._share(llm, lambda: native))
        return {"share": shares}

    def _share(self, llm: LLM, native: Callable[[], float]) -> float:
        engine = llm.engine
        answers = [engine.add(Request(self.ids(llm, 128), max_tokens=400)) for _ in range(16)]
        while any(not answer.num_generated for answer in answers):
            engine.step()
        shares = []
        for _ in range(200):
            before = native()
            began = thread_time()
            engine.step()
            whole = thread_time() - began
            shares.append(1 - (native() - before) / whole)
        for answer in answers:
            engine.cancel(answer)
        return median(shares)

    def ngram(self) -> dict[str, list[float]]:
        greedy = SamplingParams(max_tokens=160, temperature=0.0, ignore_eos=True)
        sampled = SamplingParams(max_tokens=160, temperature=0.9, seed=3, ignore_eos=True)
        cases = {"repeating": (REPEATING, greedy), "else, greedy": (OTHER, greedy), "else, sampled": (OTHER, sampled)}
        found: dict[str, list[float]] = {name: [] for name in cases}
        with self.open_llm() as plain, self.open_llm(speculate="ngram") as guessing:
            for turn in range(self.repeat + 1):
                for name, (prompts, params) in cases.items():
                    times = [[self._seconds(llm, prompt, params) for prompt in prompts] for llm in (plain, guessing)]
                    if turn:
                        found[name].append(sum(times[0]) / sum(times[1]))
        return found

    def _seconds(self, llm: LLM, prompt: str, params: SamplingParams) -> float:
        began = perf_counter()
        llm.generate(prompt, params)
        return perf_counter() - began

    def schema(self) -> dict[str, list[float]]:
        grammar = Grammar(json_schema=SCHEMA)
        found: dict[str, list[float]] = {"greedy": [], "sampled": []}
        with self.open_llm(max_context=1024) as llm:
            for turn in range(self.repeat + 1):
                for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
                    params = SamplingParams(max_tokens=150, temperature=temperature, seed=1, ignore_eos=True)
                    free, held = (self._token(llm, replace(params, grammar=each)) for each in (None, grammar))
                    if turn:
                        found[name].append(held / free - 1)
        return found

    def _token(self, llm: LLM, params: SamplingParams) -> float:
        """Seconds of the steps in which 8 answers run, by the tokens that each got."""
        engine = llm.engine
        prompts = [f"{OTHER[0]} A JSON list of long names, number {number}:" for number in range(8)]
        answers = [llm.prepare_generation(llm.prompt_ids(prompt), params) for prompt in prompts]
        for answer in answers:
            engine.add(answer.request)
        while any(not answer.request.num_generated for answer in answers):
            engine.step()
        before = sum(answer.request.num_generated for answer in answers)
        began = perf_counter()
        while all(answer.request.finish_reason is None for answer in answers):
            engine.step()
        taken = perf_counter() - began
        tokens = sum(answer.request.num_generated for answer in answers) - before
        for answer in answers:
            engine.cancel(answer.request)
        return taken / tokens


NAMES = ("stall", "prefix", "wake", "overhead", "ngram", "schema")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error(f"--repeat is {args.repeat}: it must be at least 1")
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"no measurement {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    rows = []
    try:
        bench = Bench(args.model, args.threads, args.repeat)
        for name in wanted:
            for what, values in getattr(bench, name)().items():
                rows.append({"name": name, "what": what, "median": round(median(values), 4),
                             "samples": [round(value, 4) for value in values]})  # fmt: skip
                if not args.json:
                    spread = f"{min(values):.3f} to {max(values):.3f}"
                    print(f"{name:10} {what:18} {median(values):7.3f}   ({spread})", flush=True)
    except SporeError as reason:
        print(f"engine.py: {reason}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
