"""The web chat's files: complete in both languages, nothing from outside, nothing inline, licences beside libraries."""

import re
from pathlib import Path

import pytest

from sporelm.engine.engine_config import EngineConfig
from sporelm.errors import ContextOverflow
from sporelm.serve.http.api_errors import overflow_message

FOLDER = Path(__file__).resolve().parents[3] / "src" / "sporelm" / "serve" / "webui"
OURS = sorted(
    path for kind in ("html", "js", "css") for path in FOLDER.rglob(f"*.{kind}") if "vendor" not in path.parts
)
WORD = re.compile(r"^  (\w+): \"(.*)\",$", re.MULTILINE)


def words(language: str) -> dict[str, str]:
    return dict(WORD.findall((FOLDER / "js" / "lang" / f"{language}.js").read_text(encoding="utf-8")))


def test_both_languages_say_the_same() -> None:
    english, chinese = words("en"), words("zh")
    assert list(english) == list(chinese)
    for name, text in english.items():
        holes = [set(re.findall(r"\{(\w+)\}", each)) for each in (text, chinese[name])]
        assert holes[0] - ({"model"} if name == "say" else set()) == holes[1], name
        forms = [set(re.findall(r"\{(\w+)\}", each)) for each in text.split("|")]
        assert len(forms) <= 2, name
        assert "|" not in chinese[name], f"{name}: Chinese has one form for every number"


def test_the_page_finds_the_numbers_of_a_prompt_that_is_too_long() -> None:
    """Which it tells in its own words; the engine's stand in `Limits.check_prompt` and `LoadedLLM`."""
    text = (FOLDER / "js" / "api.js").read_text(encoding="utf-8")
    pattern = re.search(r"const numbers = /(.*)/\.exec", text)
    assert pattern
    limits = EngineConfig(max_context=64, model_context=128, vocab=9, token_budget=8, max_batch=1, num_pages=1)
    with pytest.raises(ContextOverflow) as refused:
        limits.check_prompt(900)
    told = "the text has 900 characters: at most 80 fit in a context of 64 tokens; shorten it"
    for message in (overflow_message(refused.value), told):
        found = re.search(pattern[1], message)
        assert found, message
        assert found.groups() == ("900", "64")


def test_every_word_that_is_asked_for_is_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in OURS)
    asked = {*re.findall(r'\bt\("(\w+)"', text), *re.findall(r'data-t(?:-\w+)?="(\w+)"', text)}
    assert asked - words("en").keys() == set()
    english = (FOLDER / "js" / "lang" / "en.js").read_text(encoding="utf-8")
    rest = text.replace(english, "")
    assert [name for name in words("en") if not re.search(rf'["\']{name}["\']|\b{name}:', rest)] == []


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_from_outside_and_nothing_inline(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|\beval\(|new Function", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=\"", text)


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".css"], ids=lambda path: path.name)
def test_styles_follow_the_direction_of_the_text(path: Path) -> None:
    sides = r"(?:margin|padding|border)-(?:left|right)\b|text-align: *(?:left|right)|(?<![\w-])(?:left|right):"
    assert re.findall(sides, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_what_a_file_asks_for_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r'(?:from|import|import\() ?"(\.[^"]+)"', text):
        assert (path.parent / target).is_file(), target
    for target in re.findall(r'(?:src|href)="(webui/[^"]+)"', text):
        assert (FOLDER.parent / target).is_file(), target


def test_libraries_have_their_licences_and_are_named() -> None:
    notice = (FOLDER.parents[3] / "NOTICE").read_text(encoding="utf-8")
    for folder in (FOLDER / "vendor").iterdir():
        assert (folder / "LICENSE").is_file()
        assert f"{folder.name}/LICENSE" in notice
    for version, file in [
        ("marked 18.2.1", "marked/marked.esm.js"),
        ("DOMPurify 3.4.18", "dompurify/purify.min.js"),
        ("highlight.js 11.12.0", "highlight/highlight.min.js"),
        ("KaTeX 0.19.1", "katex/katex.min.js"),
    ]:
        assert version in notice
        assert version.split()[1] in (FOLDER / "vendor" / file).read_text(encoding="utf-8")
    style = (FOLDER / "vendor" / "katex" / "katex.min.css").read_text(encoding="utf-8")
    fonts = set(re.findall(r"url\(([^)]+)\)", style))
    assert fonts
    assert all((FOLDER / "vendor" / "katex" / font).is_file() for font in fonts)


def test_the_settings_show_what_holds_where_nothing_is_set() -> None:
    from sporelm.api.sampling_params import SamplingParams

    text = (FOLDER / "js" / "dialogs.js").read_text(encoding="utf-8")
    table = text[text.index("const SAMPLING = {") : text.index("};")]
    shown = dict(re.findall(r"^  (\w+): \[.*, ([\d.]+)\],$", table, re.MULTILINE))
    assert len(shown) == 7
    defaults = SamplingParams()
    assert {name: getattr(defaults, name) for name in shown} == {name: float(value) for name, value in shown.items()}


def test_files_are_packed_and_kept_under_the_mark_of_what_they_hold() -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from sporelm.serve.http.access_control import is_public
    from sporelm.serve.webui import web_chat_routes

    client = TestClient(Starlette(routes=web_chat_routes()))
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    places = set(re.findall(r'"(webui/-[0-9a-f]{16}/[^"]+)"', page.text))
    assert len(places) > 20
    assert not re.search(r'"webui/(?!-)', page.text)
    total = int(page.headers["content-length"])
    for place in sorted(places):
        found = client.get(f"/{place}")
        assert found.status_code == 200
        assert "immutable" in found.headers["cache-control"]
        assert is_public("GET", f"/{place}")
        plain = client.get(f"/{place}", headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == found.content
        total += int(found.headers["content-length"])
    assert total < 108_000, "bytes of the first load"
    old = client.get("/webui/-0123456789abcdef/js/app.js")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")
    for place in ("/webui/-0123456789abcdef/keys.py", "/webui/-0123456789abcdef/../keys.py", "/webui/-012/js/app.js"):
        assert not is_public("GET", place)
        assert client.get(place).status_code == 404


def test_every_module_is_asked_for_at_once() -> None:
    """The page names what its modules import, so that a browser need not read one to learn of the next."""
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'href="webui/(js/[^"]+\.js)"', page)) | {"js/app.js"}
    assert named == {path.relative_to(FOLDER).as_posix() for path in (FOLDER / "js").rglob("*.js")}


def test_the_routes_serve_the_files_and_no_others() -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from sporelm.serve.webui import web_chat_routes

    client = TestClient(Starlette(routes=web_chat_routes()))
    kinds = {
        "/": "text/html; charset=utf-8",
        "/webui/js/app.js": "text/javascript; charset=utf-8",
        "/webui/css/page.css": "text/css; charset=utf-8",
        "/webui/icon.svg": "image/svg+xml",
        "/webui/vendor/katex/fonts/KaTeX_Main-Regular.woff2": "font/woff2",
    }
    for place, kind in kinds.items():
        found = client.get(place)
        assert (found.status_code, found.headers["content-type"]) == (200, kind)
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert client.get(place, headers={"if-none-match": found.headers["etag"]}).status_code == 304
    for place in (
        "__init__.py",
        "js",
        "js/../__init__.py",
        "..%2fconversations.py",
        "%2e%2e/keys.py",
        "vendor/katex/LICENSE",
    ):
        assert client.get(f"/webui/{place}").status_code == 404
