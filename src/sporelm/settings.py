"""Settings from environment variables; no other module reads `os.environ`.

Each setting is declared once with its default and a description; `docs/settings.md` is checked against this list.
A setting is read when it is first needed and does not change afterwards. An invalid value raises a RequestError that
names the variable.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sporelm.errors import RequestError


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, default and description, and the bounds of a number."""

    name: str
    default: Callable[[], str]
    doc: str
    bounds: tuple[int, int] | None = None

    @cached_property
    def value(self) -> str:
        try:
            return os.environ.get(self.name) or self.default()
        except RuntimeError as error:  # no home folder, as for some users of containers
            raise RequestError(f"{self.name}: this user has no home folder; set it to a folder's full path") from error

    @property
    def path(self) -> Path:
        try:
            return Path(self.value).expanduser()
        except RuntimeError as error:
            raise RequestError(
                f"{self.name} is {self._quoted}: there is no such home folder; give a full path"
            ) from error

    @property
    def integer(self) -> int | None:
        """The value as a whole number within the bounds; None if the setting and its default are empty."""
        if not self.value:
            return None
        assert self.bounds is not None
        low, high = self.bounds
        number = int(self.value) if re.fullmatch(r"-?[0-9]{1,30}", self.value) else None
        if number is None or not low <= number <= high:
            raise RequestError(f"{self.name} is {self._quoted}: it must be a whole number from {low} to {high}")
        return number

    @property
    def _quoted(self) -> str:
        return repr(self.value if len(self.value) <= 80 else self.value[:80] + "...")


ALL: list[Setting] = []


def setting(name: str, *, default: str | Callable[[], str], doc: str, bounds: tuple[int, int] | None = None) -> Setting:
    """Declare a setting and add it to `ALL`."""
    declared = Setting(name, default if callable(default) else lambda: default, doc, bounds)
    ALL.append(declared)
    return declared


def user_folder(kind: str) -> str:
    """Return the user's folder for `kind`, "cache" or "data", by the conventions of the operating system."""
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
    doc="Folder of compiled CPU kernels and OpenCL programs. It contains native code: mode 0700, owned by the user.",
)
KERNEL_CACHE_BYTES = setting(
    "SPORE_KERNEL_CACHE_BYTES",
    default="268435456",
    doc="Size in bytes above which the oldest compiled kernels are deleted.",
    bounds=(0, 1 << 60),
)
CPU_TILES = setting(
    "SPORE_CPU_TILES",
    default=lambda: str(Path(user_folder("cache")) / "tiles.json"),
    doc="File of the kernel settings that `spore bench tune` measured on this machine; `shipped` uses only the "
    "built-in settings.",
)
OPENCL_TUNING = setting(
    "SPORE_OPENCL_TUNING",
    default=lambda: str(Path(user_folder("cache")) / "opencl_tuning.json"),
    doc="File of the numbers that `spore bench tune --backend opencl` measured for devices of this machine.",
)
OPENCL_VENDORS = setting(
    "OCL_ICD_VENDORS",
    default="/etc/OpenCL/vendors",
    doc="Folder in which the ICD loader, the library that finds OpenCL drivers, looks for a file for each driver; the "
    "loader itself reads this variable.",
)
MODEL_STORE = setting(
    "SPORE_MODEL_STORE",
    default=lambda: str(Path(user_folder("data")) / "models"),
    doc="Folder of the models that `spore pull` downloads.",
)
SYNTHETIC_MODELS = setting(
    "SPORE_SYNTHETIC_MODELS",
    default=lambda: str(Path(user_folder("cache")) / "synthetic"),
    doc="Folder of the synthetic models that `spore bench synthetic:...` writes; they may be deleted at any time.",
)
CPU_TARGET = setting(
    "SPORE_CPU_TARGET",
    default="",
    doc="Name of the CPU target to use (cpu.md describes the targets, `spore doctor` shows those of this CPU); empty "
    "uses the best target of the CPU.",
)
THREADS = setting(
    "SPORE_THREADS",
    default="",
    doc="Number of threads, 1 to twice the usable cores; empty uses the cores that affinity and cgroup allow.",
    bounds=(1, 1024),
)
BACKEND = setting(
    "SPORE_BACKEND", default="cpu", doc="Back-end of commands and calls that name none; auto: the fastest."
)
NCCL = setting(
    "SPORE_NCCL",
    default="",
    doc="yes: ranks of one host that have an NVIDIA GPU each (--rank-devices) add values with NCCL, which has not been "
    "run by the authors; empty exchanges values in shared memory.",
)
SERVE_CONFIG = setting("SPORE_SERVE_CONFIG", default="", doc="TOML file of `spore serve`; --config takes precedence.")
SERVE_HOST = setting("SPORE_HOST", default="", doc="Address on which `spore serve` listens; --host takes precedence.")
SERVE_PORT = setting(
    "SPORE_PORT", default="", doc="Port on which `spore serve` listens; --port takes precedence.", bounds=(0, 65535)
)
API_KEY = setting(
    "SPORE_API_KEY",
    default="",
    doc="An API key of `spore serve`, as SECRET or NAME:SECRET; also the key that `spore chat --url` and "
    "`spore bench serve` send unchanged, for which it must be only SECRET. --api-key takes precedence.",
)
API_KEYS_FILE = setting(
    "SPORE_API_KEYS_FILE",
    default="",
    doc="File of API keys of `spore serve`, one per line; --api-keys-file takes precedence.",
)


def set_library_variable(name: str, value: str, *, replaced: str) -> None:
    """Set a variable that a native library reads when it is loaded, unless the user has set it.

    replaced   a value that begins so is not the user's: this program, as the parent of this process, set it
    """
    present = os.environ.get(name)
    if not present or present.startswith(replaced):
        os.environ[name] = value


def allows_colors() -> bool:
    """Return whether the environment allows colours on a terminal.

    A non-empty NO_COLOR disables them (no-color.org), as does TERM=dumb.
    """
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
