"""Imports point one way: from the top of the house to its foundation, inside functions too; and never in a circle."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture import tangled_imports
from architecture.ratchet import check
from architecture.sources import PACKAGE, Source, relative, sources

# Top to bottom; names on one line do not import each other.
LAYERS = [
    {"cli"},
    {"serve", "adaptors", "tools", "bench", "evals"},
    {"api"},
    {"vision"},
    {"engine", "checkpoints", "text"},
    {"models"},
    {"plan", "files", "processes"},
    {"backends"},
    {"distributed"},
    {"ops"},
    {"quant"},
    {"tensor"},
]
EVERYWHERE = {"errors", "settings", "units", "__version__"}
ALIASES = {"weights"}  # former places of public modules: they import what they stand for, and only tests import them
FORBIDDEN = {"engine": {"text"}, "models": {"files"}}  # besides what the layers forbid
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Packages that only some places may import: package -> beginnings of paths below src/sporelm.
HOMES = {
    "llvmlite": ("backends/cpu/",),
    "triton": ("backends/cuda/", "backends/vendor/"),
    "pyopencl": ("backends/opencl/",),
    "torch": ("backends/torch/", "backends/cuda/", "backends/vendor/", "distributed/torch.py", "adaptors/"),
    "transformers": ("adaptors/",),
    "huggingface_hub": ("files/store/hub.py",),
}


def layer_of(path: Path) -> str:
    """The part of the house a file belongs to: its folder, or its own name directly below src/sporelm."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def violation(source: str, imported: str) -> str | None:
    """Why a file of layer `source` may not import a module, or None."""
    words = imported.split(".")
    if words[0] != "sporelm" or len(words) < 2 or words[1] in EVERYWHERE:
        return None
    target = words[1]
    if source == "__init__":  # only names the public API, lazily
        return None if target == "api" else f"the package may only name its api, not {target}"
    if source == "__main__":
        return None if target == "cli" else f"`python -m sporelm` is the command, not {target}"
    if source in EVERYWHERE:
        return f"{source} is imported by all, so it may import none of them"
    if target not in LEVEL:
        return f"{target} has no place in the layers"
    if target == source:
        return None
    if target in ALIASES:
        return f"{target} is an alias for other programs; import the module that it stands for"
    if LEVEL[source] >= LEVEL[target]:
        return (
            f"{source} may not import {target}, which is {'beside' if LEVEL[source] == LEVEL[target] else 'above'} it"
        )
    return f"{source} never imports {target}" if target in FORBIDDEN.get(source, ()) else None


def imports(file: Source) -> Iterator[tuple[int, str]]:
    """Line and full module name of each import in a file: `from sporelm import settings` imports sporelm.settings."""
    for each in file.imports:
        names = each.names if each.module == "sporelm" else ()
        yield from ((each.line, f"sporelm.{name}") for name in names)
        if not names:
            yield each.line, each.module


def test_imports_obey_the_layers() -> None:
    wrong = []
    for file in sources(PACKAGE):
        source = layer_of(file.path)
        if source in ALIASES:
            continue
        if source not in LEVEL and source not in EVERYWHERE | {"__init__", "__main__"}:
            wrong.append(f"{relative(file.path)}: {source} has no place in the layers")
            continue
        for line, name in imports(file):
            if reason := violation(source, name):
                wrong.append(f"{relative(file.path)}:{line}: {reason}")
    assert not wrong, "\n".join(wrong)


def test_packages_have_no_new_import_circles() -> None:
    check("modules in import circles", tangled_imports.circles())


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"f"}}
    assert tangled_imports.connected(graph) == [{"a", "b", "c"}]


def test_heavy_packages_stay_at_home() -> None:
    wrong = []
    for file in sources(PACKAGE):
        place = file.path.relative_to(PACKAGE).as_posix()
        for line, name in imports(file):
            homes = HOMES.get(name.split(".")[0])
            if homes is not None and not place.startswith(homes):
                wrong.append(f"{relative(file.path)}:{line} imports {name}; its place is {homes}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("ops", "sporelm.backends.cpu"),
        ("models", "sporelm.text"),
        ("models", "sporelm.checkpoints"),
        ("models", "sporelm.files.gguf"),
        ("engine", "sporelm.text.tokenizers.tokenizer"),
        ("engine", "sporelm.vision.image_decoding"),
        ("vision", "sporelm.api"),
        ("bench", "sporelm.evals"),
        ("errors", "sporelm.ops"),
        ("tensor", "sporelm.quant"),
    ],
)
def test_the_rule_itself_refuses(source: str, imported: str) -> None:
    assert violation(source, imported) is not None


@pytest.mark.parametrize(
    ("source", "imported"),
    [("cli", "sporelm.api"), ("tensor", "sporelm.errors"), ("api", "numpy"), ("engine", "sporelm.models")],
)
def test_the_rule_itself_allows(source: str, imported: str) -> None:
    assert violation(source, imported) is None
