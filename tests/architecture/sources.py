"""What the architecture tests read: the source files as syntax trees, and the pages of docs/."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sporelm"
TESTS = ROOT / "tests"
DOCS = ROOT / "docs"


def python_files(folder: Path) -> list[Path]:
    """Every Python file below a folder, sorted."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def packages() -> list[str]:
    """The packages below src/sporelm with dots, as in `backends.cpu`: every folder that holds Python files."""
    folders = {path.parent.relative_to(PACKAGE) for path in python_files(PACKAGE)}
    return sorted(".".join(folder.parts) for folder in folders if folder.parts)


def module_name(path: Path) -> str:
    """`sporelm.cli.main` for src/sporelm/cli/main.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of each import in a file, those inside functions and strings to import_module too."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, origin] if origin else above)
            for alias in node.names:
                # `from sporelm import settings` imports sporelm.settings.
                yield node.lineno, f"{origin}.{alias.name}" if origin == "sporelm" else origin
        elif isinstance(node, ast.Call) and is_import_module(node):
            yield node.lineno, str(getattr(node.args[0], "value", ""))


def is_import_module(call: ast.Call) -> bool:
    """Whether a call is import_module("...") with the name spelled out."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    return name == "import_module" and bool(call.args) and isinstance(call.args[0], ast.Constant)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
