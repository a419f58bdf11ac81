"""The long run: `python tests/soak/run.py --minutes 30 [--model FILE] [--clients N] [--seed N] [--json]`.

Many clients at once do to one engine what they like (`load.py`). At the end every request has ended, all pages are
back, what some of the answers were is what they are alone, and memory, threads and open files are what they were after
the first tenth of the time. Exit code 1 if not.

Memory is what the system counts as resident of the whole process: pages, programs, threads' stacks, libraries, what
Python and native code hold, and what they have freed and not given back; nothing is trimmed before it is measured.
Every page of the pool is written to at first, and the first tenth of the time is not counted: in these what is used
late is used once. Then the median of the last fifth is at most 1.02 times that of the first; `rss_mb` are the medians
of six parts, one after the other, which show whether it still grows.
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

PATIENCE_S = 300.0  # in which whatever was asked for has ended, on a busy machine
WARM_UP = 0.1  # of the time, in which things are made that stay
WINDOW = 0.2  # of the time, at the beginning and at the end, that are compared
PARTS = 6  # of the time, of which the report tells the memory
LEAK = 1.02
TEMPLATE = """{% for message in messages %}<|start_story|>{{ message['content'] }}{% endfor %}<|start_story|>"""


class Sample(NamedTuple):
    """What a process has at a moment."""

    rss: int  # bytes
    threads: int
    files: int


def sample() -> Sample:
    """This process now; zeros where the system does not say."""
    threads = threading.active_count()
    if not Path("/proc/self/statm").exists():
        return Sample(0, threads, 0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(pages * os.sysconf("SC_PAGE_SIZE"), threads, len(os.listdir("/proc/self/fd")))


async def soak(model: Path, seconds: float, clients: int, seed: int, folder: Path, **options: Any) -> dict[str, Any]:
    """Load one engine for so long; the report."""
    async with AsyncLLM(model, **options) as llm:
        await llm.between_steps(lambda: touch(llm))
        load = Load(llm, folder, Random(seed))
        began = time.monotonic()
        until = began + seconds
        watching = asyncio.ensure_future(watch(began + WARM_UP * seconds, max(0.05, seconds / 2000), until))

        async def client() -> None:
            while time.monotonic() < until and len(load.faults) < 20:
                await act(load, PATIENCE_S)
                await asyncio.sleep(load.random.random() ** 4 * 0.1)

        await asyncio.gather(*(client() for _ in range(clients)))
        samples = await watching
        await settle(load)
        await compare(load)
        return report(load, samples)


def touch(llm: AsyncLLM) -> None:
    """Write to every page and state, so that memory that is used late is not taken for a leak."""
    runner = llm.llm.engine.runner
    for page in range(llm.llm.engine.limits.num_pages):
        runner.import_pages([page], [layer.copy() for layer in runner.export_pages([page])])
    for state in range(llm.llm.engine.limits.num_states):
        runner.import_states([state], runner.export_states([state]))


async def watch(begin: float, pause: float, until: float) -> list[Sample]:
    """Measure again and again, after the warm-up."""
    found = []
    while time.monotonic() < until:
        await asyncio.sleep(pause)
        if time.monotonic() >= begin:
            found.append(sample())
    return found


async def settle(load: Load) -> None:
    """All has ended, and everything is given back."""
    for talk in load.talks:
        talk.close()
    load.talks.clear()
    gc.collect()
    engine, until = load.llm.llm.engine, time.monotonic() + PATIENCE_S
    while not engine.scheduler.idle and time.monotonic() < until:
        await asyncio.sleep(0.05)
    await load.llm.between_steps(engine.check_integrity)
    left = {
        "requests": len(engine.scheduler.running) + len(engine.scheduler.waiting),
        "pages": engine.limits.num_pages - engine.store.pool.num_free,
        "states": engine.limits.num_states - engine.store.states.num_free if engine.store.states else 0,
        "sequences": len(engine.store.sequences),
        "samplers": len(engine.sampler.choices),
    }
    load.faults += [f"{count} {what} are left" for what, count in left.items() if count]


async def compare(load: Load) -> None:
    """Answers are what they are alone, with nothing that was computed before."""
    for number, (prompt, params, expected) in enumerate(load.checked):
        alone = await load.llm.generate(prompt, replace(params, salt=f"alone {number}"))
        if alone.token_ids != expected:
            load.faults.append(
                f"with {params}: {expected} beside others, {alone.token_ids} alone, after {prompt}"[:900]
            )


def report(load: Load, samples: list[Sample]) -> dict[str, Any]:
    """What was done and found; `grown` are ratios of medians, the end's to the beginning's."""
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
    """The ratio of the medians; 1 where nothing was measured."""
    return round(median(last) / median(first), 4) if first and median(first) else 1.0


def told(found: dict[str, Any], *, as_json: bool) -> int:
    """Print what a soak found; the exit code."""
    if as_json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{key}: {value}" for key, value in found.items() if key != "faults"))
        print("\n".join(found["faults"]) or "nothing is wrong")
    return 1 if found["faults"] else 0


def story(folder: Path) -> Path:
    """The story model with a chat template, in a folder."""
    copied(ROOT.parent / "shared" / "data" / "story", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def main() -> int:
    """Exit code 1 if anything is wrong."""
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
    return told(found, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
