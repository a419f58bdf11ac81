"""Runs a script while our own modules may import numpy, torch, Triton, llvmlite and the standard library alone.

Usage: python import_guard.py SCRIPT [ARGUMENTS]. Libraries may import whatever was installed with them.
"""

import runpy
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
OURS = (str(ROOT / "src") + "/", str(ROOT / "bench") + "/")
ALLOWED = {"numpy", "torch", "triton", "llvmlite", "sporelm", *sys.stdlib_module_names}


class ImportGuard(MetaPathFinder):
    """Hides all other packages from our modules."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed
        self.refused: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self.allowed or not find_importer().startswith(OURS):
            return
        self.refused.append(name)
        raise ModuleNotFoundError(f"No module named {name!r} (hidden by {Path(__file__).name})", name=name)


def find_importer() -> str:
    """Return the file of the module that imports."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename


if __name__ == "__main__":
    script = Path(sys.argv[1]).resolve()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(script.parent)
    guard = ImportGuard(ALLOWED | {each.stem for each in script.parent.glob("*.py")})
    sys.meta_path.insert(0, guard)
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        print(f"hidden: {', '.join(sorted({*guard.refused})) or 'nothing'}", file=sys.stderr)
