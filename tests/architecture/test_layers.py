"""Imports point one way: from the top of the house to its foundation, inside functions too."""

from pathlib import Path

import pytest

from architecture.sources import PACKAGE, imports, python_files, relative

# Top to bottom; names on one line do not import each other.
LAYERS = [
    {"cli"},
    {"serve", "adaptors", "tools", "bench", "evals"},
    {"api"},
    {"engine"},
    {"models", "text"},
    {"plan", "weights"},
    {"backends"},
    {"distributed"},
    {"ops"},
    {"quant"},
    {"tensor"},
]
EVERYWHERE = {"errors", "settings", "__version__"}
FORBIDDEN = {"engine": {"text"}}  # besides what the layers forbid
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Packages that only some places may import: package -> beginnings of paths below src/sporelm.
HOMES = {
    "llvmlite": ("backends/cpu/",),
    "triton": ("backends/",),
    "pyopencl": ("backends/opencl/",),
    "torch": ("backends/torch/", "backends/vendor/", "distributed/torch.py", "adaptors/"),
    "transformers": ("adaptors/",),
    "huggingface_hub": ("weights/store/hub.py",),
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
    if LEVEL[source] >= LEVEL[target]:
        return (
            f"{source} may not import {target}, which is {'beside' if LEVEL[source] == LEVEL[target] else 'above'} it"
        )
    return f"{source} never imports {target}" if target in FORBIDDEN.get(source, ()) else None


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=relative)
def test_imports_obey_the_layers(path: Path) -> None:
    source = layer_of(path)
    assert source in LEVEL or source in EVERYWHERE | {"__init__", "__main__"}, f"{source} has no place in the layers"
    wrong = [f"line {line}: {reason}" for line, name in imports(path) if (reason := violation(source, name))]
    assert not wrong, f"{relative(path)}: " + "; ".join(wrong)


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=relative)
def test_heavy_packages_stay_at_home(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    for line, name in imports(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or place.startswith(homes), f"{relative(path)}:{line} imports {name}; its place is {homes}"


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("ops", "sporelm.backends.cpu"),
        ("models", "sporelm.text"),
        ("engine", "sporelm.text.tokenizer"),
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
