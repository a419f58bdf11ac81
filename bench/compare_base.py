"""Compare this source with a base commit, bit for bit, on the same models, in the same run, on the same CPU.

Usage: python bench/compare_base.py [--base COMMIT] [--head TREE] [--only PATTERN] [--part I/N] [--targets NAME,..]
       [--modes planned,eager,files] [--jobs N] [--models FOLDER] [--pull] [--json]

The base commit is checked out into a temporary git worktree and runs from its own `src` with this interpreter. The
models are written once, by the tests of the base: every case of tests/families as a Hugging Face folder and as a GGUF
file, and quantized ones. Then both trees compute, one process for each tree, target and mode:

planned, eager   logits of a prompt, greedy tokens, vectors and scores of encoders; 64 greedy tokens of the story model
                 in ../shared and of SmolLM2, if they are installed
files            SHA-256 of what `spore gguf from-hf`, `to-hf` and `quantize` write

Exit code 1 if any result differs. Errors are compared by their class only, since messages may be reworded.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

BASE = "4113442"
ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(__file__).resolve().parent
STORY = ROOT.parent / "shared" / "data" / "story"
MODES = ("planned", "eager", "files")
TREES = ("base", "head")
CLEAR = "\r\033[K" if sys.stderr.isatty() else ""  # the progress line


@dataclass(frozen=True)
class Run:
    """One process: a tree that computes all results of a target and mode."""

    tree: str  # "base" or "head"
    target: str
    mode: str

    @property
    def name(self) -> str:
        return self.mode if self.mode == "files" else f"{self.mode} {self.target}"


@dataclass
class Comparison:
    """The results of all runs by run and name, and the state of the progress line."""

    results: dict[Run, dict[str, dict[str, Any]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=monotonic)
    cpu_seconds: dict[Run, float] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def add(self, run: Run, line: str) -> None:
        """Keep a result; report a difference as soon as both trees have one."""
        result = json.loads(line)
        if "cpu_seconds" in result:
            self.cpu_seconds[run] = result["cpu_seconds"]
            return
        with self.lock:
            self.results.setdefault(run, {})[result["name"]] = result
            other = self.results.get(Run(TREES[run.tree == "base"], run.target, run.mode), {}).get(result["name"])
            if other is not None and other["digest"] != result["digest"]:
                print(f"{CLEAR}different: {run.name}: {result['name']}", file=sys.stderr)
            self.show()

    def show(self) -> None:
        """Write the progress line: results so far of each run."""
        if sys.stderr.isatty():
            counts = [f"{run.tree} {run.name} {len(found)}" for run, found in self.results.items()][-4:]
            print(f"{CLEAR}{monotonic() - self.started:4.0f} s  {'  '.join(counts)}", end="", file=sys.stderr)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each target and mode: results, equal ones, and the different ones with both values."""
        for base in [run for run in self.results if run.tree == "base"]:
            head = Run("head", base.target, base.mode)
            old, new = self.results[base], self.results.get(head, {})
            names = sorted(old.keys() | new.keys())
            different = [
                {
                    "name": name,
                    "base": old.get(name),
                    "head": new.get(name),
                    "by": distance(old.get(name), new.get(name)),
                }
                for name in names
                if digest(old.get(name)) != digest(new.get(name))
            ]
            failed = [name for name in names if str(digest(old.get(name))).startswith("failed")]
            refused = [name for name in names if str(digest(old.get(name))).startswith("refused")]
            yield {
                "run": base.name,
                "results": len(names),
                "equal": len(names) - len(different),
                "different": different,
                "refused": refused,
                "failed": failed,
                "cpu_seconds": {
                    tree: round(self.cpu_seconds.get(Run(tree, base.target, base.mode), 0)) for tree in TREES
                },
            }


def digest(result: dict[str, Any] | None) -> str | None:
    return None if result is None else result["digest"]


def distance(base: dict[str, Any] | None, head: dict[str, Any] | None) -> str:
    """How two results differ, in words."""
    if base is None or head is None:
        return f"only {'head' if base is None else 'base'} has this result"
    if not base["array"] or not head["array"]:
        return f"{base['digest'][:60]} -> {head['digest'][:60]}"
    old, new = np.load(base["array"]), np.load(head["array"])
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"{old.dtype}{list(old.shape)} -> {new.dtype}{list(new.shape)}"
    count = int((old != new).sum())
    largest = float(np.abs(old.astype(np.float64) - new).max())
    return f"{count} of {old.size} numbers, by up to {largest:.3g} (range {float(np.ptp(old)):.3g})"


@contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """A checkout of a commit, removed afterwards."""
    place = folder / "base"
    git = ["git", "-C", str(ROOT), "worktree"]
    try:
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
    except subprocess.CalledProcessError:
        sys.exit(f"commit {commit} cannot be checked out: fetch it (git fetch --unshallow), or name one with --base")
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=False)


def environment(tree: Path, *others: str, target: str = "") -> dict[str, str]:
    """Variables of a process that imports sporelm from a tree."""
    path = os.pathsep.join(str(tree / each) for each in ("src", *others))
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPORE_CPU_TARGET")}
    # The hash seed fixes the order of sets, on which the order of keys in a written config.json may depend.
    fixed = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "SPORE_THREADS": "1"}
    return kept | fixed | ({"SPORE_CPU_TARGET": target} if target else {})


def write_models(base: Path, folder: Path, only: str, part: str) -> None:
    """Write the models with the base's tests, unless the folder has them already."""
    if (folder / "models.json").exists():
        print(f"models: those in {folder}", file=sys.stderr)
        return
    command = [sys.executable, str(BENCH / "compare_models.py"), str(folder), "--only", only, "--part", part]
    with subprocess.Popen(command, env=environment(base, "tests"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if sys.stderr.isatty():
                print(f"{CLEAR}writing models {line.strip()}", end="", file=sys.stderr)
    if process.returncode:
        sys.exit("the models could not be written")


def compute(
    run: Run, trees: dict[str, Path], folder: Path, models: Path, stories: Sequence[str], to: Comparison
) -> None:
    """Run one process to its end and collect its results."""
    arrays = folder / f"{run.tree}-{run.mode}-{run.target}"
    command = [
        sys.executable,
        str(BENCH / "compare_results.py"),
        str(trees[run.tree]),
        str(models),
        str(arrays),
        run.mode,
    ]
    variables = environment(trees[run.tree], target="" if run.target == "native" else run.target)
    with subprocess.Popen([*command, *stories], env=variables, stdout=subprocess.PIPE, text=True) as process:
        to.processes.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            to.add(run, line)
    if process.returncode:
        raise RuntimeError(f"{run.tree} {run.name} ended with exit code {process.returncode}")


def found_stories(*, pull: bool) -> list[str]:
    """The models with real vocabularies; says which are missing."""
    sys.path.insert(0, str(ROOT / "src"))
    from sporelm.files import store

    found = []
    if STORY.is_dir():
        found.append(str(STORY))
    else:
        print(f"skipped: the story model, since {STORY} does not exist", file=sys.stderr)
    smollm2 = store.pull("smollm2") if pull else store.find("smollm2")
    if smollm2:
        found.append(str(smollm2))
    else:
        print("skipped: SmolLM2, which is not in the local store (--pull fetches it)", file=sys.stderr)
    return found


def report(rows: list[dict[str, Any]]) -> None:
    print(f"{'run':18} {'results':>8} {'equal':>8} {'different':>10} {'refused':>8}  {'CPU seconds (base, head)':>24}")
    for row in rows:
        seconds = f"{row['cpu_seconds']['base']}, {row['cpu_seconds']['head']}"
        counts = f"{row['results']:8} {row['equal']:8} {len(row['different']):10} {len(row['refused']):8}"
        print(f"{row['run']:18} {counts}  {seconds:>24}")
    for row in rows:
        for each in row["different"]:
            print(f"different: {row['run']}: {each['name']}: {each['by']}")
        for name in row["failed"]:
            print(f"failed in both or in the base: {row['run']}: {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default=BASE, help=f"the commit to compare with; default: {BASE}")
    parser.add_argument("--head", type=Path, default=ROOT, help="the tree to compare; default: this one, as it is")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--part", default="1/1", help="I/N: every Nth case, from the Ith on")
    parser.add_argument("--targets", default="native,generic", help="CPU targets; native: the best of this CPU")
    parser.add_argument("--modes", default=",".join(MODES), help=f"default: {','.join(MODES)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; default: 2")
    parser.add_argument("--models", type=Path, help="a folder to keep the written models in, for the next run")
    parser.add_argument("--pull", action="store_true", help="fetch SmolLM2 if it is not in the local store")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    comparison = Comparison()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as temporary, worktree(options.base, Path(temporary)) as base:
        folder = Path(temporary)
        models = options.models.resolve() if options.models else folder / "models"
        trees = {"base": base, "head": options.head.resolve()}
        stories = found_stories(pull=options.pull)
        write_models(base, models, options.only, options.part)
        modes, targets = options.modes.split(","), options.targets.split(",")
        pairs = [("native", "files")] if "files" in modes else []
        pairs += [(target, mode) for target in targets for mode in modes if mode != "files"]
        runs = [Run(tree, target, mode) for target, mode in pairs for tree in TREES]
        with ThreadPoolExecutor(options.jobs) as pool:
            tasks = [pool.submit(compute, run, trees, folder, models, stories, comparison) for run in runs]
            try:
                for task in tasks:
                    task.result()
            except BaseException:  # Ctrl-C and SIGTERM too: end all processes, so that the worktree can be removed
                pool.shutdown(wait=False, cancel_futures=True)
                for process in comparison.processes:
                    process.kill()
                raise
        if sys.stderr.isatty():
            print(CLEAR, end="", file=sys.stderr)
        rows = list(comparison.rows())
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        report(rows)
    return int(any(row["different"] or row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
