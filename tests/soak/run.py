"""Soak test of the engine: `python tests/soak/run.py --minutes 30 [--model FILE] [--clients N] [--seed N] [--json]`.

Many clients load one engine at the same time with random acts (`load.py`). At the end all requests must have finished
and all KV pages must be free. Some answers are generated again alone and must be the same. Memory, threads and open
files must be as they were after the first tenth of the time. Exit code 1 otherwise.

Memory is the resident set size of the process, measured without trimming the heap first. All pages of the pool are
written to before the clients start, and the first tenth of the time does not count, so that memory is touched once
before it is measured. The median of the last fifth may be at most 1.02 times the median of the first fifth. `rss_mb`
lists the medians of six consecutive parts, which show whether memory still grows.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from copied import copied  # noqa: E402
from soak.load import Load, act  # noqa: E402
from sporelm import AsyncLLM  # noqa: E402

PATIENCE_S = 300.0  # in which any act finishes, on a busy machine
WARM_UP = 0.1  # of the time, in which caches fill
WINDOW = 0.2  # of the time: the length of the first and the last window, which are compared
PARTS = 6  # of the time; the report gives the memory of each
LEAK = 1.02
TEMPLATE = """{% for message in messages %}<|start_story|>{{ message['content'] }}{% endfor %}<|start_story|>"""


class Sample(NamedTuple):
    """Resources of a process at one moment."""

    rss: int  # bytes
    threads: int
    files: int


def sample() -> Sample:
    """Measure this process; zeros where the system does not report a value."""
    threads = threading.active_count()
    if not Path("/proc/self/statm").exists():
        return Sample(0, threads, 0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(pages * os.sysconf("SC_PAGE_SIZE"), threads, len(os.listdir("/proc/self/fd")))


async def soak(model: Path, seconds: float, clients: int, seed: int, folder: Path, **options: Any) -> dict[str, Any]:
    """Load one engine for this many seconds; return the report."""
    async with AsyncLLM(model, **options) as llm:
        await llm.run_between_steps(lambda: touch(llm))
        load = Load(llm, folder, Random(seed))
        began = time.monotonic()
        until = began + seconds
        watcher = asyncio.ensure_future(watch(began + WARM_UP * seconds, max(0.05, seconds / 2000), until))

        async def client() -> None:
            while time.monotonic() < until and len(load.faults) < 20:
                await act(load, PATIENCE_S)
                await asyncio.sleep(load.random.random() ** 4 * 0.1)

        await asyncio.gather(*(client() for _ in range(clients)))
        samples = await watcher
        await settle(load)
        await compare(load)
        return report(load, samples)


def touch(llm: AsyncLLM) -> None:
    """Write to every page and state, so that memory touched late is not counted as a leak."""
    runner = llm.llm.engine.runner
    for page in range(llm.llm.engine.limits.num_pages):
        runner.import_pages([page], [layer.copy() for layer in runner.export_pages([page])])
    for state in range(llm.llm.engine.limits.num_states):
        runner.import_states([state], runner.export_states([state]))


async def watch(begin: float, pause: float, until: float) -> list[Sample]:
    """Measure repeatedly after the warm-up."""
    found = []
    while time.monotonic() < until:
        await asyncio.sleep(pause)
        if time.monotonic() >= begin:
            found.append(sample())
    return found


async def settle(load: Load) -> None:
    """Wait until all requests have finished; anything that is still held is a fault."""
    for talk in load.talks:
        talk.close()
    load.talks.clear()
    gc.collect()
    engine, until = load.llm.llm.engine, time.monotonic() + PATIENCE_S
    while not engine.scheduler.is_idle and time.monotonic() < until:
        await asyncio.sleep(0.05)
    await load.llm.run_between_steps(engine.check_integrity)
    held = {
        "requests": len(engine.scheduler.running) + len(engine.scheduler.waiting),
        "pages": engine.limits.num_pages - engine.kv_cache.pages.num_free,
        "states": engine.limits.num_states - engine.kv_cache.states.num_free if engine.kv_cache.states else 0,
        "sequences": len(engine.kv_cache.sequences),
        "samplers": len(engine.sampler.states),
    }
    load.faults += [f"{count} {what} are still held" for what, count in held.items() if count]


async def compare(load: Load) -> None:
    """Generate answers again, alone and without the prefix cache; they must be the same."""
    for number, (prompt, params, expected) in enumerate(load.checked):
        alone = await load.llm.generate(prompt, replace(params, salt=f"alone {number}"))
        if alone.token_ids != expected:
            load.faults.append(f"with {params}: {expected} in a batch, {alone.token_ids} alone, after {prompt}"[:900])


def report(load: Load, samples: list[Sample]) -> dict[str, Any]:
    """The counts and faults of a run; `grown` is the median at the end over the median at the beginning."""
    size = max(1, int(len(samples) * WINDOW))
    first, last = samples[:size], samples[-size:]
    grown = {
        name: grown_by(*([getattr(each, name) for each in part] for part in (first, last))) for name in Sample._fields
    }
    faults = list(load.faults)
    faults += [f"{name} grew {ratio}-fold" for name, ratio in grown.items() if ratio > LEAK]
    return {
        "acts": dict(sorted(load.acts.items())),
        "refused": load.refused,
        "compared": len(load.checked),
        "samples": len(samples),
        "rss_mb": course(samples),
        "grown": grown,
        "faults": faults,
    }


def course(samples: list[Sample]) -> list[float]:
    """The median memory of each part of the time, in MB."""
    edges = [number * len(samples) // PARTS for number in range(PARTS + 1)]
    parts = [samples[begin:end] for begin, end in pairwise(edges)]
    return [round(median(each.rss for each in part) / 1e6, 1) for part in parts if part]


def grown_by(first: list[int], last: list[int]) -> float:
    """Return the ratio of the medians; 1 where nothing was measured."""
    return round(median(last) / median(first), 4) if first and median(first) else 1.0


def print_report(found: dict[str, Any], *, as_json: bool) -> int:
    """Print a report; return the exit code."""
    if as_json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{key}: {value}" for key, value in found.items() if key != "faults"))
        print("\n".join(found["faults"]) or "no faults")
    return 1 if found["faults"] else 0


def story(folder: Path) -> Path:
    """Copy the story model to a folder and add a chat template."""
    copied(ROOT.parent / "shared" / "data" / "story", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def main() -> int:
    """Run the soak; return 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", help="a model as `spore run` takes it; default: the story model of the tests")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-context", type=int, default=512)
    parser.add_argument("--speculate", choices=("ngram",))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    options = {"threads": args.threads, "max_context": args.max_context, "max_batch": 8, "speculate": args.speculate}
    with tempfile.TemporaryDirectory() as name:
        model = args.model or story(Path(name) / "story")
        found = asyncio.run(soak(model, 60 * args.minutes, args.clients, args.seed, Path(name), **options))
    return print_report(found, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
