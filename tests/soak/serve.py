"""Soak test of the server: `python tests/soak/serve.py --minutes 10 [--model FILE] [--connections N] [--seed N]`.

The server runs in its own process. Most clients misbehave at random (`serve_load.py`); a few are well-behaved and must
not be disturbed. At the end all requests must have finished, all KV pages must be free, and the log must hold no
traceback. `/health` must have answered in time throughout, the streams of the well-behaved clients must be the same as
alone, and the process must have the same number of open files and threads as when it was idle. Exit code 1 otherwise.

Memory is the resident set size of the server's process; `rss_mb` lists the medians of six consecutive parts of the
time. The first tenth does not count. In a run of five minutes or more the median of the last fifth may be at most 1.05
times the median of the first fifth: the number of open connections varies.
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

from soak.run import WARM_UP, WINDOW, Sample, course, grown_by, print_report, story  # noqa: E402
from soak.serve_load import ACTS, KEYS, ServerLoad, good, streamed  # noqa: E402
from soak.wire import fetch  # noqa: E402

GOOD = 6  # of the connections
BATCH = 8  # requests that run together
TRUTHS = 6  # prompts of the well-behaved clients
PATIENCE_S = 600.0  # in which any act finishes, on a busy machine
HEALTH_S = 5.0  # in which /health must answer
SETTLE_S = 60.0  # in which all pages are freed after the last request
TICK_S = 0.25
LEAK = 1.05
MIN_LEAK_CHECK_S = 240.0  # shorter runs are not checked for leaks
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
        """Measure the process; zeros where the system does not report a value."""
        place = Path(f"/proc/{self.popen.pid}")
        if not (place / "statm").exists():
            return Sample(0, 0, 0)
        pages = int((place / "statm").read_text().split()[1])
        return Sample(
            pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(place / "task")), len(os.listdir(place / "fd"))
        )


@dataclass
class Course:
    """Measurements taken while the clients run."""

    samples: list[Sample] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)


def start_server(model: Path | str, folder: Path, context: int, threads: int) -> Process:
    """Start a server and wait until it accepts requests. Raises RuntimeError with its log if it does not."""
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
    """Read the server's gauges of running and waiting requests and of KV pages in use."""
    answer = await fetch(load.port, "GET", "/metrics", None, KEYS["good"])
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "kv_pages_held")
    pairs = re.findall(r"^\w+:(\w+)\{[^}]*\} ([0-9.e+-]+)$", answer.body.decode(), re.MULTILINE)
    return {name: float(value) for name, value in pairs if name in gauges}


async def client(load: ServerLoad, until: float) -> None:
    """Perform random acts on new connections, again and again."""
    names, weights = list(ACTS), [weight for _, weight in ACTS.values()]
    while time.monotonic() < until and len(load.faults) < 20:
        name = load.random.choices(names, weights)[0]
        load.acts[name] += 1
        await timed(load, name, ACTS[name][0](load))
        await asyncio.sleep(load.random.random() ** 4 * 0.3)


async def well_behaved(load: ServerLoad, until: float) -> None:
    while time.monotonic() < until and len(load.faults) < 20:
        await timed(load, "good", good(load))


async def timed(load: ServerLoad, name: str, act: Any) -> None:
    """Await an act. A timeout is a fault, and so is a connection that the server should not have closed."""
    try:
        await patient(act, PATIENCE_S)
    except TimeoutError:
        load.faults.append(f"{name} did not end within {PATIENCE_S:.0f} s")
    except (ConnectionError, OSError) as reason:
        if name not in ("bad_head", "leave", "read_slowly", "send_slowly"):
            load.faults.append(f"{name}: the server closed the connection: {reason}"[:300])
    except Exception as reason:
        load.faults.append(f"{name}: {type(reason).__name__}: {reason}"[:300])


async def patient(awaitable: Any, seconds: float) -> tuple[Any, float]:
    """Await something; return its result and the seconds it took. Raises TimeoutError.

    Time in which this process is stopped, as a benchmark on the same machine may do, does not count.
    """
    task, spent = asyncio.ensure_future(awaitable), 0.0
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
    """Measure the process and check /health until the end."""
    found, began = Course(), time.monotonic()
    begin = began + WARM_UP * (until - began)
    while time.monotonic() < until:
        try:
            answer, spent = await patient(fetch(load.port, "GET", "/health"), HEALTH_S)
            found.health_s.append(spent)
            if answer.status != 200:
                load.faults.append(f"/health: {answer.status} {answer.body[:200]!r}")
        except (TimeoutError, OSError) as reason:
            load.faults.append(f"/health did not answer in {HEALTH_S:.0f} s: {reason}")
            if process.popen.poll() is not None:
                load.faults.append(f"the server exited with {process.popen.returncode}")
                return found
        if time.monotonic() >= begin:
            found.samples.append(process.sample())
        await asyncio.sleep(min(0.5, (until - began) / 100))
    return found


async def soak(process: Process, seconds: float, connections: int, seed: int, room: int) -> dict[str, Any]:
    """Load the server for this many seconds; return the report."""
    load = ServerLoad(process.port, Random(seed), room)
    await fill(load)
    await learn(load)
    await settle(load)
    before = process.sample()
    until = time.monotonic() + seconds
    watcher = asyncio.ensure_future(watch(load, process, until))
    others = max(1, connections - GOOD)
    await asyncio.gather(
        *(well_behaved(load, until) for _ in range(GOOD)), *(client(load, until) for _ in range(others))
    )
    found = await watcher
    await settle(load)
    await learn(load)
    await settle(load)
    return report(load, process, found, before, seconds)


async def fill(load: ServerLoad) -> None:
    """Write to every KV page and score a prompt, so that memory touched late is not counted as a leak."""
    body = {"max_tokens": 1, "logprobs": 1}
    prompts = [[load.random.randrange(9, 300) for _ in range(load.room - 2)] for _ in range(2 * BATCH)]
    await asyncio.gather(
        *(fetch(load.port, "POST", "/v1/completions", body | {"prompt": ids}, KEYS["good"]) for ids in prompts),
        fetch(load.port, "POST", "/v1/completions", body | {"prompt": prompts[0], "echo": True}, KEYS["good"]),
    )


async def learn(load: ServerLoad) -> None:
    """Record the continuations of the well-behaved clients' prompts, one by one on an idle server."""
    texts = list(load.truths) or [f"{number} {load.text()}" for number in range(TRUTHS)]
    for text in texts:
        answer = await streamed(load, text, KEYS["good"])
        if answer is None or load.truths.setdefault(text, answer) != answer:
            before = load.truths.get(text)
            load.faults.append(f"{text!r} is continued with {answer!r} on an idle server, was {before!r}")


async def settle(load: ServerLoad) -> None:
    """Drop all sessions and wait until all pages are free; anything that is still held is a fault."""
    for tenant in ("anna", "ben", "cleo"):
        for number in range(40):
            await fetch(load.port, "POST", "/drop", {"session_id": f"s{number}"}, KEYS[tenant])
    held = await figures(load)
    for _ in range(round(SETTLE_S / TICK_S)):
        if not any(held.values()):
            break
        await asyncio.sleep(TICK_S)
        held = await figures(load)
    load.faults += [f"{name} is {value:g} after the end" for name, value in held.items() if value]


def report(load: ServerLoad, process: Process, found: Course, before: Sample, seconds: float) -> dict[str, Any]:
    """The counts, faults and measurements of a run; `rss_grown` is the median at the end over that at the beginning."""
    after, samples = process.sample(), found.samples
    size = max(1, int(len(samples) * WINDOW))
    grown = grown_by([each.rss for each in samples[:size]], [each.rss for each in samples[-size:]])
    faults = list(load.faults)
    if seconds >= MIN_LEAK_CHECK_S and grown > LEAK:
        faults.append(f"memory grew {grown}-fold")
    if after.files > before.files + 2:
        faults.append(f"{after.files} files are open, {before.files} were open before")
    threads = max((each.threads for each in samples[: len(samples) // 2]), default=0)
    if after.threads > threads:  # threads that read and write files are kept once started
        faults.append(f"{after.threads} threads run, {threads} ran at half-time")
    process.popen.send_signal(signal.SIGTERM)
    try:
        code = process.popen.wait(60)
    except subprocess.TimeoutExpired:
        code = -1
    log = process.log.read_text(errors="replace")
    if code not in (0, 143):
        faults.append(f"the server exited with {code}")
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
    """Start a server in an empty folder and load it; `options` are those of `start_server`."""
    process = start_server(model, folder, **options)
    try:
        return asyncio.run(soak(process, seconds, connections, seed, options["context"]))
    finally:
        process.popen.kill()
        process.popen.wait()


def main() -> int:
    """Run the soak; return 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="smollm2", help="as `spore serve` takes it, or 'story', that of the tests")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if sys.platform == "linux" else 2)
    parser.add_argument("--max-context", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-log", type=Path, metavar="FILE", help="copy the server's log to this file at the end")
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
    return print_report(found, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
