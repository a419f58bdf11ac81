"""Benchmarks of the server: figures and ratios that were taken in the same run.

Usage: python bench/server.py [MODEL] [--only NAME,..] [--peer DIR] [--threads N] [--repeat N] [--json]
MODEL is what `spore run` takes; SmolLM2 when none is named. The servers are started as processes, and ended. The names:

tax     16 answers stream, each of 64 tokens after a prompt of 128, all asked for at once: tokens a second through HTTP
        / of the engine alone (`LLM.generate`, and bare steps, in this process with the server's settings), by a client
        over plain sockets that only counts bytes; the prompts are the same, and new in each round
ttfb    an idle server answers one token to a prompt that it has in its cache, over a connection that is kept:
        milliseconds to the first byte, streamed also to the first event (of a chat, one that has no text yet), and to
        the end, which comes after the token; median and 90th percentile of 50 requests. `cached` and `computed` are
        the prompt's tokens: a page that is not full is computed again
peer    the same 16 users: our server / llama.cpp's llama-server -np 16 in DIR (bench/peer.sh builds it), with the same
        prompts and threads, in turns, with flash attention off and on; the better one counts
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

import numpy as np  # noqa: E402
from raw_http import Address, ServerFailure, SingleConnection, Together, model_file, request, serving, together  # noqa: E402

from sporelm import LLM, SamplingParams  # noqa: E402
from sporelm.api.cpu_count import usable_cores  # noqa: E402
from sporelm.bench.peer import FLASH_ATTENTION, find_tool  # noqa: E402
from sporelm.engine import Request  # noqa: E402
from sporelm.errors import SporeError  # noqa: E402
from sporelm.files import store  # noqa: E402
from sporelm.text import load_tokenizer  # noqa: E402

USERS = 16
PROMPT = 128
NEW = 64
SLOT = 512  # positions of each of the peer's slots
NUM_MEASURED = 50  # requests of `ttfb`
NUM_WARMUP = 5  # requests before them
GREEDY = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True)

Prompts = list[list[int]]
Row = dict[str, Any]


class Bench:
    """The measurements on one model; each gives rows."""

    def __init__(self, model: str | None, threads: int | None, repeat: int, peer: Path | None) -> None:
        self.path = store.resolve(model)
        self.repeat = repeat
        self.peer_folder = peer
        self.threads = threads or usable_cores()
        self.random = np.random.default_rng(0)
        self.vocab = load_tokenizer(self.path).vocab_size

    @contextmanager
    def ours(self) -> Iterator[Address]:
        """Our server, with its own defaults."""
        code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sporelm.cli.main import main; sys.exit(main())"
        words = [str(ROOT / "src"), "serve", f"bench={self.path}", "--port", "{port}", "--threads", str(self.threads)]
        with serving([sys.executable, "-c", code, *words], "spore serve") as server:
            yield server

    @contextmanager
    def theirs(self, folder: Path, flash: str) -> Iterator[Address]:
        """llama-server with a slot for each user. It keeps no copies of what slots forget, which would cost time."""
        words = ["-m", str(model_file(self.path)), "-t", str(self.threads), "-np", str(USERS), "-fa", flash]
        words += ["-c", str(USERS * SLOT), "--host", "127.0.0.1", "--port", "{port}", "--no-webui", "--cache-ram", "0"]
        with serving([str(find_tool(folder, "llama-server")), *words], "llama-server") as server:
            yield server

    def prompts(self) -> Prompts:
        """One for each user, with nothing in common."""
        found: Prompts = self.random.integers(0, self.vocab, (USERS, PROMPT)).tolist()
        return found

    def http(self, server: Address, prompts: Prompts) -> Together:
        """All of them at once, streamed. Raises ServerFailure unless each answer has its tokens."""
        body = {"max_tokens": NEW, "temperature": 0, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        found = together(server, [request("/v1/completions", {**body, "prompt": prompt}) for prompt in prompts])
        if found.tokens != len(prompts) * NEW:
            raise ServerFailure(f"the server made {found.tokens} tokens, {len(prompts) * NEW} were asked for")
        return found

    def tax(self) -> list[Row]:
        found: dict[str, list[float]] = {"http": [], "LLM": [], "steps": [], "client": []}
        with self.ours() as server, LLM(self.path, threads=self.threads) as llm:
            for turn in range(self.repeat + 1):
                prompts = self.prompts()
                taken = self.http(server, prompts)
                generated = self.generated(llm, prompts)
                stepped = self.stepped(llm, prompts)
                if turn:
                    found["http"].append(taken.tok_s)
                    found["LLM"].append(generated)
                    found["steps"].append(stepped)
                    found["client"].append(taken.client)
        return [
            row("tax", "http tok/s", found["http"]),
            row("tax", "LLM tok/s", found["LLM"]),
            row("tax", "steps tok/s", found["steps"]),
            row("tax", "http / LLM", ratios(found["http"], found["LLM"])),
            row("tax", "http / steps", ratios(found["http"], found["steps"])),
            row("tax", "client's share of a core", found["client"]),
        ]

    def generated(self, llm: LLM, prompts: Prompts) -> float:
        """Tokens a second of the engine with texts, without a server."""
        began = perf_counter()
        tokens = sum(len(each.token_ids) for each in llm.generate(prompts, GREEDY))
        return tokens / (perf_counter() - began)

    def stepped(self, llm: LLM, prompts: Prompts) -> float:
        """Tokens a second of the engine's steps alone, as `spore bench --whole` has it; its cache is its own."""
        requests = [Request(prompt, max_tokens=NEW, cache_salt="steps") for prompt in prompts]
        began = perf_counter()
        for each in requests:
            llm.engine.add(each)
        llm.engine.run(requests)
        return sum(each.num_generated for each in requests) / (perf_counter() - began)

    def ttfb(self) -> list[Row]:
        # Both are longer than two pages, the chat together with its template.
        text = "Say yes. " * 40
        more = "Say yes. " * 45
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}
        plain = {"prompt": more, "max_tokens": 1, "temperature": 0}
        rows: list[Row] = []
        with self.ours() as server:
            for name, path, body in (("chat", "/v1/chat/completions", chat), ("completions", "/v1/completions", plain)):
                rows += self.cached(server, name, request(path, body))
                rows += self.first_bytes(server, name, request(path, body))
                rows += self.first_bytes(server, f"{name}, streamed", request(path, {**body, "stream": True}))
        return rows

    def cached(self, server: Address, name: str, data: bytes) -> list[Row]:
        """How much of a prompt is found again once it was asked for."""
        client = SingleConnection(server)
        try:
            client.ask(data)
            tail = client.ask(data)[1].tail
        finally:
            client.close()
        found = {what: int(number) for what, number in re.findall(rb'"(prompt|cached)_tokens":(\d+)', tail)}
        cached = float(found[b"cached"])
        computed = found[b"prompt"] - cached
        return [row("ttfb", f"{name}: cached", [cached]), row("ttfb", f"{name}: computed", [computed])]

    def first_bytes(self, server: Address, name: str, data: bytes) -> list[Row]:
        """One request after the other."""
        client = SingleConnection(server)
        try:
            times = [client.ask(data)[0] for _ in range(NUM_WARMUP + NUM_MEASURED)][NUM_WARMUP:]
        finally:
            client.close()
        found = [row("ttfb", f"{name}: first byte, ms", [1e3 * each.first_byte for each in times])]
        if "streamed" in name:
            found.append(row("ttfb", f"{name}: first event, ms", [1e3 * each.first_event for each in times]))
        return [*found, row("ttfb", f"{name}: whole, ms", [1e3 * each.whole for each in times])]

    def peer(self) -> list[Row]:
        if self.peer_folder is None:
            raise ServerFailure("the peer's folder is missing: give --peer DIR (bench/peer.sh builds it)")
        found: dict[str, list[float]] = {name: [] for name in ("ours", *FLASH_ATTENTION, "client")}
        with ExitStack() as stack:
            ours = stack.enter_context(self.ours())
            theirs = {flash: stack.enter_context(self.theirs(self.peer_folder, flash)) for flash in FLASH_ATTENTION}
            for turn in range(self.repeat + 1):
                prompts = self.prompts()
                taken = self.http(ours, prompts)
                others = {flash: self.http(server, prompts).tok_s for flash, server in theirs.items()}
                if turn:
                    found["ours"].append(taken.tok_s)
                    found["client"].append(taken.client)
                    for flash, speed in others.items():
                        found[flash].append(speed)
        best = max(FLASH_ATTENTION, key=lambda flash: median(found[flash]))
        return [
            row("peer", "ours tok/s", found["ours"]),
            *(row("peer", f"llama-server tok/s, -fa {flash}", found[flash]) for flash in FLASH_ATTENTION),
            row("peer", f"ours / llama-server (-fa {best})", ratios(found["ours"], found[best])),
            row("peer", "client's share of a core", found["client"]),
        ]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def row(name: str, what: str, samples: Sequence[float]) -> Row:
    """A row of the table."""
    high = quantiles(samples, n=10, method="inclusive")[8] if len(samples) > 1 else samples[0]
    digits = {"median": round(median(samples), 4), "p90": round(high, 4)}
    return {"name": name, "what": what, **digits, "samples": [round(sample, 4) for sample in samples]}


NAMES = ("tax", "ttfb", "peer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--only", help="default: all, peer only with --peer")
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for name in ("repeat", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            parser.error(f"--{name} is {value}: it must be at least 1")
    wanted = args.only.split(",") if args.only else [name for name in NAMES if name != "peer" or args.peer]
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"no measurement {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    rows = []
    try:
        bench = Bench(args.model, args.threads, args.repeat, args.peer)
        for name in wanted:
            for found in getattr(bench, name)():
                rows.append(found)
                if not args.json:
                    spread = f"{min(found['samples']):.3f} to {max(found['samples']):.3f}, p90 {found['p90']:.3f}"
                    print(f"{name:6} {found['what']:36} {found['median']:9.3f}   ({spread})", flush=True)
    except (SporeError, ServerFailure) as reason:
        print(f"server.py: {reason}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
