"""Run by a test in a process of its own: take away what Windows or macOS lacks, import the package, run a model.

Usage: pretend_system.py win32|darwin MODEL. Libraries of others are imported before, as they know where they are; every
module of the package is imported after, and meets no POSIX module, constant or function that the other system lacks.
"""

import asyncio
import concurrent.futures
import ctypes
import importlib
import logging.handlers
import mmap
import multiprocessing.shared_memory
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

POSIX_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
POSIX_FUNCTIONS = """
    chown chroot confstr ctermid fchdir fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg
    getpgid getpgrp getpriority getresgid getresuid getsid getuid killpg lchown major makedev memfd_create minor
    mkfifo mknod nice openpty pathconf pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv
    pwrite pwritev register_at_fork sched_get_priority_max sched_getaffinity sched_getparam sched_setaffinity
    sched_yield sendfile setegid seteuid setgid setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp
    ttyname uname wait wait3 wait4 waitid
"""
POSIX_SIGNALS = "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH"
LINUX_FUNCTIONS = """
    getresgid getresuid memfd_create pipe2 posix_fadvise posix_fallocate sched_get_priority_max sched_getaffinity
    sched_getparam sched_setaffinity
"""
LINUX_CONSTANTS = (
    "MADV_HUGEPAGE",
    "MADV_NOHUGEPAGE",
    "MADV_MERGEABLE",
    "MADV_DONTDUMP",
    "MADV_DONTFORK",
    "MAP_POPULATE",
)

OPTIONAL = (
    *("sporelm.backends.torch", "sporelm.backends.cuda", "sporelm.backends.opencl", "sporelm.backends.vendor"),
    "sporelm.distributed.torch",
    "sporelm.adaptors",
)


def remove(module: Any, names: Any) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def pretend_windows() -> None:
    remove(os, POSIX_FUNCTIONS.split())
    remove(signal, POSIX_SIGNALS.split())
    remove(mmap, [name for name in dir(mmap) if name.startswith(("MAP_", "MADV_", "PROT_"))])
    for name in POSIX_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    native = ctypes.CDLL(None)

    class Library:
        """A library of Windows: functions that are there on any system stand for its own."""

        def __init__(self, name: str) -> None:
            assert name in ("ntdll", "ucrtbase"), name

        def __getitem__(self, name: str) -> Any:
            return native[name] if name != "__chkstk" else native["getpid"]

    def memory(pointer: Any) -> int:
        pointer._obj.available = 8 << 30
        return 1

    kernel = SimpleNamespace(SwitchToThread=native["sched_yield"], GlobalMemoryStatusEx=memory)
    ctypes.windll = SimpleNamespace(kernel32=kernel)  # type: ignore[attr-defined]
    ctypes.WinDLL = Library  # type: ignore[attr-defined]


def pretend_macos() -> None:
    remove(os, LINUX_FUNCTIONS.split())
    remove(mmap, LINUX_CONSTANTS)
    for name in ("posix_fadvise", "spwd"):
        sys.modules[name] = None  # type: ignore[assignment]


def modules() -> list[str]:
    """Every module of the package but those of back-ends whose library may be absent."""
    package = importlib.import_module("sporelm")
    folder = Path(package.__path__[0])
    paths = (path.relative_to(folder.parent).with_suffix("") for path in sorted(folder.rglob("*.py")))
    names = (".".join(path.parts).removesuffix(".__init__") for path in paths)
    return [name for name in names if not name.startswith(OPTIONAL) and not name.endswith("__main__")]


def main() -> None:
    system, model = sys.argv[1], sys.argv[2]
    for library in ("numpy", "numpy.random", "llvmlite.binding", "rich.console", "prompt_toolkit", "jinja2", "uvicorn"):
        importlib.import_module(library)
    importlib.import_module("urllib.request")  # which asks other systems for their proxies as it is imported
    used = (asyncio, concurrent.futures, logging.handlers, multiprocessing.shared_memory, subprocess, tempfile, Path)
    assert all(used)
    for library in ("torch", "triton", "pyopencl"):  # extras, whose builds are for the real system
        sys.modules[library] = None  # type: ignore[assignment]
    {"win32": pretend_windows, "darwin": pretend_macos}[system]()
    sys.platform = system
    for name in modules():
        importlib.import_module(name)
    from sporelm import LLM, SamplingParams

    llm = LLM(model, backend="cpu", threads=2)
    (found,) = llm.generate(["Once upon a time"], SamplingParams(max_tokens=8, temperature=0.0))
    llm.close()
    from sporelm.cli.main import main as command

    for line in (["--help"], ["doctor"], ["doctor", "--json"]):
        code = _exit_code(command, line)
        assert code == 0, f"spore {' '.join(line)}: exit code {code}"
    print(f"\ntokens {found.token_ids}")


def _exit_code(command: Any, line: list[str]) -> int:
    try:
        return int(command(line) or 0)
    except SystemExit as error:
        return int(error.code or 0)


if __name__ == "__main__":
    main()
