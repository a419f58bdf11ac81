"""File and class names that say something, each of one place."""

from architecture import repeated_names
from architecture.ratchet import check
from architecture.sources import PACKAGE, TESTS, python_files, relative

VAGUE = {"util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "managers", "core", "stuff"}


def test_names_say_something() -> None:
    vague = []
    for path in python_files(PACKAGE) + python_files(TESTS):
        parts = [*path.relative_to(PACKAGE.parents[1]).parent.parts, path.stem]
        if words := VAGUE & {word for part in parts for word in part.removeprefix("test_").split("_")}:
            vague.append(f"{relative(path)}: {', '.join(sorted(words))}")
    assert not vague, f"name the thing that is in the file: {vague}"


def test_class_names_are_unique() -> None:
    check("repeated class names", repeated_names.repeated_classes())


def test_file_names_are_unique() -> None:
    check("repeated file names", repeated_names.repeated_files())


def test_parallel_folders_may_repeat_a_name() -> None:
    assert repeated_names.is_parallel(["ops", "backends/cpu/kernels"])
    assert repeated_names.is_parallel(["cli", "serve/routes"])
    assert not repeated_names.is_parallel(["ops", "ops"])
    assert not repeated_names.is_parallel(["ops", "serve"])
