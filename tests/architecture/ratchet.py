"""Counts that may only fall. `ratchet.json` holds them: a test fails where one has risen.

    PYTHONPATH=src:tests .venv/bin/python -m architecture.ratchet                  the counts, beside those in the file
    PYTHONPATH=src:tests .venv/bin/python -m architecture.ratchet --write [AREA]   write the counts that fell

A count that fell and was not written fails no test. `--write` also accepts counts that moved from one area to another,
as after renaming a folder: the sum of a subject may not rise.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("ratchet.json")
Offenders = Mapping[str, list[str]]  # area -> lines to show


def stored(subject: str) -> dict[str, int]:
    """The counts of a subject by area, as the file has them."""
    found: dict[str, int] = json.loads(FILE.read_text(encoding="utf-8")).get(subject, {})
    return found


def risen(subject: str, offenders: Offenders) -> str:
    """The offenders of all areas whose count has risen, as a message; "" if there is none."""
    allowed, lines = stored(subject), []
    for area, found in sorted(offenders.items()):
        if len(found) > allowed.get(area, 0):
            lines.append(f"{subject}, {area}: {len(found)}; ratchet.json allows {allowed.get(area, 0)}")
            lines += [f"  {each}" for each in found]
    return "\n".join(lines)


def check(subject: str, offenders: Offenders) -> None:
    """Fail the test that calls this where a count has risen, with all offenders of that area."""
    message = risen(subject, offenders)
    if message:
        pytest.fail(f"{message}\ndocs/testing.md says how to list them and how counts are written", pytrace=False)


def lowered(subject: str, counts: Mapping[str, int], areas: Iterable[str] = ()) -> dict[str, int]:
    """The counts to write: those of the named areas, or of all. Raises ValueError where the sum would rise."""
    old = stored(subject)
    if old and sum(counts.values()) > sum(old.values()):
        raise ValueError(f"{subject}: {sum(counts.values())} is more than the {sum(old.values())} of ratchet.json")
    chosen = set(areas) or {*old, *counts}
    new = {area: counts.get(area, 0) if area in chosen else count for area, count in old.items()}
    new |= {area: counts[area] for area in chosen & set(counts)}
    return {area: count for area, count in sorted(new.items()) if count}


def write(subjects: Mapping[str, Mapping[str, int]]) -> None:
    """Write all counts, a blank line between two, so that changes of neighbouring lines merge."""
    parts = []
    for subject, counts in subjects.items():
        rows = ",\n\n".join(f"    {json.dumps(area)}: {count}" for area, count in counts.items())
        parts.append(f"  {json.dumps(subject)}: {{\n{rows}\n  }}" if rows else f"  {json.dumps(subject)}: {{}}")
    FILE.write_text("{\n" + ",\n\n".join(parts) + "\n}\n", encoding="utf-8")


def main(words: list[str]) -> int:
    from architecture import repeated_names, tangled_imports, word_lint

    subjects: dict[str, Callable[[], Offenders]] = {}
    for module in (word_lint, repeated_names, tangled_imports):
        subjects |= module.SUBJECTS
    parser = argparse.ArgumentParser(prog="architecture.ratchet", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write counts that fell")
    parser.add_argument("areas", nargs="*", metavar="AREA", help="only these, as src/sporelm/engine; default: all")
    options = parser.parse_args(words)
    counts = {subject: {area: len(found) for area, found in find().items()} for subject, find in subjects.items()}
    for subject, each in counts.items():
        print(f"{subject}: {sum(each.values())} (ratchet.json: {sum(stored(subject).values())})")
        for area in sorted({*each, *stored(subject)}):
            print(f"  {each.get(area, 0):6}  {stored(subject).get(area, 0):6}  {area}")
    if options.write:
        try:
            write({subject: lowered(subject, each, options.areas) for subject, each in counts.items()})
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
