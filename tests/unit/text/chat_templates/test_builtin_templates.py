"""Built-in chat templates write what llama.cpp's of the same name do; files take their place, and today has a date."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from sporelm import LLM, SamplingParams
from sporelm.errors import ModelFileError, RequestError
from sporelm.text import ChatTemplate, Tokenizer, load_tokenizer
from sporelm.text.chat_templates import template_sandbox
from sporelm.text.chat_templates.builtin_templates import BUILTIN_TEMPLATES, use_template

# What `llama_chat_apply_template` of llama.cpp (src/llama-chat.cpp) writes of its own test conversation, without the
# new line after granite's last mark, which the model's own template does not have.
EXPECTED = json.loads((Path(__file__).parents[3] / "data" / "builtin_templates.json").read_text(encoding="utf-8"))
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def tokenizer(story: Path) -> Tokenizer:
    return load_tokenizer(story)


def test_every_template_has_an_expected_text() -> None:
    assert BUILTIN_TEMPLATES.keys() == EXPECTED["texts"].keys()


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
def test_texts_are_those_of_llama_cpp(name: str) -> None:
    assert ChatTemplate(BUILTIN_TEMPLATES[name]).render(EXPECTED["messages"]).text == EXPECTED["texts"][name]


def test_bos_comes_first_where_the_model_wants_it(tokenizer: Tokenizer) -> None:
    use_template(tokenizer, "chatml")
    rendered = ChatTemplate.of(tokenizer).render(USER)
    assert rendered.text == "<|start_story|><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode_prompt(rendered)[:2] != [tokenizer.bos_id] * 2


def test_bos_is_not_written_twice(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some formats begin with the text of their models' BOS."""
    monkeypatch.setitem(BUILTIN_TEMPLATES, "own", '{{ "<|start_story|>" }}{{ messages[0].content }}')
    use_template(tokenizer, "own")
    assert ChatTemplate.of(tokenizer).render(USER).text == "<|start_story|>Hi"


def test_a_file_is_a_template_too(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    use_template(tokenizer, str(tmp_path / "mine.jinja"))
    assert ChatTemplate.of(tokenizer).render(USER).text == "[Hi]"
    assert ChatTemplate.of(tokenizer, tools=True).render(USER).text == "[Hi]"
    (tmp_path / "mine.jinja").write_text("{% for m in messages")
    with pytest.raises(ModelFileError, match=r"the chat template 'mine.jinja' is malformed"):
        use_template(tokenizer, str(tmp_path / "mine.jinja"))


def test_unknown_template_name_is_rejected(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"neither a file nor a name \(got 'chatlm'; names: default .*chatml, "):
        use_template(tokenizer, "chatlm")
    with pytest.raises(RequestError, match="is a folder; give a file"):
        use_template(tokenizer, str(tmp_path))
    with pytest.raises(RequestError, match=r"neither a file nor a name \(got ''"):
        use_template(tokenizer, "")


def test_default_is_the_models_own(tokenizer: Tokenizer) -> None:
    before = tokenizer.chat_templates
    use_template(tokenizer, "default")
    assert tokenizer.chat_templates is before


# ---- what a model is shown


@pytest.fixture(scope="module")
def llm(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1, chat_template="zephyr") as made:
        yield made


def test_a_model_without_a_template_chats_with_one(llm: LLM) -> None:
    assert llm.render(USER).text == "<|start_story|><|user|>\nHi<|endoftext|>\n<|assistant|>\n"
    assert llm.chat(USER, SamplingParams(max_tokens=2)).token_ids


def test_developer_is_another_name_of_system(llm: LLM) -> None:
    texts = [llm.render([{"role": role, "content": "x"}, *USER]).text for role in ("system", "developer")]
    assert texts[0] == texts[1]
    assert "<|system|>" in texts[0]


def test_today_is_offered_as_llama_cpp_does(story: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shared / "data/templates/meta-llama-Llama-3.1-8B-Instruct.jinja"
    monkeypatch.setattr(template_sandbox, "strftime_now", lambda form: datetime(2031, 5, 7).strftime(form))
    tokenizer = load_tokenizer(story)
    use_template(tokenizer, str(source))
    assert "Today Date: 07 May 2031" in ChatTemplate.of(tokenizer).render(USER).text
    given = ChatTemplate.of(tokenizer).render(USER, date_string="01 Jan 2000").text
    assert "Today Date: 01 Jan 2000" in given
    # as transformers has it, to which templates are compared
    assert "Today Date: 26 Jul 2024" in ChatTemplate(source.read_text(encoding="utf-8")).render(USER).text


def test_a_template_that_renders_nothing_is_named(story: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jinja").write_text("{# nothing #}")
    told = "the chat template 'empty.jinja' renders no tokens for these messages"
    template = tmp_path / "empty.jinja"
    with LLM(story, threads=1, chat_template=template) as made, pytest.raises(RequestError, match=re.escape(told)):
        made.chat(USER)
