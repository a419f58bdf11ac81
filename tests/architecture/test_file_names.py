"""File names that say something."""

from architecture.sources import PACKAGE, TESTS, python_files, relative

VAGUE = {"util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "managers", "core", "stuff"}


def test_names_say_something() -> None:
    vague = []
    for path in python_files(PACKAGE) + python_files(TESTS):
        parts = [*path.relative_to(PACKAGE.parents[1]).parent.parts, path.stem]
        if words := VAGUE & {word for part in parts for word in part.removeprefix("test_").split("_")}:
            vague.append(f"{relative(path)}: {', '.join(sorted(words))}")
    assert not vague, f"name the thing that is in the file: {vague}"
