"""The server's long run: `python tests/soak/serve.py --minutes 10 [--model FILE] [--connections N] [--seed N]`.

A server in a process of its own, and clients who do to it what they like (`serve_load.py`), among them some that behave
and must not notice. At the end every request has ended, all pages are back, no traceback is in the log, `/health` was
fine all the time, the streams of the well-behaved were what they are alone, and the process has as many open files and
threads as when it was idle before. Exit code 1 if not.

Memory is what the system counts as resident of the server's process; `rss_mb` are the medians of six parts of the time,
one after the other. The first tenth is not counted. In a run of five minutes or more the median of the last fifth may
be 1.05 times that of the first at most: what clients have open differs from one moment to the next.
"""

import argparse
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from soak.run import WARM_UP, WINDOW, Sample, course, grown_by, story, told  # noqa: E402
from soak.serve_load import ACTS, KEYS, ServerLoad, good, streamed  # noqa: E402
from soak.wire import asked  # noqa: E402

GOOD = 6  # of the connections
BATCH = 8  # requests that run together
TRUTHS = 6  # prompts of the well-behaved
PATIENCE_S = 600.0  # in which whatever was asked for has ended, on a busy machine
HEALTH_S = 5.0  # in which /health is answered
SETTLE_S = 60.0  # in which all is given back, once nobody asks
TICK_S = 0.25
LEAK = 1.05
LEAST_S = 240.0  # of a run whose memory is judged
CONFIG = """
port = 0
log = "json"
api_keys_file = "{folder}/keys"
session_dir = "{folder}/sessions"
max_waiting = 60
max_sessions = 6
max_connections = 600
max_body = "1M"
head_seconds = 3
body_seconds = 4
write_seconds = 4
request_seconds = 500
[models]
soak = "{model}"
[engine]
max_context = {context}
max_batch = {batch}
threads = {threads}
"""


@dataclass
class Process:
    """The server's process."""

    popen: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def sample(self) -> Sample:
        """What it has now; zeros where the system does not say."""
        place = Path(f"/proc/{self.popen.pid}")
        if not (place / "statm").exists():
            return Sample(0, 0, 0)
        pages = int((place / "statm").read_text().split()[1])
        return Sample(
            pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(place / "task")), len(os.listdir(place / "fd"))
        )


@dataclass
class Course:
    """What was measured while clients came and went."""

    samples: list[Sample] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)


def started(model: Path | str, folder: Path, context: int, threads: int) -> Process:
    """A server that takes requests. Raises RuntimeError with its log if it does not come up."""
    (folder / "keys").write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    config = folder / "serve.toml"
    config.write_text(
        CONFIG.format(folder=folder.as_posix(), model=model, context=context, batch=BATCH, threads=threads)
    )
    log = folder / "log"
    code = "import sys; from sporelm.cli.main import main; sys.exit(main())"
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--config", str(config)],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    until = time.monotonic() + PATIENCE_S
    while popen.poll() is None and time.monotonic() < until:
        if found := re.search(rb"http://127\.0\.0\.1:(\d+)", log.read_bytes()):
            return Process(popen, int(found[1]), log)
        time.sleep(0.05)
    popen.kill()
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


async def figures(load: ServerLoad) -> dict[str, float]:
    """The gauges of the server that tell what is left."""
    answer = await asked(load.port, "GET", "/metrics", None, KEYS["good"])
    wanted = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "kv_pages_held")
    pairs = re.findall(r"^\w+:(\w+)\{[^}]*\} ([0-9.e+-]+)$", answer.body.decode(), re.MULTILINE)
    return {name: float(value) for name, value in pairs if name in wanted}


async def client(load: ServerLoad, until: float) -> None:
    """One who is not well-behaved, again and again on connections of its own."""
    names, weights = list(ACTS), [weight for _, weight in ACTS.values()]
    while time.monotonic() < until and len(load.faults) < 20:
        name = load.random.choices(names, weights)[0]
        load.acts[name] += 1
        await timed(load, name, ACTS[name][0](load))
        await asyncio.sleep(load.random.random() ** 4 * 0.3)


async def well_behaved(load: ServerLoad, until: float) -> None:
    while time.monotonic() < until and len(load.faults) < 20:
        await timed(load, "good", good(load))


async def timed(load: ServerLoad, name: str, work: Any) -> None:
    """An act; a fault if it never ends, or the server hangs up on it where it should not."""
    try:
        await patient(work, PATIENCE_S)
    except TimeoutError:
        load.faults.append(f"{name} did not end within {PATIENCE_S:.0f} s")
    except (ConnectionError, OSError) as reason:
        if name not in ("bad_head", "leave", "read_slowly", "send_slowly"):
            load.faults.append(f"{name}: the server hung up: {reason}"[:300])
    except Exception as reason:
        load.faults.append(f"{name}: {type(reason).__name__}: {reason}"[:300])


async def patient(work: Any, seconds: float) -> tuple[Any, float]:
    """What some work gives, and how long it took; TimeoutError if that is too long. Time in which this process was
    stopped, as whoever measures on the same machine may do, does not count."""
    task, spent = asyncio.ensure_future(work), 0.0
    try:
        while spent <= seconds:
            began = time.monotonic()
            done, _ = await asyncio.wait({task}, timeout=TICK_S)
            spent += min(time.monotonic() - began, 2 * TICK_S)
            if done:
                return task.result(), spent
    finally:
        task.cancel()
    raise TimeoutError


async def watch(load: ServerLoad, process: Process, until: float) -> Course:
    """Measure the process and ask how it is, until the end."""
    found, began = Course(), time.monotonic()
    begin = began + WARM_UP * (until - began)
    while time.monotonic() < until:
        try:
            answer, spent = await patient(asked(load.port, "GET", "/health"), HEALTH_S)
            found.health_s.append(spent)
            if answer.status != 200:
                load.faults.append(f"/health: {answer.status} {answer.body[:200]!r}")
        except (TimeoutError, OSError) as reason:
            load.faults.append(f"/health did not answer in {HEALTH_S:.0f} s: {reason}")
            if process.popen.poll() is not None:
                load.faults.append(f"the server has ended with {process.popen.returncode}")
                return found
        if time.monotonic() >= begin:
            found.samples.append(process.sample())
        await asyncio.sleep(min(0.5, (until - began) / 100))
    return found


async def soak(process: Process, seconds: float, connections: int, seed: int, room: int) -> dict[str, Any]:
    """Load the server for so long; the report."""
    load = ServerLoad(process.port, Random(seed), room)
    await fill(load)
    await learn(load)
    await settle(load)
    before = process.sample()
    until = time.monotonic() + seconds
    watching = asyncio.ensure_future(watch(load, process, until))
    others = max(1, connections - GOOD)
    await asyncio.gather(
        *(well_behaved(load, until) for _ in range(GOOD)), *(client(load, until) for _ in range(others))
    )
    found = await watching
    await settle(load)
    await learn(load)
    await settle(load)
    return report(load, process, found, before, seconds)


async def fill(load: ServerLoad) -> None:
    """Have every page written to, and a prompt scored: memory that is used late is no leak."""
    body = {"max_tokens": 1, "logprobs": 1}
    prompts = [[load.random.randrange(9, 300) for _ in range(load.room - 2)] for _ in range(2 * BATCH)]
    await asyncio.gather(
        *(asked(load.port, "POST", "/v1/completions", body | {"prompt": ids}, KEYS["good"]) for ids in prompts),
        asked(load.port, "POST", "/v1/completions", body | {"prompt": prompts[0], "echo": True}, KEYS["good"]),
    )


async def learn(load: ServerLoad) -> None:
    """What the prompts of the well-behaved are continued with, one after the other on an idle server."""
    texts = list(load.truths) or [f"{number} {load.text()}" for number in range(TRUTHS)]
    for text in texts:
        said = await streamed(load, text, KEYS["good"])
        if said is None or load.truths.setdefault(text, said) != said:
            load.faults.append(f"{text!r} is continued with {said!r} on an idle server, was {load.truths.get(text)!r}")


async def settle(load: ServerLoad) -> None:
    """All has ended, and all pages are back once the sessions are dropped."""
    for owner in ("anna", "ben", "cleo"):
        for number in range(40):
            await asked(load.port, "POST", "/drop", {"session_id": f"s{number}"}, KEYS[owner])
    left = await figures(load)
    for _ in range(round(SETTLE_S / TICK_S)):
        if not any(left.values()):
            break
        await asyncio.sleep(TICK_S)
        left = await figures(load)
    load.faults += [f"{name} is {value:g} after the end" for name, value in left.items() if value]


def report(load: ServerLoad, process: Process, found: Course, before: Sample, seconds: float) -> dict[str, Any]:
    """What was done and found; `grown` are ratios of medians, the end's to the beginning's."""
    after, samples = process.sample(), found.samples
    size = max(1, int(len(samples) * WINDOW))
    grown = grown_by([each.rss for each in samples[:size]], [each.rss for each in samples[-size:]])
    faults = list(load.faults)
    if seconds >= LEAST_S and grown > LEAK:
        faults.append(f"memory grew {grown}-fold")
    if after.files > before.files + 2:
        faults.append(f"{after.files} files are open, {before.files} were")
    threads = max((each.threads for each in samples[: len(samples) // 2]), default=0)
    if after.threads > threads:  # those that read and write files stay once they are there
        faults.append(f"there are {after.threads} threads, there were {threads} at half-time")
    process.popen.send_signal(signal.SIGTERM)
    try:
        code = process.popen.wait(60)
    except subprocess.TimeoutExpired:
        code = -1
    log = process.log.read_text(errors="replace")
    if code not in (0, 143):
        faults.append(f"the server ended with {code}")
    faults += [line[:300] for line in log.splitlines() if "raceback" in line or '"level": "error"' in line][:5]
    return {
        "acts": dict(sorted(load.acts.items())),
        "statuses": dict(sorted(load.statuses.items())),
        "streams_compared": load.compared,
        "lines_of_log": log.count("\n"),
        "health_ms": round(1000 * max(found.health_s, default=0.0), 1),
        "rss_mb": course(samples) if samples else [],
        "rss_grown": grown,
        "threads": [before.threads, max((each.threads for each in samples), default=0), after.threads],
        "files": [before.files, max((each.files for each in samples), default=0), after.files],
        "exit": code,
        "faults": faults,
    }


def run(model: Path | str, seconds: float, connections: int, seed: int, folder: Path, **options: int) -> dict[str, Any]:
    """The whole of it, in an empty folder; `options` are those of `started`."""
    process = started(model, folder, **options)
    try:
        return asyncio.run(soak(process, seconds, connections, seed, options["context"]))
    finally:
        process.popen.kill()
        process.popen.wait()


def main() -> int:
    """Exit code 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="smollm2", help="as `spore serve` takes it, or 'story', that of the tests")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if sys.platform == "linux" else 2)
    parser.add_argument("--max-context", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-log", type=Path, metavar="FILE", help="where the server's log is put at the end")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = story(folder / "story") if args.model == "story" else args.model
        try:
            found = run(
                model, 60 * args.minutes, args.connections, args.seed, folder,
                context=args.max_context, threads=args.threads,
            )  # fmt: skip
        finally:
            if args.keep_log is not None and (folder / "log").exists():
                shutil.copyfile(folder / "log", args.keep_log)
    return told(found, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
