"""The report about one back-end on one device: every op, three tiny models, and its speed; as JSON, or as a page."""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from sporelm import __version__
from sporelm.backends.backend_registry import HOST_BACKENDS, open_backend
from sporelm.backends.protocol import Ready
from sporelm.errors import RequestError, UsageError
from sporelm.evals.conformance.check import (
    check_backends,
    count_out_of_range,
    count_unsupported,
    is_compared,
    is_failure,
)
from sporelm.evals.conformance.model_checks import check_models
from sporelm.evals.conformance.op_speed import time_products
from sporelm.ops import ALL

SUFFIXES = (".html", ".json")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1a1a1a;"
    "background:#fff}table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{padding:.2rem .6rem;text-align:left;"
    "border-bottom:1px solid #ddd;vertical-align:top}.bad{color:#b00020;font-weight:600}.good{color:#006b2d}"
    "summary{cursor:pointer}@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}"
    "td,th{border-color:#444}.bad{color:#ff8a80}.good{color:#7bd88f}}"
)


def check_report_path(path: str) -> None:
    """Raise UsageError for the name of a report that is neither a page nor JSON, and RequestError for a file that
    cannot be written: before the checks, which take minutes."""
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise UsageError(f"--report: not a kind of report (got {path!r}; allowed {' and '.join(SUFFIXES)}). Rename it.")
    if not target.resolve().parent.is_dir():
        raise RequestError(f"--report: no such folder (got {str(target.parent)!r}). Create it first.")
    is_new = not target.exists() and not target.is_symlink()
    try:
        target.open("a").close()
        if is_new:
            target.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RequestError(f"--report: cannot write {path!r}: {reason}. Name another file.") from error


def build_report(name: str, options: Mapping[str, str], *, every_case: bool = False) -> dict[str, Any]:
    """Check one back-end, and return all that was found. `options`: its device and dtype.

    Raises BackendError if it cannot run.
    """
    given = {} if name in HOST_BACKENDS else dict(options)
    backend = open_backend(name, **given)
    try:
        state = backend.probe()
        details = dict(state.details) if isinstance(state, Ready) else {}
        missing = backend.missing_kernels()
        types = {op: backend.number_types(ALL[op]).activation.name for op in sorted(ALL)}
        limits = dict(backend.measure_limits())
        speed = list(time_products(backend))
    finally:
        backend.close()
    cases = check_backends(name, options, every_case=every_case)
    models = list(check_models(name, options))
    failures = [*filter(is_failure, cases), *(row for row in models if row["state"] != "equal")]
    return {
        "backend": name,
        "options": dict(options),
        "passes": not failures,
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "details": details,
        "missing_kernels": missing,
        "number_types": types,
        "limits": limits,
        "ops": summarize_ops(cases, missing),
        "cases": cases,
        "models": models,
        "speed": speed,
    }


def summarize_ops(cases: list[dict[str, Any]], missing: list[str]) -> list[dict[str, Any]]:
    """Return a row for each op: its cases, how many are equal, the largest error, and what computes it."""
    rows = []
    for op in sorted(ALL):
        own = [case for case in cases if case["case"].partition(" ")[0] == op and is_compared(case)]
        errors = [float(case["error"]) for case in own if case["state"] != "fails"]
        rows.append(
            {
                "op": op,
                "kernel": "reference" if op in missing else "own",
                "cases": len(own),
                "equal": sum(case["state"] == "equal" for case in own),
                "largest_error": max(errors, default=0.0),
                "seconds": sum(case.get("seconds", 0.0) for case in own),
                "reference_seconds": sum(case.get("reference_seconds", 0.0) for case in own),
            }
        )
    return rows


def write_report(report: Mapping[str, Any], path: str) -> None:
    """Write a report as its file's name says."""
    text = json.dumps(report, indent=2) if Path(path).suffix == ".json" else render_page(report)
    Path(path).write_text(text + "\n", "utf-8")


def render_page(report: Mapping[str, Any]) -> str:
    """Return a report as one page of HTML, without scripts or links to other files."""
    failures = [row for row in report["cases"] if is_failure(row)]
    unsupported = ", ".join(f"{op} ({count})" for op, count in count_unsupported(report["cases"]).items())
    verdict = '<span class="good">passes</span>' if report["passes"] else '<span class="bad">does not pass</span>'
    missing = ", ".join(report["missing_kernels"]) or "none"
    parts = [
        f"<h1>{escape(report['backend'])}: {verdict}</h1>",
        f"<p>sporelm {escape(report['version'])}, {escape(report['system'])}, {escape(report['date'])}</p>",
        _table(("", ""), [(key, value) for key, value in report["details"].items()]),
        f"<h2>Ops</h2><p>Without a kernel of their own, computed by the reference: {escape(missing)}.</p>"
        f"<p>Cases that are unsupported, because the reference cannot replace a kernel: {unsupported or 'none'}.</p>",
        "<p>Cases that were skipped because their weights or inputs do not fit the back-end's data type: "
        f"{count_out_of_range(report['cases']) or 'none'}.</p>",
        _table(
            ("op", "computed by", "cases", "equal", "largest error", "ms", "times the reference's speed"),
            [
                (
                    row["op"],
                    row["kernel"],
                    row["cases"],
                    _mark(row["equal"], row["equal"] == row["cases"]),
                    f"{row['largest_error']:.1e}",
                    f"{1e3 * row['seconds']:.2f}",
                    f"{row['reference_seconds'] / row['seconds']:.2f}" if row["seconds"] else "",
                )
                for row in report["ops"]
            ],
        ),
        "<h2>Cases that are not equal</h2>",
        _table(("case", "state", "error"), [(row["case"], row["state"], row["error"]) for row in failures])
        if failures
        else "<p>None.</p>",
        "<h2>Tiny models</h2>",
        _table(
            ("model", "weights", "mode", "state", "KL divergence, nat", "same tokens", "error"),
            [
                (
                    row["model"],
                    row["storage"],
                    row["mode"],
                    _mark(row["state"], row["state"] == "equal"),
                    f"{row['divergence']:.1e}" if "divergence" in row else "",
                    f"{row['same_tokens']} of {row['steps']}" if "steps" in row else "",
                    row["error"],
                )
                for row in report["models"]
            ],
        ),
        "<h2>Speed of products beside the device's limits</h2>",
        _table(
            ("weights", "rows", "ms", "GB/s", "Gop/s", "limit", "share"),
            [
                (
                    row["format"],
                    row["rows"],
                    f"{1e3 * row['seconds']:.3f}",
                    f"{row['bytes_s'] / 1e9:.2f}",
                    f"{row['ops_s'] / 1e9:.1f}",
                    row["limit"],
                    f"{row['share']:.0%}",
                )
                for row in report["speed"]
            ],
        ),
        "<details><summary>All cases</summary>",
        _table(("case", "state", "error"), [(row["case"], row["state"], row["error"]) for row in report["cases"]]),
        "</details>",
    ]
    title = f"Conformance of {escape(report['backend'])}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n{body}\n</body></html>'


class _Marked(str):
    """HTML that is escaped already."""


def _mark(value: Any, is_good: bool) -> _Marked:
    return _Marked(f'<span class="{"good" if is_good else "bad"}">{escape(str(value))}</span>')


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    def cell(value: Any) -> str:
        return value if isinstance(value, _Marked) else escape(str(value))

    top = "".join(f"<th>{escape(name)}</th>" for name in head) if any(head) else ""
    lines = "\n".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>\n{lines}\n</tbody></table>"
