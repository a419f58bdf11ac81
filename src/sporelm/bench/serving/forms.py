"""Rows of a measured server as CSV and Markdown."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from sporelm.bench.plot import printable
from sporelm.bench.serving.figures import HEADS, SPREAD, ServingRow
from sporelm.bench.serving.measure import Report

TIMES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
PLAIN = (
    *("concurrency", "rate", "requests", "answers", "errors", "prompt_tokens", "cached_tokens", "output_tokens"),
    *("counted_by", "output_tok_s", "samples", "requests_s"),
)
CSV_HEADS = [
    *("url", "model", "endpoint", "asked_prompt_tokens", "asked_tokens", "shared_prefix", "seed"),
    *PLAIN,
    *(f"{time}_{name}" for time in TIMES for name in SPREAD),
    "cpu_client",
]


def csv_lines(report: Report) -> list[list[str]]:
    """A line for each row, in the order of `CSV_HEADS`; what was not measured is empty."""
    plan = report.plan
    asked = [plan.target.url, printable(report.dialect.model), plan.endpoint, plan.prompt_tokens, plan.new_tokens]
    return [[str(cell) for cell in (*asked, plan.shared, plan.seed, *cells(row))] for row in report.rows]


def cells(row: ServingRow) -> list[Any]:
    """The part of a line that was measured."""
    values = row.as_json()
    values["errors"] = " ".join(f"{kind.replace(' ', '-')}:{count}" for kind, count in row.errors.items())
    values["samples"] = " ".join(map(str, values["samples"]))
    found = [values[name] for name in PLAIN]
    found += [(values[time] or {}).get(name) for time in TIMES for name in SPREAD]
    return ["" if value is None else value for value in (*found, values["cpu_client"])]


def as_csv(report: Report) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADS)
    writer.writerows(csv_lines(report))
    return text.getvalue()


def as_markdown(rows: Sequence[ServingRow]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
