"""Finds retired words: `python -m architecture.word_lint [PATH ...]` lists them by file and line."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from architecture.retired_words import (
    ALLOWED,
    EXEMPT,
    GLOSSARY_KEYS,
    MARK,
    NAME_PATTERNS,
    NAMES,
    OPENINGS,
    PHRASES,
    Phrase,
)
from architecture.sources import BENCH, DOCS, PACKAGE, ROOT, TESTS, relative, source

SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".sh", ""}
FOLDERS = (PACKAGE, TESTS, DOCS, BENCH)
FILES = (ROOT / "README.md", ROOT / "run")
# A line break with all that an eye skips there: indentation, comment signs, the quotes of two adjacent literals.
WORD = re.compile("[a-z]+")
SEAM = re.compile(r"[\"']?[ \t]*\n[ \t]*(?:#:?|//+|\*|<!--|[rfb]{0,2}[\"'])?")
GLOSSARY_ROW = re.compile(r"^\| ([^|]+?) \|", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Offender:
    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word}  ->  {self.instead}"


def searched_files() -> list[Path]:
    """The files that are searched, sorted."""
    found = [path for folder in FOLDERS for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    return sorted(path for path in (*found, *FILES) if is_searched(path))


def is_searched(path: Path) -> bool:
    name = relative(path)
    return path.is_file() and "__pycache__" not in path.parts and not name.startswith(EXEMPT)


def area(path: str) -> str:
    """The part of the tree that has a count of its own: a package of src, a folder of tests, docs."""
    parts = path.split("/")[:-1]
    if not parts:
        return path
    depth = 3 if parts[:2] in (["src", "sporelm"], ["tests", "unit"]) else 2
    return "/".join(parts[:depth])


def offenders(paths: list[Path] | None = None) -> list[Offender]:
    """All retired words in the files, or in all of them."""
    return sorted(each for path in (searched_files() if paths is None else paths) for each in in_file(path))


def by_area() -> dict[str, list[str]]:
    """All offenders by area, as lines to show."""
    found: dict[str, list[str]] = {}
    for each in offenders():
        found.setdefault(area(each.path), []).append(str(each))
    return found


def in_file(path: Path) -> Iterator[Offender]:
    """The retired words of one file, without those on lines that are marked."""
    name, text = relative(path), path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for line, word, instead in in_text(name, text):
        if MARK not in lines[line - 1]:
            yield Offender(name, line, word, instead)
    if path.suffix == ".py":
        yield from in_definitions(path, lines)
    elif name == "docs/glossary.md":
        for row in GLOSSARY_ROW.finditer(text):
            if set(re.split(r"[ ,]+", row[1])) & set(GLOSSARY_KEYS.split()):
                yield Offender(name, text.count("\n", 0, row.start()) + 1, row[1], "the field's term")


def in_text(name: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and replacement of the retired phrases in a text."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters have longer lower-case forms
        lower = "".join(letter.lower()[0] for letter in text)
    plain, first_words, end = SEAM.sub(_spaces, lower), _first_words(name), 0
    for word in WORD.finditer(plain):
        rules = first_words.get(word[0])
        if rules is None or word.start() < end:
            continue
        for rest, instead in rules:
            if match := rest.match(plain, word.end()):
                end = match.end()
                if instead:
                    yield plain.count("\n", 0, word.start()) + 1, " ".join(plain[word.start() : end].split()), instead
                break


def in_definitions(path: Path, lines: list[str]) -> Iterator[Offender]:
    """The retired identifiers that a Python file defines, and its docstrings that open with a pronoun."""
    name, facts = relative(path), source(path)
    for each in facts.definitions:
        instead = retired(name, each.kind, each.name)
        if instead and not (lines and MARK in lines[each.line - 1]):
            yield Offender(name, each.line, f"{each.kind} {each.name}", instead)
    for line, text in facts.docstrings:
        first = re.match(r"\w*", text)
        if first and first[0].lower() in OPENINGS.split():
            yield Offender(name, line, f'docstring "{first[0]} ..."', "an imperative, or a noun that names the thing")


def retired(path: str, kind: str, name: str) -> str:
    """The replacement of an identifier that is defined in a file; "" if it is not retired."""
    for each, kinds, only, instead in _names():
        if name in each and (not kinds or kind in kinds) and (not only or path.startswith(only)):
            return instead
    for pattern, instead, only in NAME_PATTERNS:
        if re.fullmatch(pattern, name) and (not only or path.startswith(only)):
            return instead
    return ""


def _spaces(seam: re.Match[str]) -> str:
    """As many characters, so that positions stay: spaces, and the line break."""
    before, after = seam[0].split("\n")
    return " " * len(before) + "\n" + " " * len(after)


def _first_words(path: str) -> dict[str, list[tuple[re.Pattern[str], str]]]:
    """The rules for a file by the first word of their phrases."""
    phrases = (*ALLOWED, *PHRASES)
    return _rules(tuple(each for each in phrases if not each.only or path.startswith(each.only)))


@cache
def _rules(phrases: tuple[Phrase, ...]) -> dict[str, list[tuple[re.Pattern[str], str]]]:
    found: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    for each in phrases:
        rest = re.compile(each.rest.replace(" ", r"[\s_]+"))
        for word in each.words.split():
            found.setdefault(word, []).append((rest, each.instead))
    return found


@cache
def _names() -> tuple[tuple[frozenset[str], tuple[str, ...], tuple[str, ...], str], ...]:
    """NAMES with sets; a bare participle is retired in lower case and as a class."""
    found = []
    for each in NAMES:
        names = each.names.split()
        spelled = [*names, *(f"_{name}" for name in names)]
        if each.names.islower() and each.kinds:
            spelled += [prefix + name.capitalize() for name in names for prefix in ("", "_")]
        found.append((frozenset(spelled), each.kinds, each.only, each.instead))
    return tuple(found)


def main(words: list[str]) -> int:
    """Print the offenders below some paths (all without one) and their number."""
    given = [Path(word).resolve() for word in words] or [ROOT]
    chosen = [path for path in searched_files() if any(path.is_relative_to(each) for each in given)]
    found = offenders(chosen)
    for each in found:
        print(each)
    print(f"{len(found)} retired words and phrases in {len(chosen)} files", file=sys.stderr)
    return min(len(found), 1)


SUBJECTS = {"retired words": by_area}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
