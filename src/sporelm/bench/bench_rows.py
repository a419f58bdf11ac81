"""A row of the benchmark table, and the forms in which rows are shown and kept."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sporelm.errors import RequestError


@dataclass(frozen=True)
class SpeedLimit:
    """A limit of the machine in tokens per second: "stream" (memory reads), "compute" (products), or "both" in turn."""

    kind: str
    value: float


@dataclass(frozen=True)
class PeerFigure:
    """The speed of a peer in the same run, in tokens per second; the name includes its best variant."""

    name: str
    samples: tuple[float, ...]
    sample_limits: tuple[float, ...] = ()  # the machine's limit at the time of each sample, if it was measured

    @property
    def tok_s(self) -> float:
        return median(self.samples)

    @property
    def share(self) -> float | None:
        """The share of the machine's limit that was reached, if limits were measured beside the samples."""
        return compute_median_ratio(self.samples, self.sample_limits) if self.sample_limits else None


@dataclass(frozen=True)
class BenchRow:
    """One test: all speeds in tokens per second, samples in the order they were taken.

    `sample_limits` are the limits at the time of each sample, where memory bandwidth limits the test, because it can
    change between samples. `limit` is computed from the median bandwidth.
    """

    test: str
    batch: int
    depth: int
    samples: tuple[float, ...]
    limit: SpeedLimit | None = None
    peers: tuple[PeerFigure, ...] = ()
    sample_limits: tuple[float, ...] = ()

    @property
    def tok_s(self) -> float:
        return median(self.samples)

    @property
    def share(self) -> float | None:
        """The share of the limit that was reached: the median over samples, each with its own limit where measured."""
        if self.sample_limits:
            return compute_median_ratio(self.samples, self.sample_limits)
        return self.tok_s / self.limit.value if self.limit else None

    def as_json(self) -> dict[str, Any]:
        """The row as the contract of `bench --json` has it; `peer` is the fastest of `peers`."""
        row: dict[str, Any] = {
            "test": self.test,
            "batch": self.batch,
            "depth": self.depth,
            "tok_s": round(self.tok_s, 3),
            "samples": [round(sample, 3) for sample in self.samples],
            "limit": None,
            "peer": None,
            "peers": [self.compare(peer) for peer in self.peers],
        }
        if self.limit and self.share is not None:
            share = round(self.share, 4)
            row["limit"] = {"kind": self.limit.kind, "value": round(self.limit.value, 3), "share": share}
        if row["peers"]:
            row["peer"] = max(row["peers"], key=lambda peer: peer["tok_s"])
        return row

    def compare(self, peer: PeerFigure) -> dict[str, Any]:
        """Return a peer's result as JSON, with our speed divided by its: the median over samples of the same repeat."""
        ratio = round(compute_median_ratio(self.samples, peer.samples), 4)
        share = None if peer.share is None else round(peer.share, 4)
        return {"name": peer.name, "tok_s": round(peer.tok_s, 3), "ratio": ratio, "share": share}

    def cells(self) -> list[str]:
        """The row as text, in the order of `TABLE_COLUMNS`."""
        cells = [self.test, str(self.batch), str(self.depth), f"{self.tok_s:.1f}"]
        cells.append(f"{min(self.samples):.1f} - {max(self.samples):.1f}")
        cells.append(f"{self.limit.kind} {self.limit.value:.1f}" if self.limit else "")
        cells.append(f"{self.share:.0%}" if self.share is not None else "")
        cells.append(", ".join(f"{peer.name} {peer.tok_s:.1f}" for peer in self.peers))
        cells.append(", ".join(f"{compute_median_ratio(self.samples, peer.samples):.2f}" for peer in self.peers))
        return cells


def compute_median_ratio(samples: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of paired samples."""
    return median(sample / other for sample, other in zip(samples, others, strict=True))


TABLE_COLUMNS = ["test", "batch", "depth", "tok/s", "range", "limit tok/s", "share", "peer tok/s", "ratio"]
PEER_KEYS = ("name", "tok_s", "ratio", "share")
CSV_COLUMNS = [
    *["test", "batch", "depth", "tok_s", "samples", "limit_kind", "limit_tok_s", "limit_share"],
    *["peer_name", "peer_tok_s", "peer_ratio", "peer_limit_share"],
]


def rows_to_markdown(rows: Sequence[BenchRow]) -> str:
    lines = ["| " + " | ".join(TABLE_COLUMNS) + " |", "|---" * len(TABLE_COLUMNS) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def row_to_csv_lines(row: BenchRow) -> list[list[str]]:
    """The row's values in the order of `CSV_COLUMNS`: a line, or one for each peer."""
    values = row.as_json()
    limit = values["limit"] or {}
    cells = [row.test, row.batch, row.depth, values["tok_s"], " ".join(map(str, values["samples"]))]
    cells += [limit.get("kind", ""), limit.get("value", ""), limit.get("share", "")]
    return [
        [str(cell) for cell in (*cells, *("" if peer.get(key) is None else peer[key] for key in PEER_KEYS))]
        for peer in values["peers"] or [{}]
    ]


def rows_to_csv(rows: Sequence[BenchRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(line for row in rows for line in row_to_csv_lines(row))
    return text.getvalue()


def check_results_file(path: Path, context: Iterable[str], columns: Sequence[str] = tuple(CSV_COLUMNS)) -> bool:
    """Whether a file of results has rows already. Raises RequestError if rows with these columns cannot go there."""
    heads = [*context, *columns]
    parent = path.resolve().parent
    if parent.is_dir() and not os.access(path if path.exists() else parent, os.W_OK):
        raise RequestError(f"--save {path.name!r} is not writable: give another file, or change its permissions")
    if not path.is_file():
        if path.exists() or not parent.is_dir():
            raise RequestError(
                f"--save {path.name!r} is a folder, or its folder does not exist: give a file in an existing folder"
            )
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline().rstrip("\r\n")
    if first and first.split(",") != heads:
        raise RequestError(f"{path.name!r} has other columns than {','.join(heads)}: choose another file for --save")
    return bool(first)


def append_rows(path: Path, rows: Sequence[BenchRow], context: dict[str, str]) -> None:
    """Add rows to a file of results, each with the columns of `context` before it. Raises RequestError."""
    append_lines(path, context, CSV_COLUMNS, [line for row in rows for line in row_to_csv_lines(row)])


def append_lines(path: Path, context: dict[str, str], columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """`append_rows` for lines of any columns."""
    has_rows = check_results_file(path, context, columns)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not has_rows:
            writer.writerow([*context, *columns])
        writer.writerows([*context.values(), *line] for line in lines)
