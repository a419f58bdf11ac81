"""Finds class names and file names that occur twice in src/sporelm, so that a name leads to one place."""

from collections import defaultdict

from architecture.sources import PACKAGE, Source, relative, sources

# Folders with one file per architecture, number format, op, target, route or command: there a name may occur once in
# each. `cli` has one file per command, beside the files that commands share: "spore rerank" and the route /rerank
# answer to the same name.
PARALLEL = {
    "backends/cpu/formats",
    "backends/cpu/kernels",
    "backends/cpu/lowering",
    "backends/cpu/quantizers",
    "backends/cpu/targets",
    "backends/cuda",
    "backends/cuda/formats",
    "backends/opencl",
    "backends/opencl/lowering",
    "backends/torch",
    "checkpoints/gguf",
    "checkpoints/hf",
    "checkpoints/quantized",
    "checkpoints/towers/gguf",
    "checkpoints/towers/hf",
    "cli",
    "evals/conformance",
    "models/architectures",
    "models/families",
    "models/towers",
    "ops",
    "quant",
    "serve/routes",
    "text/dialects",
    "vision/processors",
}
# The former place of sporelm.files: aliases, under the names of then.
EXEMPT = {"weights"}


def repeated_classes() -> dict[str, list[str]]:
    """Class names with their places, of names that lead to more than one."""
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for each in _named_sources():
        for definition in each.definitions:
            if definition.kind == "class":
                folder = each.path.parent.relative_to(PACKAGE).as_posix()
                places[definition.name].append((folder, f"{relative(each.path)}:{definition.line}"))
    return _lines(places)


def repeated_files() -> dict[str, list[str]]:
    """File names with their places, likewise."""
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for each in _named_sources():
        if each.path.stem not in ("__init__", "__main__"):
            folder = each.path.parent.relative_to(PACKAGE).as_posix()
            places[each.path.name].append((folder, relative(each.path)))
    return _lines(places)


def _named_sources() -> list[Source]:
    return [each for each in sources(PACKAGE) if each.path.parent.relative_to(PACKAGE).as_posix() not in EXEMPT]


def _lines(places: dict[str, list[tuple[str, str]]]) -> dict[str, list[str]]:
    lines = [
        f"{name}: {', '.join(place for _, place in found)}"
        for name, found in sorted(places.items())
        if len(found) > 1 and not is_parallel([folder for folder, _ in found])
    ]
    return {"src/sporelm": lines}


def is_parallel(folders: list[str]) -> bool:
    """Whether all are parallel folders, each another one; a command may have the name of the module that it runs."""
    if sorted(folders) == ["cli", "engine"]:
        return True
    return set(folders) <= PARALLEL and len(set(folders)) == len(folders)


SUBJECTS = {"repeated class names": repeated_classes, "repeated file names": repeated_files}
