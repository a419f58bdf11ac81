"""Questions to a device of torch: its memory, and why it is missing."""

import sys
from textwrap import shorten

import torch

PLUGINS = {"npu": "torch_npu", "mlu": "torch_mlu", "musa": "torch_musa"}  # packages that add a device to torch
KNOWN = ("cpu", "cuda", "mps", "xpu", *PLUGINS)


def list_devices() -> list[str]:
    """Return the names of the devices that are there, other than the CPU."""
    names = []
    for kind in KNOWN[1:]:
        module = getattr(torch, kind, None)
        try:
            if module is not None and module.is_available():
                count = module.device_count()
                names += [f"{kind}:{index}" for index in range(count)] if count > 1 else [kind]
        except Exception:  # each vendor's plug-in has errors of its own
            continue
    return names


def read_device_memory(device: torch.device) -> tuple[int, int] | None:
    """Return the free and all bytes of a device's memory; None if it has none of its own, or they are unknown."""
    if device.type in ("cpu", "meta"):
        return None
    try:
        free, total = torch.get_device_module(device).mem_get_info(device)
    except Exception:  # a device without this query, or a plug-in that fails
        return None
    return int(free), int(total)


def release_cached_memory(device: torch.device) -> None:
    """Return the memory that torch keeps for later arrays to the device."""
    if device.type not in ("cpu", "meta"):
        release = getattr(torch.get_device_module(device), "empty_cache", None)
        if release is not None:
            release()


def explain_missing_device(name: str, error: Exception, remedy: str) -> str:
    """Return in one line why a device is missing, and what to do; `remedy` helps on any machine."""
    kind, _, number = name.partition(":")
    reason = shorten(str(error).partition("\n")[0], 200)
    prefix = f"torch {torch.__version__} has no device {name!r} here: "
    if kind not in KNOWN and ("Expected one of" in reason or "device string" in reason.lower()):
        allowed = f"{', '.join(KNOWN)}, with a number as in cuda:1"
        return f"{prefix}not a device name (allowed: {allowed}). Correct it, or {remedy}"
    if kind in PLUGINS and not hasattr(torch, kind):
        if PLUGINS[kind] in sys.modules:
            return f"{prefix}{PLUGINS[kind]} did not add it to torch. Install it again, or {remedy}"
        return f"{prefix}it needs the vendor's plug-in. Install {PLUGINS[kind]} and its driver, or {remedy}"
    count_devices = getattr(getattr(torch, kind, None), "device_count", None)
    count = count_devices() if count_devices else 0
    is_there = not number or (number.isdecimal() and int(number) < count)
    if count and not is_there:
        last = f"{kind}:{count - 1}"
        return f"{prefix}{reason} (the last one is {last!r}). Set the option device to {last}, or {remedy}"
    if (kind == "mps" and not torch.backends.mps.is_built()) or "not compiled with" in reason:
        return f"{prefix}this torch is built without it. Install a build that has it (pytorch.org), or {remedy}"
    return f"{prefix}{reason.rstrip('.')}. Check the driver, or {remedy}"
