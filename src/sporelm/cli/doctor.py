"""`spore doctor`: what this machine has, which back-ends can run and why others cannot, and what each lacks.

With --models: the families of models, what files call them, and what their results are compared with.
"""

import argparse
import json
import os
import platform
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sporelm import __version__, settings
from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import fold, labelled, terminal_width
from sporelm.errors import UsageError

LABEL = 13  # columns before the text of a line
PACKAGES = ("numpy", "llvmlite", "tokenizers", "jinja2", "prompt_toolkit", "huggingface_hub", "torch")


def parser() -> Parser:
    made = Parser(
        "doctor",
        "Show hardware, back-ends (and why one is missing), the ops for which each lacks a kernel of its own, the "
        "kernel cache and the model store. With --conformance, run each back-end's ops against their numpy meaning; "
        "with --models, list the families of models that run, and what vouches for each.",
        "[options]",
        [
            "spore doctor",
            "spore doctor --models",
            "spore doctor --conformance --json",
            "spore doctor --conformance --backend torch",
        ],
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument(
        "--conformance", action="store_true", help="compare every op with its meaning; exit 1 if one differs"
    )
    made.add_argument(
        "--models", action="store_true", help="list the families of models instead, and what tests compare each with"
    )
    made.add_argument("--backend", metavar="NAME", help="with --conformance: this back-end only")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.api.machine import usable_cores

    if args.backend and not args.conformance:
        raise UsageError("--backend names whose ops are compared: give --conformance too")
    if args.models:
        if args.conformance:
            raise UsageError("--models lists families and --conformance compares ops: give one of them")
        found = families()
        print(
            json.dumps({"families": found}, indent=2)
            if args.json
            else "\n".join(laid_out(families_as_text(found), label_width(found)))
        )
        return 0
    report: dict[str, Any] = {
        "version": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {"model": cpu_model(), "cores": os.cpu_count(), "usable_cores": usable_cores()},
        "packages": {name: package_version(name) for name in PACKAGES},
        "backends": backends(),
        "kernel_cache": kernel_cache(settings.KERNEL_CACHE.path),
        "model_store": model_store(settings.MODEL_STORE.path),
    }
    differences = 0
    if args.conformance:
        from sporelm.evals.conformance import check_all

        report["conformance"] = check_all(args.backend)
        differences = sum(row["state"] != "equal" for row in report["conformance"])
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(laid_out(as_text(report))))
    return 1 if differences else 0


def families() -> list[dict[str, Any]]:
    """Each family: the models that it is known by, its names in files, and with what its logits are compared."""
    from sporelm.models.families import FAMILIES

    return [
        {"family": each.module, "models": each.title, "names": each.names, "vouched": each.vouched} for each in FAMILIES
    ]


def label_width(found: list[dict[str, Any]]) -> int:
    """Return the columns before the text of a line about a family."""
    return max(len(row["family"]) for row in found) + 1


def families_as_text(found: list[dict[str, Any]]) -> list[str]:
    """The list for a person: two lines a family."""
    lines, wide = [], label_width(found)
    for row in found:
        lines.append(f"{row['family']:<{wide}}{row['models']}: compared with {' and '.join(row['vouched'])}")
        lines.append(f"{'':<{wide}}  {', '.join(row['names'])}")
    return lines


def cpu_model() -> str:
    """The CPU's name, as the operating system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def backends() -> dict[str, dict[str, Any]]:
    """Each back-end: ready with its details and the ops it leaves to the reference, or the reason it is missing."""
    from sporelm.backends.backend import Missing
    from sporelm.backends.registry import describe, names

    found: dict[str, dict[str, Any]] = {}
    for name in names():
        state = describe(name)
        if isinstance(state, Missing):
            found[name] = {"ready": False, "reason": state.reason}
        else:
            found[name] = {"ready": True, "details": dict(state[0].details), "lacks": state[1]}
    return found


def kernel_cache(folder: Path) -> dict[str, Any]:
    """Where compiled kernels are kept, how many and how large, and who may read them."""
    if not folder.is_dir():
        return {"path": str(folder), "exists": False}
    status = folder.stat()
    files = [path.stat() for path in folder.glob("*.o") if path.is_file()]
    report = {
        "path": str(folder),
        "exists": True,
        "files": len(files),
        "bytes": sum(entry.st_size for entry in files),
        "limit_bytes": settings.KERNEL_CACHE_BYTES.integer,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
    }
    if hasattr(os, "getuid"):
        report["owned"] = status.st_uid == os.getuid()
    return report


def model_store(folder: Path) -> dict[str, Any]:
    """The stored models and their sizes in bytes."""
    from sporelm.weights import store

    sizes = {entry.name: entry.nbytes for entry in store.entries()}
    return {"path": str(folder), "models": sizes, "known": sorted(store.KNOWN)}


def laid_out(lines: list[str], column: int = LABEL) -> list[str]:
    """Fold the lines of a report where the terminal is narrower: text stands beside its label, or below it."""
    width = terminal_width()
    if width is None:
        return lines
    found = []
    for line in lines:
        label, text = line[:column].rstrip(), line[column:]
        found += labelled(label, text, column, width) if label else fold(line, width)
    return found


def as_text(report: dict[str, Any]) -> list[str]:
    """The report for a person."""
    cpu = report["cpu"]
    lines = [
        f"sporelm      {report['version']}, Python {report['python']}, {report['system']}",
        f"cpu          {cpu['model']}, {cpu['cores']} cores, {cpu['usable_cores']} usable here",
        "packages     " + ", ".join(f"{name} {found or 'not there'}" for name, found in report["packages"].items()),
    ]
    for name, state in report["backends"].items():
        if not state["ready"]:
            lines.append(f"{name:<13}missing: {state['reason']}")
            continue
        lines.append(f"{name:<13}ready")
        lines += [f"{'':<13}  {key}: {value}" for key, value in state["details"].items()]
        lacks = state["lacks"]
        lines.append(f"{'':<13}  without a kernel of their own: {len(lacks)}{': ' if lacks else ''}{', '.join(lacks)}")
    cache = report["kernel_cache"]
    if cache["exists"]:
        owner = "" if cache.get("owned", True) else ", NOT OWNED BY YOU"
        size = f"{cache['files']} files, {cache['bytes'] / 1e6:.1f} of {cache['limit_bytes'] / 1e6:.0f} MB"
        lines.append(f"kernel cache {cache['path']} ({size}, mode {cache['mode']}{owner})")
    else:
        lines.append(f"kernel cache {cache['path']} (not made yet)")
    store = report["model_store"]
    models = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in store["models"].items())
    lines.append(f"model store  {store['path']}: {models or 'empty; spore pull knows ' + ', '.join(store['known'])}")
    for row in report.get("conformance", []):
        lines.append(f"conformance  {row['backend']:<10} {row['case']:<34} {row['state']:<9} {row['error']}")
    return lines
