"""Registers our ops as the package `dlinfer`, for programs that import it, such as LMDeploy."""

import sys
from types import ModuleType
from typing import Any

from sporelm.adaptors.dlinfer.moe_metadata import MoECommType, MoeMetadata
from sporelm.adaptors.dlinfer.op_table import OPS

PACKAGE = "dlinfer"
VENDOR = "sporelm"
VERSION = "0.2.7"  # of dlinfer, whose ops these are


def install() -> ModuleType:
    """Register the modules dlinfer, dlinfer.ops, dlinfer.utils, dlinfer.vendor and dlinfer.framework. Return the first.

    Raises ImportError if another dlinfer is imported already.
    """
    if is_installed():
        return sys.modules[PACKAGE]
    if PACKAGE in sys.modules:
        place = getattr(sys.modules[PACKAGE], "__file__", "memory")
        raise ImportError(f"dlinfer: another package of this name is imported (from {place}). Install ours first.")
    ops: dict[str, Any] = dict(OPS)
    types = {"MoECommType": MoECommType, "MoeMetadata": MoeMetadata}
    contents: dict[str, dict[str, Any]] = {
        PACKAGE: {"__version__": VERSION, "__path__": [], "vendor_name": VENDOR},
        f"{PACKAGE}.ops": {**ops, "__all__": list(ops), "__path__": []},
        f"{PACKAGE}.ops.llm": {**ops, "__all__": list(ops)},
        f"{PACKAGE}.utils": {"__path__": []},
        f"{PACKAGE}.utils.type_annotation": types,
        f"{PACKAGE}.vendor": {"vendor_name": VENDOR, "vendor_ops_registry": dict(ops), "__path__": []},
        f"{PACKAGE}.framework": {"__path__": []},
        f"{PACKAGE}.framework.lmdeploy_ext": {"__path__": []},
    }
    for name, values in contents.items():
        module = ModuleType(name, f"sporelm.adaptors.dlinfer under the name {name}")
        vars(module).update(values)
        module.sporelm = True  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, attribute = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], attribute, module)
    return sys.modules[PACKAGE]


def uninstall() -> None:
    """Remove the modules that `install` registered; another dlinfer stays."""
    if is_installed():
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


def is_installed() -> bool:
    """Return whether the imported dlinfer is ours."""
    return hasattr(sys.modules.get(PACKAGE), "sporelm")
