"""The registry of back-ends: our own, and back-ends that other packages offer at the entry point `sporelm.backends`."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, signature
from typing import Any

from sporelm.backends.opencl_detection import list_opencl_candidates
from sporelm.backends.protocol import Backend, Missing, Ready
from sporelm.backends.torch_detection import list_torch_devices, load_torch
from sporelm.errors import BackendError, SporeError, safe_repr

HOST_BACKENDS = ("cpu", "reference")  # with one device and one number type
OWN = {
    "cpu": "sporelm.backends.cpu:CpuBackend",
    "reference": "sporelm.backends.reference:ReferenceBackend",
    "torch": "sporelm.backends.torch:TorchBackend",
    "cuda": "sporelm.backends.cuda:CudaBackend",
    "opencl": "sporelm.backends.opencl:OpenClBackend",
}
# Vendors' devices through torch: named, or taken for a device of theirs that is found.
VENDORS = {
    "ascend": "sporelm.backends.vendor.ascend:AscendBackend",
    "cambricon": "sporelm.backends.vendor.cambricon:CambriconBackend",
    "metax": "sporelm.backends.vendor.metax:MetaxBackend",
    "moorethreads": "sporelm.backends.vendor.moore_threads:MooreThreadsBackend",
    "iluvatar": "sporelm.backends.vendor.iluvatar:IluvatarBackend",
}
TORCH_BACKENDS = ("torch", "cuda", *VENDORS)
VENDOR_OF_KIND = {"npu": "ascend", "mlu": "cambricon", "musa": "moorethreads"}
# Kinds of torch's devices, without importing torch; "meta" has shapes and no values.
DEVICE_KINDS = ("cpu", "cuda", "mps", "xpu", "npu", "mlu", "musa", "meta")


def _load(path: str) -> Callable[..., Backend]:
    module, _, name = path.partition(":")
    found: Callable[..., Backend] = getattr(import_module(module), name)
    return found


def backend_names() -> list[str]:
    """Return the name of every back-end that could be opened."""
    named = {point.name for point in entry_points(group="sporelm.backends")} - OWN.keys() - VENDORS.keys()
    return [*OWN, *VENDORS, *sorted(named)]


def normalize_device(device: str) -> str:
    """Return the name that back-ends have for a device: "cuda" for "CUDA", "cpu" for "cpu:0".

    A name of no known kind is that of another package's back-end, and stays as it is.
    """
    name = device.lower()
    if name.partition(":")[0] not in DEVICE_KINDS:
        return device
    return "cpu" if name == "cpu:0" else name


def find_devices() -> list[tuple[str, str]]:
    """Return the pairs of a back-end and a device that are there beside the host's: torch's, and the devices that
    other packages' back-ends return from a static method `list_devices`. NVIDIA GPUs go to `cuda` where it can run, and
    vendors' devices to the vendor's back-end. OpenCL has GPUs and accelerators that torch has not."""
    devices = list_torch_devices()
    found = [(_choose_own(device), device) for device in devices]
    found += [("opencl", device) for device in list_opencl_candidates(devices)]
    for point in entry_points(group="sporelm.backends"):
        if point.name in OWN | VENDORS:
            continue
        try:
            list_devices = getattr(point.load(), "list_devices", None)
            found += [(point.name, device) for device in (list_devices() if list_devices else ())]
        except Exception:  # `describe_backend` says why
            continue
    return found


def _choose_own(device: str) -> str:
    """Return the back-end of ours for a device of torch: the one with kernels for it, if that can run."""
    kind = device.partition(":")[0]
    name = "cuda" if kind == "cuda" else VENDOR_OF_KIND.get(kind)
    return name if name and isinstance(describe_backend(name, {"device": device}), tuple) else "torch"


def open_backend(name: str, **options: Any) -> Backend:
    """Open a back-end. Raise BackendError with the list of names, or with the reason why it cannot run here.

    `options` go to the constructor: `threads`, and for back-ends other than the host's `device`, `dtype` and
    `batch_invariant`.
    """
    if name not in backend_names():
        allowed = ", ".join(backend_names())
        raise BackendError(f"no such back-end (got {safe_repr(name)}; allowed {allowed}). Correct the name.")
    with _name_errors(name):
        if name in OWN or name in VENDORS:
            if name in TORCH_BACKENDS:
                load_torch()
            constructor = _load((OWN | VENDORS)[name])
        else:
            points = {point.name: point for point in entry_points(group="sporelm.backends")}
            constructor = points[name].load()
        if "dtype" in options and not _takes(constructor, "dtype"):
            raise BackendError(
                f"back-end {name!r}: no choice of data types (got {options['dtype']}). Leave out the option dtype."
            )
        if "batch_invariant" in options and not _takes(constructor, "batch_invariant"):
            raise BackendError(f"back-end {name!r} has no fixed order of sums. Leave out the option batch_invariant.")
        backend = constructor(**options)
        state = backend.probe()
    if isinstance(state, Missing):
        raise BackendError(f"back-end {name!r} cannot run here: {state.reason}")
    return backend


def _takes(constructor: Callable[..., Backend], option: str) -> bool:
    """Return whether a constructor has an option, or takes any."""
    parameters = signature(constructor).parameters
    return option in parameters or any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())


@contextlib.contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Turn an exception of a back-end into a BackendError that names it: for our own only a failed import, else any."""
    try:
        yield
    except SporeError:
        raise
    except ImportError as error:
        raise BackendError(f"back-end {name!r} cannot be loaded: {_one_line(error)}") from error
    except Exception as error:
        if name in OWN or name in VENDORS:
            raise
        raise BackendError(f"back-end {name!r} failed: {type(error).__name__}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())[:300]


def all_backends(options: Mapping[str, str] | None = None) -> dict[str, Backend | Missing]:
    """Return each back-end by name, or the reason why it cannot be loaded.

    `options`: `device` and `dtype` for back-ends other than the host's.
    """
    found: dict[str, Backend | Missing] = {}
    for name in backend_names():
        try:
            found[name] = open_backend(name, **({} if name in HOST_BACKENDS else dict(options or {})))
        except SporeError as error:  # of the back-end, or of a setting that it reads
            found[name] = Missing(str(error))
    return found


def describe_backend(name: str, options: Mapping[str, str] | None = None) -> tuple[Ready, list[str]] | Missing:
    """Return a back-end's details and the ops for which it has no kernel, or why it cannot run. Never raises.

    `options` as in `all_backends`.
    """
    try:
        backend = open_backend(name, **({} if name in HOST_BACKENDS else dict(options or {})))
        with _name_errors(name):
            state, lacks = backend.probe(), list(backend.missing_kernels())
            backend.close()
            return state if isinstance(state, Missing) else (Ready(dict(state.details)), lacks)
    except SporeError as error:
        return Missing(str(error))
