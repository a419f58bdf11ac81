"""The long run: `python tests/fuzz/run.py --minutes 10 [--seed N] [--keep FOLDER]`.

Workers run cases one after the other and say before each which one it is; this process watches them. A worker that
dies, or says nothing for too long, has found something: its case is kept, and a new worker goes on behind it. Each
case follows from --seed and its number alone: `--case NUMBER` repeats one.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

SILENCE_S = 120.0  # of a busy machine
FAULTS_TO_STOP = 200


def worker(seed: int, first: int, keep: Path) -> None:
    """Run cases from number `first` on, for ever."""
    number = first
    while True:
        print(json.dumps({"begin": number}), flush=True)
        print(json.dumps(one(seed, number, keep)), flush=True)
        number += 1


def one(seed: int, number: int, keep: Path) -> dict[str, Any]:
    """Run one case; what it was. Of a faulty one the damaged files are kept."""
    from fuzz.cases import run_case

    outcome = run_case(Random(f"{seed} {number}"))
    report = {key: value for key, value in vars(outcome).items() if key != "changed"} | {"number": number}
    if outcome.fault is not None:
        folder = keep / f"{seed}-{number}"
        for name, content in outcome.changed.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    return report


class Watched:
    """A worker and what it has said."""

    def __init__(self, seed: int, first: int, keep: Path) -> None:
        words = [sys.executable, __file__, "--worker", str(first), "--seed", str(seed), "--keep", str(keep)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reports: list[dict[str, Any]] = []
        self.number, self.heard, self.errors = first, time.monotonic(), ""
        Thread(target=self.listen, daemon=True).start()
        Thread(target=self.listen_to_errors, daemon=True).start()

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.heard = time.monotonic()
            if "begin" in said:
                self.number = said["begin"]
            else:
                self.reports.append(said)

    def listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = (self.errors + line)[-4000:]

    def ended(self) -> str | None:
        """Why it does not go on, or None."""
        if self.process.poll() is not None:
            return f"the process ended with {self.process.returncode}: {self.errors[-1500:]}"
        if time.monotonic() - self.heard > SILENCE_S:
            self.process.kill()
            return f"said nothing for {SILENCE_S:.0f} s"
        return None


def watch(minutes: float, seed: int, keep: Path) -> int:
    """Run for so long; print what was found. The number of faults."""
    until, first, cases, faults = time.monotonic() + 60 * minutes, 0, 0, list[dict[str, Any]]()
    most: dict[str, dict[str, Any]] = {"seconds": {}, "memory_bytes": {}}  # the case that took most
    counts: dict[str, tuple[int, int]] = {}  # target -> cases, and those in which it took the damaged model
    watched = Watched(seed, first, keep)
    while time.monotonic() < until and len(faults) < FAULTS_TO_STOP:
        time.sleep(0.2)
        ended = watched.ended()
        reports, watched.reports = watched.reports, []
        for report in reports:
            cases += 1
            name = " ".join(word for word in report["target"].split()[:2] if not word.isupper())
            run, taken = counts.get(name, (0, 0))
            counts[name] = (run + 1, taken + report["taken"])
            for key in most:
                if (report[key] or 0) > (most[key].get(key) or 0):
                    most[key] = report
            if report["fault"]:
                faults.append(report)
                print(json.dumps(report), flush=True)
        if ended:
            faults.append({"number": watched.number, "fault": ended})
            print(json.dumps(faults[-1]), flush=True)
            watched = Watched(seed, watched.number + 1, keep)
    watched.process.kill()
    print(json.dumps({"cases": cases, "faults": len(faults), "most": most, "counts": counts}))
    return len(faults)


def main() -> int:
    """Exit code 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder for what was found")
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.seed, args.worker, args.keep)
    if args.case is not None:
        report = one(args.seed, args.case, args.keep)
        print(json.dumps(report, indent=1))
        return 1 if report["fault"] else 0
    return 1 if watch(args.minutes, args.seed, args.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
