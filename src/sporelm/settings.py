"""Settings from the environment: the only reader of `os.environ`.

Each setting is declared once with its default and one sentence; `docs/settings.md` is checked against this list.
A setting is read when it is first asked for and does not change afterwards.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, the value used when it is unset, and what it is for."""

    name: str
    default: Callable[[], str]
    doc: str

    @cached_property
    def value(self) -> str:
        return os.environ.get(self.name) or self.default()

    @property
    def path(self) -> Path:
        return Path(self.value).expanduser()


ALL: list[Setting] = []


def setting(name: str, *, default: str | Callable[[], str], doc: str) -> Setting:
    """Declare a setting and add it to `ALL`."""
    declared = Setting(name, default if callable(default) else lambda: default, doc)
    ALL.append(declared)
    return declared


def user_folder(kind: str) -> str:
    """The user's folder for `kind` ("cache" or "data"), as each operating system has it."""
    home = Path.home()
    if sys.platform == "win32":
        return str(Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "sporelm" / kind)
    if sys.platform == "darwin":
        return str(home / "Library" / ("Caches" if kind == "cache" else "Application Support") / "sporelm")
    variable, fallback = {"cache": ("XDG_CACHE_HOME", ".cache"), "data": ("XDG_DATA_HOME", ".local/share")}[kind]
    return str(Path(os.environ.get(variable) or home / fallback) / "sporelm")


KERNEL_CACHE = setting(
    "SPORE_KERNEL_CACHE",
    default=lambda: str(Path(user_folder("cache")) / "kernels"),
    doc="Folder of compiled CPU kernels. It holds native code: mode 0700, owned by the user.",
)
KERNEL_CACHE_BYTES = setting(
    "SPORE_KERNEL_CACHE_BYTES",
    default="268435456",
    doc="Size in bytes above which the oldest compiled kernels are removed.",
)
MODEL_STORE = setting(
    "SPORE_MODEL_STORE",
    default=lambda: str(Path(user_folder("data")) / "models"),
    doc="Folder of the models that `spore pull` fetched.",
)
CPU_TARGET = setting(
    "SPORE_CPU_TARGET",
    default="",
    doc="Forces the CPU target by name (see `spore doctor`); empty takes the best the CPU has.",
)
THREADS = setting(
    "SPORE_THREADS", default="", doc="Number of threads; empty takes the cores that affinity and cgroup leave."
)
BACKEND = setting("SPORE_BACKEND", default="cpu", doc="Back-end used when a command or call names none.")
