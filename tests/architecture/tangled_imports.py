"""Finds import circles inside packages."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from architecture.sources import PACKAGE, Source, module_name, relative, sources


def circles() -> dict[str, list[str]]:
    """The modules that stand in an import circle, by package.

    Lazy imports count, those for type checkers do not. The root `sporelm`, which imports its names when they are first
    used, belongs to no package.
    """
    modules = {module_name(each.path): each for each in sources(PACKAGE)}
    inside: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for name, each in modules.items():
        package = name.split(".")[1] if "." in name else ""
        inside[package][name] = imported_modules(each, modules)
    found: dict[str, list[str]] = {}
    for package, graph in inside.items():
        for circle in connected(graph) if package else ():
            lines = found.setdefault(f"src/sporelm/{package}", [])
            for name in sorted(circle):
                others = ", ".join(sorted(circle - {name}))
                lines.append(f"{relative(modules[name].path)} is in a circle with {others}")
    return found


def imported_modules(file: Source, modules: Iterable[str]) -> set[str]:
    """The modules of ours that a file imports: `from sporelm.engine import step` imports sporelm.engine.step."""
    found = set()
    for each in file.imports:
        if not each.is_typing:
            full = {f"{each.module}.{name}" for name in each.names}
            found |= {name if name in modules else each.module for name in full or {each.module}}
    return found & set(modules)


def connected(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one node: circles, those with common nodes as one."""
    after = {node: _reachable(graph, node) for node in graph}
    found = {frozenset(other for other in after[node] if node in after[other]) for node in graph if node in after[node]}
    return sorted((set(circle) for circle in found if len(circle) > 1), key=sorted)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """The nodes on paths from a node; itself only if it is on a circle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = (graph[waiting.pop()] & graph.keys()) - found
        found |= new
        waiting += new
    return found


SUBJECTS = {"modules in import circles": circles}
