"""Facts about the source that the architecture tests share: what each Python file defines and imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sporelm"
TESTS = ROOT / "tests"
BENCH = ROOT / "bench"
DOCS = ROOT / "docs"
ENVIRONMENT = ("environ", "getenv", "putenv", "environb")


@dataclass(frozen=True)
class Definition:
    """A name that a file defines.

    kind   "file", "class", "function", "method", "parameter", "field", "attribute" or "constant"
    owner  the class around it, or ""
    """

    kind: str
    name: str
    line: int
    owner: str = ""


@dataclass(frozen=True)
class Import:
    """One imported module, with the names taken from it.

    is_typing  for type checkers only
    """

    line: int
    module: str
    names: tuple[str, ...] = ()
    is_typing: bool = False


@dataclass(frozen=True)
class Source:
    """Definitions and imports of one Python file. The syntax tree is not kept, since all of them take much memory."""

    path: Path
    has_docstring: bool
    definitions: tuple[Definition, ...]
    imports: tuple[Import, ...]
    docstrings: tuple[tuple[int, str], ...]  # line and text
    environment_lines: tuple[int, ...]  # which mention os.environ or its functions


def python_files(folder: Path) -> list[Path]:
    """Every Python file below a folder, sorted."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def packages() -> list[str]:
    """The packages below src/sporelm with dots, as in `backends.cpu`: every folder that holds Python files."""
    folders = {path.parent.relative_to(PACKAGE) for path in python_files(PACKAGE)}
    return sorted(".".join(folder.parts) for folder in folders if folder.parts)


def module_name(path: Path) -> str:
    """`sporelm.cli.main` for src/sporelm/cli/main.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def source(path: Path) -> Source:
    """Read one Python file. Each process parses a file once."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, filename=str(path))
    package = ""
    if path.is_relative_to(PACKAGE):
        package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    reader = _Reader(package)
    stem = path.parent.name if path.stem == "__init__" else path.stem
    reader.definitions.append(Definition("file", stem, 1))
    reader.read_docstring(tree)
    reader.read(tree.body, owner="", is_function=False)
    environment_lines: list[int] = []
    # Only these two facts need expressions, so all other files are spared a walk through theirs.
    if "import_module(" in text or any(name in text for name in ENVIRONMENT):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_import_module(node):
                reader.imports.append(Import(node.lineno, str(getattr(node.args[0], "value", ""))))
            elif getattr(node, "attr", getattr(node, "name", "")) in ENVIRONMENT:
                environment_lines.append(getattr(node, "lineno", 1))
    return Source(
        path,
        ast.get_docstring(tree) is not None,
        tuple(reader.definitions),
        tuple(reader.imports),
        tuple(reader.docstrings),
        tuple(environment_lines),
    )


def sources(folder: Path) -> Iterator[Source]:
    """Every Python file below a folder, read."""
    return map(source, python_files(folder))


class _Reader:
    """Collects facts from the statements of a file."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.definitions: list[Definition] = []
        self.imports: list[Import] = []
        self.docstrings: list[tuple[int, str]] = []

    def read(self, body: list[ast.stmt], owner: str, is_function: bool, is_typing: bool = False) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._define("class", node.name, node, owner)
                self.read_docstring(node)
                self.read(node.body, node.name, False, is_typing)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._define("method" if owner and not is_function else "function", node.name, node, owner)
                self._read_parameters(node, owner)
                self.read_docstring(node)
                self.read(node.body, owner, True, is_typing)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._read_import(node, is_typing)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._read_target(target, "constant", owner, is_function)
            elif isinstance(node, ast.AnnAssign):
                self._read_target(node.target, "field" if owner else "constant", owner, is_function)
            else:
                typing_only = is_typing or _is_type_checking(node)
                for name in ("body", "orelse", "finalbody"):
                    self.read(getattr(node, name, []), owner, is_function, typing_only and name == "body")
                for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                    self.read(part.body, owner, is_function, is_typing)

    def read_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        text = ast.get_docstring(node)
        if text:
            self.docstrings.append((node.body[0].lineno, text))

    def _define(self, kind: str, name: str, node: ast.AST, owner: str) -> None:
        self.definitions.append(Definition(kind, name, getattr(node, "lineno", 1), owner))

    def _read_parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> None:
        given = node.args
        for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if each is not None and each.arg not in ("self", "cls"):
                self._define("parameter", each.arg, each, owner)

    def _read_target(self, target: ast.expr, kind: str, owner: str, is_function: bool) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._read_target(each, kind, owner, is_function)
        elif isinstance(target, ast.Name):
            if not is_function:  # local variables are not looked at
                self._define(kind, target.id, target, owner)
        elif isinstance(target, ast.Attribute):
            self._define("attribute", target.attr, target, owner)

    def _read_import(self, node: ast.Import | ast.ImportFrom, is_typing: bool) -> None:
        if isinstance(node, ast.Import):
            self.imports += [Import(node.lineno, alias.name, (), is_typing) for alias in node.names]
            return
        module = node.module or ""
        if node.level:
            above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
            module = ".".join([*above, module] if module else above)
        self.imports.append(Import(node.lineno, module, tuple(alias.name for alias in node.names), is_typing))


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"


def _is_import_module(call: ast.Call) -> bool:
    """Whether a call is import_module("...") with the name spelled out."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    return name == "import_module" and bool(call.args) and isinstance(call.args[0], ast.Constant)
