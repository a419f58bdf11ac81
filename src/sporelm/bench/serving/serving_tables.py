"""Rows of a measured server as CSV and Markdown."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from sporelm.bench.bench_chart import replace_unprintable
from sporelm.bench.serving.serving_measurement import ServingReport
from sporelm.bench.serving.serving_rows import SERVING_COLUMNS, STATISTICS, ServingRow

LATENCY_COLUMNS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
PLAIN_COLUMNS = (
    *("concurrency", "rate", "requests", "answers", "errors", "prompt_tokens", "cached_tokens", "output_tokens"),
    *("counted_by", "output_tok_s", "samples", "requests_s"),
)
SERVING_CSV_COLUMNS = [
    *("url", "model", "endpoint", "asked_prompt_tokens", "asked_tokens", "shared_prefix", "seed"),
    *PLAIN_COLUMNS,
    *(f"{time}_{name}" for time in LATENCY_COLUMNS for name in STATISTICS),
    "cpu_client",
]


def report_to_csv_lines(report: ServingReport) -> list[list[str]]:
    """A line for each row, in the order of `SERVING_CSV_COLUMNS`; values that were not measured are empty."""
    plan = report.plan
    asked = [
        plan.target.url,
        replace_unprintable(report.dialect.model),
        plan.endpoint,
        plan.prompt_tokens,
        plan.new_tokens,
    ]
    return [[str(cell) for cell in (*asked, plan.shared, plan.seed, *measured_cells(row))] for row in report.rows]


def measured_cells(row: ServingRow) -> list[Any]:
    """The part of a line that was measured."""
    values = row.as_json()
    values["errors"] = " ".join(f"{kind.replace(' ', '-')}:{count}" for kind, count in row.errors.items())
    values["samples"] = " ".join(map(str, values["samples"]))
    found = [values[name] for name in PLAIN_COLUMNS]
    found += [(values[time] or {}).get(name) for time in LATENCY_COLUMNS for name in STATISTICS]
    return ["" if value is None else value for value in (*found, values["cpu_client"])]


def report_to_csv(report: ServingReport) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SERVING_CSV_COLUMNS)
    writer.writerows(report_to_csv_lines(report))
    return text.getvalue()


def serving_rows_to_markdown(rows: Sequence[ServingRow]) -> str:
    lines = ["| " + " | ".join(SERVING_COLUMNS) + " |", "|---" * len(SERVING_COLUMNS) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
