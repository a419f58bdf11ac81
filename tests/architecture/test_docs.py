"""The documents agree with the code."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from architecture.sources import BENCH, DOCS, PACKAGE, ROOT, TESTS, packages, relative, sources
from sporelm import SamplingParams, settings
from sporelm.cli import docs_pages
from sporelm.cli.sampling_options import LENGTH_OPTIONS, PENALTY_OPTIONS, SAMPLER_OPTIONS

PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ADR = re.compile(r"\d{4}-[a-z0-9-]+\.md")
WALKS = ("A prompt's ids to the kernel", "A weight's bytes to the kernel", "An HTTP request to its tokens")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_each_package_has_a_sentence() -> None:
    text, wrong = read(DOCS / "architecture.md"), []
    for package in packages():
        line = re.search(rf"^- `{re.escape(package)}`: (.+)$", text, re.MULTILINE)
        if line is None or not line[1].endswith("."):
            wrong.append(package)
    assert not wrong, (
        f"docs/architecture.md needs a line '- `PACKAGE`: ...' with one sentence and its full stop: {wrong}"
    )


def test_no_sentence_without_a_package() -> None:
    named = re.findall(r"^- `([a-z0-9_.]+)`: ", read(DOCS / "architecture.md"), re.MULTILINE)
    gone = [
        name
        for name in named
        if not (PACKAGE / name.replace(".", "/")).is_dir() and not (PACKAGE / f"{name}.py").is_file()
    ]
    assert not gone, f"docs/architecture.md describes {gone}, which do not exist"


def test_each_setting_is_documented() -> None:
    text = read(DOCS / "settings.md")
    missing = [each.name for each in settings.ALL if f"### {each.name}\n\n{each.doc}" not in text]
    assert not missing, f"docs/settings.md lacks {missing}: ./run docs writes it"


def test_commands_page_is_the_help() -> None:
    assert read(DOCS / "commands.md") == docs_pages.commands_page(), (
        "docs/commands.md is out of date: ./run docs writes it"
    )


def test_settings_page_is_current() -> None:
    assert read(DOCS / "settings.md") == docs_pages.settings_page(), (
        "docs/settings.md is out of date: ./run docs writes it"
    )


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page whose file or heading does not exist."""
    for target in LINK.findall(read(page)):
        place, _, anchor = target.partition("#")
        if "://" in place:
            continue
        path = (page.parent / place).resolve() if place else page
        if not path.exists():
            yield f"{relative(page)} links to {target}, which does not exist"
        elif anchor:
            heads = re.findall(r"^#+ (.+)$", read(path), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            if anchor not in anchors:
                yield f"{relative(page)} links to {target}; its headings are {sorted(anchors)}"


def test_links_resolve() -> None:
    broken = [each for page in PAGES for each in broken_links(page)]
    assert not broken, "\n".join(broken)


def named_files(page: Path) -> Iterator[str]:
    """The Python files that a page names with a folder; a superseded decision names those of its time."""
    text = read(page)
    if not re.search(r"^Status: superseded", text, re.MULTILINE):
        yield from re.findall(r"`(\w[\w/]*/\w+\.py)`", text)


def test_each_named_file_exists() -> None:
    known = {relative(path) for folder in (PACKAGE, TESTS, BENCH) for path in folder.rglob("*.py")}
    tails = {"/".join(parts[at:]) for parts in (name.split("/") for name in known) for at in range(len(parts))}
    wrong = [
        f"{relative(page)} names {name}, which does not exist"
        for page in PAGES
        for name in named_files(page)
        if name not in tails and Path(name).name != "example.py"
    ]
    assert not wrong, "\n".join(wrong)


def test_decisions_are_numbered_and_have_a_status() -> None:
    found = sorted((DOCS / "adr").glob("*.md"))
    assert found
    for path in found:
        assert ADR.fullmatch(path.name), f"{path.name}: name it NNNN-title.md"
        assert re.search(r"^Status: \w+", read(path), re.MULTILINE), f"{path.name} needs a line 'Status: ...'"
    numbers = [path.name[:4] for path in found]
    assert len(numbers) == len(set(numbers)), "two decisions have one number"


def walks() -> dict[str, str]:
    """The text of each walk through the code in docs/architecture.md, by its heading."""
    sections = re.split(r"^## (.+)$", read(DOCS / "architecture.md"), flags=re.MULTILINE)
    return {head: text for head, text in zip(sections[1::2], sections[2::2], strict=True) if head in WALKS}


def test_architecture_walks_through_the_code_in_numbered_steps() -> None:
    found = walks()
    assert tuple(found) == WALKS
    for head, text in found.items():
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
        assert len(numbers) >= 8, head
        assert numbers == list(range(1, len(numbers) + 1)), head


def test_each_file_of_a_walk_exists_and_is_named_once() -> None:
    named = Counter(re.findall(r"`(\w[\w/]*\.py)`", "".join(walks().values())))
    wrong = [f"{name} does not exist" for name in named if not (PACKAGE / name).is_file()]
    wrong += [f"{name} is named {times} times" for name, times in named.items() if times > 1]
    assert not wrong, f"the walks of docs/architecture.md: {wrong}"


def test_each_module_has_a_docstring() -> None:
    missing = [relative(each.path) for each in sources(PACKAGE) if not each.has_docstring]
    assert not missing, f"a docstring is missing: {missing}"


def test_the_readme_leads_to_each_page() -> None:
    text = read(ROOT / "README.md")
    missing = [page.name for page in sorted(DOCS.glob("*.md")) if f"(docs/{page.name}" not in text]
    assert not missing, f"README.md has no link to {missing}"


def test_every_way_of_choosing_tokens_is_on_its_page() -> None:
    listed = read(DOCS / "sampling.md") + read(DOCS / "sessions.md") + read(DOCS / "lora.md")
    for field in dataclasses.fields(SamplingParams):
        assert field.name in listed
    for option, *_ in (*SAMPLER_OPTIONS, *PENALTY_OPTIONS, *LENGTH_OPTIONS):
        assert f"`{option}`" in listed


def test_every_measurement_of_the_engine_is_on_its_page() -> None:
    names = re.search(r"^NAMES = \((.+)\)$", read(ROOT / "bench" / "engine.py"), re.MULTILINE)
    assert names
    for name in re.findall(r'"(\w+)"', names[1]):
        assert f"| `{name}` |" in read(DOCS / "benchmarks.md")
