"""`spore doctor`: show the hardware, the available back-ends and why others are missing, and what each lacks.

With --models: the supported model families, their names in files, and what their results are compared with.
"""

import argparse
import json
import os
import platform
import re
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sporelm import __version__, settings
from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import fold, label_text, terminal_width
from sporelm.cli.terminal_text import name_flags
from sporelm.errors import UsageError, safe_repr

LABEL_WIDTH = 13  # columns before the text of a line
TYPICAL_BYTES = 10**9  # of the model for which --backend auto is shown
WITHOUT_VALUES = "meta"  # the device of torch that has shapes alone
PACKAGES = ("numpy", "llvmlite", "tokenizers", "jinja2", "prompt_toolkit", "huggingface_hub", "torch")


def make_parser() -> Parser:
    parser = Parser(
        "doctor",
        "Show hardware, back-ends (and why one is unavailable), the ops for which each has no kernel of its own, the "
        "kernel cache and the model store. With --conformance, compare each back-end's ops with their numpy reference; "
        "with --models, list the supported model families, and what each is verified against. With --device meta, "
        "trace the shapes of every step on torch's meta device, where tensors hold no data: reading a value on the "
        "host is an error.",
        "[options]",
        [
            "spore doctor",
            "spore doctor --models",
            "spore doctor --conformance --json",
            "spore doctor --conformance --backend torch --device cuda --dtype bf16",
            "spore doctor --conformance --backend torch --report report.html",
            "spore doctor --backend torch --device meta",
        ],
    )
    options.add_json(parser)
    parser.add_argument(
        "--conformance",
        action="store_true",
        help="compare every op with its reference, and time it: a sample of the tests' cases; exit 1 if one differs. "
        "An op is run by itself on small inputs, so its time reveals outliers, not the speed of a model",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="run all cases of --conformance, or all shapes of --device meta, instead of a sample",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="with --conformance and --backend: write a full report on this back-end as HTML (.html) or JSON (.json): "
        "every op, three tiny models end to end, its speed compared with the device's roofline, and missing kernels",
    )
    parser.add_argument(
        "--models", action="store_true", help="list the model families instead, and what tests compare each with"
    )
    parser.add_argument("--backend", metavar="NAME", help="show and check only this back-end")
    parser.add_argument("--device", metavar="D", help="device to check, for back-ends that have several")
    parser.add_argument(
        "--dtype",
        choices=options.DTYPE_CHOICES,
        metavar="TYPE",
        help="data type of activations: auto, f32, f16, bf16 or fp8, for back-ends that have a choice",
    )
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from sporelm.backends.backend_registry import backend_names, normalize_device
    from sporelm.backends.host_cores import usable_cores

    if args.device is not None:
        args.device = normalize_device(args.device)
    has_values = args.device != WITHOUT_VALUES
    if not has_values and args.conformance:
        raise UsageError(f"--device {WITHOUT_VALUES} has shapes and no values to compare: leave out --conformance")
    if args.all and has_values and not args.conformance:
        raise UsageError("--all: selects what --conformance compares, and --conformance is not given. Give it too.")
    if args.backend is not None and args.backend not in backend_names():
        allowed = ", ".join(backend_names())
        raise UsageError(
            f"--backend: no such back-end (got {safe_repr(args.backend)}; allowed {allowed}). Correct the name."
        )
    check_report_options(args)
    backend_options = {name: value for name in ("device", "dtype") if (value := getattr(args, name)) is not None}
    if args.models:
        if args.conformance:
            raise UsageError("--models lists model families and --conformance compares ops: give one of them")
        families, towers = list_families(), list_towers()
        if args.json:
            print(json.dumps({"families": families, "vision": towers}, indent=2))
        else:
            print("\n".join(fold_labels(format_families(families), family_label_width(families))))
            print("\nmodels that see:")
            print("\n".join(fold_labels(format_families(towers), family_label_width(towers))))
        return 0
    backends = probe_backends(backend_options, None if args.conformance else args.backend)
    check_device(args.device, backends)
    report: dict[str, Any] = {
        "version": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {"model": read_cpu_model(), "cores": os.cpu_count(), "usable_cores": usable_cores()},
        "numa": list_numa_nodes(),
        "packages": {name: find_version(name) for name in PACKAGES},
        "backends": backends,
        "auto": choose_automatically(args.dtype),
        "split": list_split_limits(args.dtype),
        "kernel_cache": inspect_kernel_cache(settings.KERNEL_CACHE.path),
        "model_store": inspect_model_store(settings.MODEL_STORE.path),
    }
    differences = 0
    if args.report:
        return write_conformance_report(args, backend_options)
    if args.conformance:
        from sporelm.evals.conformance.check import check_backends, is_failure

        report["conformance"] = check_backends(args.backend, backend_options, every_case=args.all)
        differences = sum(map(is_failure, report["conformance"]))
    elif not has_values:
        report["shapes"] = check_shapes(args.backend or "torch", backend_options, every_shape=args.all)
        differences = sum(row["state"] != "legal" for row in report["shapes"])
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(fold_labels(format_report(report))))
    return 1 if differences else 0


def check_report_options(args: argparse.Namespace) -> None:
    """Raise UsageError for --report without the back-end that it is about, or for a file of another kind, RequestError
    for one that cannot be written."""
    if args.report is None:
        return
    for name in ("conformance", "backend"):
        if not getattr(args, name):
            raise UsageError(f"--report: needs --conformance and --backend (--{name} is not given). Give --{name}.")
    from sporelm.evals.conformance.conformance_report import check_report_path

    check_report_path(args.report)


def write_conformance_report(args: argparse.Namespace, backend_options: dict[str, str]) -> int:
    """Check the back-end, write the report, and print its verdict. Return the exit code."""
    from sporelm.evals.conformance.check import count_out_of_range, count_unsupported, is_compared
    from sporelm.evals.conformance.conformance_report import build_report, write_report

    report = build_report(args.backend, backend_options, every_case=args.all)
    write_report(report, args.report)
    if args.json:
        print(json.dumps(report, indent=2))
        return 0 if report["passes"] else 1
    equal = sum(row["state"] == "equal" for row in report["cases"])
    unsupported = sum(count_unsupported(report["cases"]).values())
    skipped, compared = count_out_of_range(report["cases"]), sum(map(is_compared, report["cases"]))
    models = sum(row["state"] == "equal" for row in report["models"])
    verdict = "passes" if report["passes"] else "does not pass"
    counts = f"{equal} of {compared} cases and {models} of {len(report['models'])} runs of tiny models"
    lacking = f", {unsupported} cases are unsupported" if unsupported else ""
    lacking += f", {skipped} cases were skipped (values out of range for the data type)" if skipped else ""
    print(f"{args.backend} {verdict}: {counts} are equal{lacking}; {args.report} has them all")
    return 0 if report["passes"] else 1


def check_shapes(backend: str, backend_options: dict[str, str], *, every_shape: bool) -> list[dict[str, Any]]:
    """Return a row for each kind of block whose programs were run on a device without values."""
    from sporelm.backends.backend_registry import HOST_BACKENDS
    from sporelm.evals.meta_device.check_buckets import STORAGE, check_buckets

    if backend in HOST_BACKENDS:
        raise UsageError(f"--backend {backend} has no device {WITHOUT_VALUES!r}: give --backend torch")
    return check_buckets(backend, backend_options, every=1 if every_shape else len(STORAGE))


def list_numa_nodes(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Return each NUMA node with its cores and its memory; empty where the system does not tell."""
    from sporelm.backends.numa_nodes import format_core_list, read_numa_nodes

    return [
        {"node": node.number, "cores": format_core_list(node.cores), "memory_bytes": node.memory_bytes}
        for node in read_numa_nodes(root)
    ]


def list_families() -> list[dict[str, Any]]:
    """Return each model family: its models, its names in files, and what its logits are compared with."""
    from sporelm.checkpoints.supported_models import MODELS

    return [
        {
            "family": each.module,
            "models": each.title,
            "names": each.names,
            "vouched": each.verified_against,  # old name: a key of the output
        }
        for each in MODELS
    ]


def list_towers() -> list[dict[str, Any]]:
    """Return each family of models that see and of image encoders, like `list_families`: names are classes, and
    projector types of mmproj files."""
    from sporelm.checkpoints.towers.supported_towers import IMAGE_ENCODERS, TOWERS

    return [
        {
            "family": each.module,
            "models": each.title,
            "names": (*each.classes, *each.projectors),
            "vouched": each.verified_against,  # old name: a key of the output
        }
        for each in (*TOWERS, *IMAGE_ENCODERS)
    ]


def family_label_width(families: list[dict[str, Any]]) -> int:
    """Return the columns before the text of a line about a family."""
    return max(len(row["family"]) for row in families) + 1


def format_families(families: list[dict[str, Any]]) -> list[str]:
    """Return two lines per family."""
    width = family_label_width(families)
    lines = []
    for row in families:
        verified_against = " and ".join(row["vouched"])  # old name: a key of the output
        lines.append(f"{row['family']:<{width}}{row['models']}: compared with {verified_against}")
        lines.append(f"{'':<{width}}  {', '.join(row['names'])}")
    return lines


def read_cpu_model() -> str:
    """Return the CPU's name as the operating system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def find_version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def probe_backends(backend_options: dict[str, str] | None = None, only: str | None = None) -> dict[str, dict[str, Any]]:
    """Return each back-end, or only one: ready, with its details and the ops it leaves to the reference; or why it is
    missing."""
    from sporelm.backends.backend_registry import backend_names, describe_backend
    from sporelm.backends.protocol import Missing

    backends: dict[str, dict[str, Any]] = {}
    for name in [only] if only is not None else backend_names():
        state = describe_backend(name, backend_options)
        if isinstance(state, Missing):
            backends[name] = {"ready": False, "reason": state.reason}
        else:
            backends[name] = {"ready": True, "details": dict(state[0].details), "lacks": state[1]}
    return backends


def check_device(device: str | None, backends: dict[str, dict[str, Any]]) -> None:
    """Raise UsageError for a device that no back-end runs on, unless it has a known name, perhaps with a number.

    Why a device of a known name is missing is a line of the report.
    """
    from sporelm.backends.backend_registry import DEVICE_KINDS, HOST_BACKENDS

    if device is None or re.fullmatch(rf"({'|'.join(DEVICE_KINDS)})(:[0-9]+)?", device):
        return
    if not any(state["ready"] for name, state in backends.items() if name not in HOST_BACKENDS):
        allowed = (
            f"{', '.join(DEVICE_KINDS)}, with a number as in cuda:1; for opencl a device that 'spore doctor' lists"
        )
        raise UsageError(f"--device: no such device (got {safe_repr(device)}; allowed {allowed}). Correct the name.")


def choose_automatically(dtype: str | None) -> dict[str, Any]:
    """Return the back-end and device that `--backend auto` picks for a model that fits everywhere, and why."""
    from sporelm.api.backend_choice import HOST, TokenCost, choose_backend
    from sporelm.api.cpu_count import choose_threads
    from sporelm.api.open_device import HOST_DTYPES, open_device
    from sporelm.errors import BackendError

    number_type = dtype or "auto"
    try:
        choice = choose_backend(
            HOST,
            lambda name, device: open_device(name, device, choose_threads(None), number_type),
            lambda backend: TokenCost(TYPICAL_BYTES),
            allows_host=number_type in HOST_DTYPES,
        )
    except BackendError as error:
        return {"backend": None, "device": None, "reason": str(error)}
    return {"backend": choice.name, "device": choice.device, "reason": choice.reason}


def list_split_limits(dtype: str | None) -> list[dict[str, Any]]:
    """Return each device with memory of its own, and the bytes beyond which a model is split between it and the CPU."""
    from sporelm.api.cpu_count import choose_threads
    from sporelm.api.open_device import open_device
    from sporelm.backends.backend_registry import find_devices
    from sporelm.errors import SporeError

    limits: list[dict[str, Any]] = []
    for name, device in find_devices():
        try:
            backend = open_device(name, device, choose_threads(None), dtype or "auto")
        except SporeError:  # `auto` says why
            continue
        try:
            if (free := backend.free_bytes()) is not None:
                limits.append({"backend": name, "device": device, "bytes": free})
        finally:
            backend.close()
    return limits


def inspect_kernel_cache(folder: Path) -> dict[str, Any]:
    """Return the path, number, size and permissions of the compiled kernels."""
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


def inspect_model_store(folder: Path) -> dict[str, Any]:
    """Return the stored models and their sizes in bytes."""
    from sporelm.files import store

    sizes = {entry.name: entry.nbytes for entry in store.entries()}
    return {"path": str(folder), "models": sizes, "known": sorted(store.KNOWN)}


def fold_labels(lines: list[str], column: int = LABEL_WIDTH) -> list[str]:
    """Fold the lines of a report on a narrow terminal, with the text beside its label or below it."""
    width = terminal_width()
    if width is None:
        return lines
    folded = []
    for line in lines:
        label = line[:column].rstrip()
        folded += label_text(label, line[column:], column, width) if label else fold(line, width)
    return folded


def format_report(report: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    cpu = report["cpu"]
    lines = [
        f"sporelm      {report['version']}, Python {report['python']}, {report['system']}",
        f"cpu          {cpu['model']}, {cpu['cores']} cores, {cpu['usable_cores']} usable here",
        "packages     " + ", ".join(f"{name} {found or 'not installed'}" for name, found in report["packages"].items()),
    ]
    for node in report["numa"]:
        memory = f", {node['memory_bytes'] / 1e9:.1f} GB" if node["memory_bytes"] else ""
        lines.append(f"{'numa':<{LABEL_WIDTH}}node {node['node']}: cores {node['cores']}{memory}")
    for name, state in report["backends"].items():
        if not state["ready"]:
            reason = state["reason"].removeprefix(f"back-end {name!r} cannot run here: ")  # the line names it
            lines.append(f"{name:<13}missing: {name_flags(reason)}")
            continue
        lines.append(f"{name:<13}ready")
        lines += [f"{'':<13}  {key}: {value}" for key, value in state["details"].items()]
        lacks = state["lacks"]
        lines.append(f"{'':<13}  without a kernel of their own: {len(lacks)}{': ' if lacks else ''}{', '.join(lacks)}")
    auto = report["auto"]
    chosen = "nothing" if auto["backend"] is None else f"{auto['backend']}, device {auto['device']}"
    lines.append(f"{'auto':<{LABEL_WIDTH}}--backend auto picks {chosen}: {name_flags(auto['reason'])}")
    for limit in report["split"]:
        place = f"{limit['backend']}, device {limit['device']}"
        text = f"a model that takes more than {limit['bytes'] / 1e9:.1f} GB on {place} has its first layers on cpu"
        lines.append(f"{'split':<{LABEL_WIDTH}}{text}")
    cache = report["kernel_cache"]
    if cache["exists"]:
        owner = "" if cache.get("owned", True) else ", NOT OWNED BY YOU"
        size = f"{cache['files']} files, {cache['bytes'] / 1e6:.1f} of {cache['limit_bytes'] / 1e6:.0f} MB"
        lines.append(f"kernel cache {cache['path']} ({size}, mode {cache['mode']}{owner})")
    else:
        lines.append(f"kernel cache {cache['path']} (does not exist yet)")
    store = report["model_store"]
    models = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in store["models"].items())
    lines.append(f"model store  {store['path']}: {models or 'empty; spore pull knows ' + ', '.join(store['known'])}")
    cases = report.get("conformance", [])
    lines += list_case_lines(cases)
    for name in dict.fromkeys(row["backend"] for row in cases):
        lines += summarize_cases(name, [row for row in cases if row["backend"] == name])
    for row in report.get("shapes", []):
        steps = f"{row['padded']} padded and {row['exact']} exact steps"
        failure = f"; fails: {row['error']}" if row["state"] != "legal" else ""
        lines.append(
            f"{'shapes':<{LABEL_WIDTH}}{row['kind']} ({row['architecture']}): {row['state']}, {steps}{failure}"
        )
    return lines


def list_case_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the conformance cases that were compared."""
    if not rows:
        return []
    from sporelm.evals.conformance.check import is_compared

    return [format_case(row) for row in rows if is_compared(row)]


def summarize_cases(backend: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines that sum up a back-end's conformance cases: how many are equal, and which ops it lacks."""
    from sporelm.evals.conformance.check import count_out_of_range, count_unsupported, is_compared

    lacking, skipped = count_unsupported(rows), count_out_of_range(rows)
    equal, compared = sum(row["state"] == "equal" for row in rows), sum(map(is_compared, rows))
    lines = [f"conformance  {backend}: {equal} of {compared} supported cases are equal"]
    if lacking:
        ops = ", ".join(f"{op} ({count})" for op, count in lacking.items())
        reason = "no kernel, and the reference cannot run them on packed weights, caches or states"
        lines.append(f"conformance  {backend}: {sum(lacking.values())} cases are unsupported ({reason}): {ops}")
    if skipped:
        lines.append(f"conformance  {backend}: {skipped} cases were skipped: values out of range for its data type")
    return lines


def format_case(row: dict[str, Any]) -> str:
    """Return the line of a conformance case, with its time and the reference's where they were measured."""
    line = f"conformance  {row['backend']:<10} {row['case']:<50} {row['state']:<8} {row['error']}"
    if "seconds" in row:
        speed = row["reference_seconds"] / max(row["seconds"], 1e-9)
        line += f"  {1e3 * row['seconds']:9.3f} ms  {speed:7.2f} x the reference's speed"
    return line + (", no kernel of its own" if row["kernel"] == "reference" else "")
