"""Long fuzz run: `python tests/fuzz/run.py --minutes 10 [--seed N] [--keep FOLDER]`.

A worker process runs cases one after the other and reports the number of each before it starts. If the worker dies, or
reports nothing for too long, its case is a fault, and a new worker continues with the next one. A case depends only on
--seed and its number: `--case NUMBER` repeats it.
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

SILENCE_S = 120.0  # without a report, on a busy machine
MAX_FAULTS = 200


def run_worker(seed: int, first: int, keep: Path) -> None:
    """Run cases from number `first` on, without end."""
    number = first
    while True:
        print(json.dumps({"begin": number}), flush=True)
        print(json.dumps(run_one(seed, number, keep)), flush=True)
        number += 1


def run_one(seed: int, number: int, keep: Path) -> dict[str, Any]:
    """Run one case and return its report. The damaged files of a faulty case are kept."""
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


class Worker:
    """A worker process and its reports."""

    def __init__(self, seed: int, first: int, keep: Path) -> None:
        words = [sys.executable, __file__, "--worker", str(first), "--seed", str(seed), "--keep", str(keep)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reports: list[dict[str, Any]] = []
        self.number, self.last_report, self.errors = first, time.monotonic(), ""
        Thread(target=self.listen, daemon=True).start()
        Thread(target=self.listen_to_errors, daemon=True).start()

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report = json.loads(line)
            self.last_report = time.monotonic()
            if "begin" in report:
                self.number = report["begin"]
            else:
                self.reports.append(report)

    def listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = (self.errors + line)[-4000:]

    def failure(self) -> str | None:
        """Return why the worker stopped, or None while it runs."""
        if self.process.poll() is not None:
            return f"the process ended with {self.process.returncode}: {self.errors[-1500:]}"
        if time.monotonic() - self.last_report > SILENCE_S:
            self.process.kill()
            return f"no report for {SILENCE_S:.0f} s"
        return None


def watch(minutes: float, seed: int, keep: Path) -> int:
    """Run for this many minutes and print faults and a summary; return the number of faults."""
    until, first, cases, faults = time.monotonic() + 60 * minutes, 0, 0, list[dict[str, Any]]()
    costliest: dict[str, dict[str, Any]] = {"seconds": {}, "memory_bytes": {}}
    counts: dict[str, tuple[int, int]] = {}  # target -> cases, and those in which it accepted the damaged model
    worker = Worker(seed, first, keep)
    while time.monotonic() < until and len(faults) < MAX_FAULTS:
        time.sleep(0.2)
        failure = worker.failure()
        reports, worker.reports = worker.reports, []
        for report in reports:
            cases += 1
            name = " ".join(word for word in report["target"].split()[:2] if not word.isupper())
            run, accepted = counts.get(name, (0, 0))
            counts[name] = (run + 1, accepted + report["is_accepted"])
            for key in costliest:
                if (report[key] or 0) > (costliest[key].get(key) or 0):
                    costliest[key] = report
            if report["fault"]:
                faults.append(report)
                print(json.dumps(report), flush=True)
        if failure:
            faults.append({"number": worker.number, "fault": failure})
            print(json.dumps(faults[-1]), flush=True)
            worker = Worker(seed, worker.number + 1, keep)
    worker.process.kill()
    print(json.dumps({"cases": cases, "faults": len(faults), "costliest": costliest, "counts": counts}))
    return len(faults)


def main() -> int:
    """Run the fuzzer; return 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder for the files of faulty cases")
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        run_worker(args.seed, args.worker, args.keep)
    if args.case is not None:
        report = run_one(args.seed, args.case, args.keep)
        print(json.dumps(report, indent=1))
        return 1 if report["fault"] else 0
    return 1 if watch(args.minutes, args.seed, args.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
