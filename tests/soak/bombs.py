"""The cost of slow templates, regular expressions and grammars for streams that run at the same time.

Usage: python tests/soak/bombs.py [MODEL] [--seconds S] [--json]
MODEL is a .gguf file; default: the model of `spore pull`. The server loads it twice: as `honest`, and as `hostile` with
a chat template of nested loops. 16 streams of `honest` run all the time, and `/health` is requested every 10 ms. In the
first phase nothing else runs. In the second, clients repeatedly chat with `hostile` and request formats that are slow
to compile, each a different one. Exit code 1 if the 99th percentile of `/health` exceeds 100 ms, if that of the gaps
between tokens doubles, or if an attack gets anything but an error.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

USERS, HEALTH_EVERY, WARMUP = 16, 0.01, 3.0
MAX_HEALTH_SECONDS, MAX_GAP_RATIO = 0.1, 2.0
NESTED = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


def patterns(number: int) -> dict[str, Any]:
    """Return a schema that takes a minute to compile: an intersection of many expressions."""
    every = [{"type": "string", "pattern": f".*a{{{i}}}.*"} for i in range(1, 40)]
    return {"title": f"{number}", "allOf": every}


def multiple(number: int) -> dict[str, Any]:
    """Return a schema that takes 8 s and 400 MB to compile."""
    return {"type": "integer", "multipleOf": 999_983 - number}


def repeated(number: int) -> dict[str, Any]:
    """Return a schema with a regular expression of a million letters."""
    return {"type": "string", "pattern": f"^(a{{1000}}){{{1000 - number % 500}}}$"}


@dataclass
class Phase:
    """Measurements of one phase."""

    gaps: list[float] = field(default_factory=list)  # seconds between two tokens of one stream
    health: list[float] = field(default_factory=list)
    attacks: dict[str, list[float]] = field(default_factory=dict)  # seconds to the error
    wrong: list[str] = field(default_factory=list)


class Load:
    """Clients of one server, in threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.phase = Phase()
        self.stopping = threading.Event()
        self.attacking = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args)
        self.threads.append(thread)
        thread.start()

    def stream(self, number: int) -> None:
        """Stream one answer after the other and measure the gaps between tokens."""
        body = {"model": "honest", "temperature": 0.8, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            while not self.stopping.is_set():
                request = {**body, "prompt": f"{number} Once upon a time", "seed": number}
                with client.stream("POST", "/v1/completions", json=request) as answer:
                    last = None
                    for line in answer.iter_lines():
                        if not line.startswith("data: {"):
                            continue
                        now, phase = time.perf_counter(), self.phase
                        if last is not None:
                            phase.gaps.append(now - last)
                        last = now
                        if self.stopping.is_set():
                            break

    def health(self) -> None:
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            while not self.stopping.wait(HEALTH_EVERY):
                began, phase = time.perf_counter(), self.phase
                answer = client.get("/health")
                phase.health.append(time.perf_counter() - began)
                if answer.status_code != 200:
                    phase.wrong.append(f"/health: {answer.status_code} {answer.text[:200]}")

    def attack(self, name: str, body: Callable[[int], dict[str, Any]]) -> None:
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            number = 0
            while not self.stopping.is_set():
                if not self.attacking.wait(0.05):
                    continue
                number += 1
                began, phase = time.perf_counter(), self.phase
                answer = client.post("/v1/chat/completions", json={"max_tokens": 4, **body(number)})
                phase.attacks.setdefault(name, []).append(time.perf_counter() - began)
                if answer.status_code not in (400, 429):
                    phase.wrong.append(f"{name}: {answer.status_code} {answer.text[:200]}")

    def watch(self, seconds: float) -> Phase:
        """Measure one phase."""
        self.phase = phase = Phase()
        time.sleep(seconds)
        self.phase = Phase()
        return phase

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def hostile_copy(model: Path, folder: Path) -> Path:
    """Copy the model and give it a slow template."""
    copy, template = folder / "hostile.gguf", folder / "slow.jinja"
    shutil.copyfile(model, copy)
    template.write_text(NESTED)
    command = ["gguf", "set-meta", str(copy), "--file", f"tokenizer.chat_template={template}", "--in-place"]
    subprocess.run([sys.executable, "-m", "sporelm", *command], check=True, capture_output=True)
    return copy


@contextmanager
def served(honest: Path, hostile: Path) -> Iterator[str]:
    """Start a server with both models and yield its address."""
    words = ["serve", "--model", f"honest={honest}", "--model", f"hostile={hostile}", "--port", "0"]
    server = subprocess.Popen([sys.executable, "-m", "sporelm", *words], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        url = next(word for line in server.stderr for word in line.split() if word.startswith("http://"))
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield url.rstrip("/.,")
    finally:
        server.terminate()
        server.wait()


def schema(make: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    def body(number: int) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "form", "schema": make(number)}}
        return {"model": "honest", "messages": [{"role": "user", "content": "Hi"}], "response_format": form}

    return body


ATTACKS: dict[str, Callable[[int], dict[str, Any]]] = {
    "template": lambda number: {"model": "hostile", "messages": [{"role": "user", "content": f"{number}"}]},
    "expression": schema(repeated),
    "intersection": schema(patterns),
    "multiple": schema(multiple),
}


def figures(phase: Phase) -> dict[str, Any]:
    """Return milliseconds: median, 99th percentile and maximum."""

    def of(values: list[float]) -> list[float]:
        return [round(1e3 * float(value), 1) for value in (*np.percentile(values, [50, 99]), max(values))]

    found: dict[str, Any] = {"gaps": of(phase.gaps), "tokens": len(phase.gaps), "health": of(phase.health)}
    return found | {name: [*of(times), len(times)] for name, times in phase.attacks.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.model is None:
        from sporelm.files import store

        args.model = store.resolve(None)
    with tempfile.TemporaryDirectory() as folder:
        honest = Path(args.model)
        with served(honest, hostile_copy(honest, Path(folder))) as url:
            httpx.post(f"{url}/v1/completions", json={"model": "hostile", "prompt": "x", "max_tokens": 1}, timeout=120)
            load = Load(url)
            try:
                for number in range(USERS):
                    load.start(load.stream, number)
                load.start(load.health)
                for name, body in ATTACKS.items():
                    load.start(load.attack, name, body)
                time.sleep(WARMUP)
                before = load.watch(args.seconds)
                load.attacking.set()
                time.sleep(WARMUP)
                during = load.watch(args.seconds)
            finally:
                load.stop()
    quiet, loaded = figures(before), figures(during)
    ratio = loaded["gaps"][1] / quiet["gaps"][1]
    bad = [*before.wrong, *during.wrong]
    if loaded["health"][1] > 1e3 * MAX_HEALTH_SECONDS:
        bad.append(f"/health takes {loaded['health'][1]} ms at its 99th percentile")
    if ratio > MAX_GAP_RATIO:
        bad.append(f"gaps between tokens are {ratio:.2f} times as long at their 99th percentile")
    if args.json:
        print(json.dumps({"quiet": quiet, "loaded": loaded, "ratio": ratio, "wrong": bad}))
    else:
        print("ms: median, 99th percentile, maximum (of attacks also their number)")
        print("quiet ", quiet)
        print("loaded", loaded)
        print(f"gaps, 99th percentile, loaded / quiet: {ratio:.2f}")
        print(*bad[:10], sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
