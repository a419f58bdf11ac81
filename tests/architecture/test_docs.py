"""The documents agree with the code."""

import dataclasses
import re
from pathlib import Path

import pytest

from architecture.sources import DOCS, PACKAGE, ROOT, packages, python_files, relative
from sporelm import SamplingParams, settings
from sporelm.cli import pages
from sporelm.cli.sampling import CHOOSING, ENDING, REPEATING

PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ADR = re.compile(r"\d{4}-[a-z0-9-]+\.md")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("package", packages())
def test_package_has_a_sentence(package: str) -> None:
    line = re.search(rf"^- `{re.escape(package)}`: (.+)$", read(DOCS / "architecture.md"), re.MULTILINE)
    assert line, f"docs/architecture.md needs a line '- `{package}`: ...' with one sentence"
    assert line[1].endswith("."), f"the sentence of {package} ends with a full stop"


def test_no_sentence_without_a_package() -> None:
    named = re.findall(r"^- `([a-z0-9_.]+)`: ", read(DOCS / "architecture.md"), re.MULTILINE)
    gone = [
        name
        for name in named
        if not (PACKAGE / name.replace(".", "/")).is_dir() and not (PACKAGE / f"{name}.py").is_file()
    ]
    assert not gone, f"docs/architecture.md describes {gone}, which are not there"


@pytest.mark.parametrize("setting", settings.ALL, ids=lambda setting: setting.name)
def test_setting_is_documented(setting: settings.Setting) -> None:
    assert f"### {setting.name}\n\n{setting.doc}" in read(DOCS / "settings.md"), "write it with: ./run docs"


def test_commands_page_is_the_help() -> None:
    assert read(DOCS / "commands.md") == pages.commands_page(), "docs/commands.md is out of date: ./run docs writes it"


def test_settings_page_is_current() -> None:
    assert read(DOCS / "settings.md") == pages.settings_page(), "docs/settings.md is out of date: ./run docs writes it"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_resolve(page: Path) -> None:
    for target in LINK.findall(read(page)):
        place, _, anchor = target.partition("#")
        if "://" in place:
            continue
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), f"{relative(page)} links to {target}, which is not there"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", read(path), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in anchors, f"{relative(page)} links to {target}; there are {sorted(anchors)}"


def test_decisions_are_numbered_and_have_a_status() -> None:
    found = sorted((DOCS / "adr").glob("*.md"))
    assert found
    for path in found:
        assert ADR.fullmatch(path.name), f"{path.name}: name it NNNN-title.md"
        assert re.search(r"^Status: \w+", read(path), re.MULTILINE), f"{path.name} needs a line 'Status: ...'"
    numbers = [path.name[:4] for path in found]
    assert len(numbers) == len(set(numbers)), "two decisions have one number"


def test_architecture_follows_a_request_in_eight_steps() -> None:
    text = read(DOCS / "architecture.md")
    life = text[text.index("## Life of a request") :]
    assert [int(number) for number in re.findall(r"^(\d)\. ", life, re.MULTILINE)] == list(range(1, 9))


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    import ast

    assert ast.get_docstring(ast.parse(read(path))), f"{relative(path)} needs a docstring"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"(docs/{page.name}" in read(ROOT / "README.md")


def test_every_way_of_choosing_tokens_is_on_its_page() -> None:
    listed = read(DOCS / "sampling.md") + read(DOCS / "sessions.md") + read(DOCS / "lora.md")
    for field in dataclasses.fields(SamplingParams):
        assert field.name in listed
    for option, *_ in (*CHOOSING, *REPEATING, *ENDING):
        assert f"`{option}`" in listed


def test_every_measurement_of_the_engine_is_on_its_page() -> None:
    names = re.search(r"^NAMES = \((.+)\)$", read(ROOT / "bench" / "engine.py"), re.MULTILINE)
    assert names
    for name in re.findall(r'"(\w+)"', names[1]):
        assert f"| `{name}` |" in read(DOCS / "benchmarks.md")
