"""`spore chat --url` against our own server, with the story model."""

import signal
import time
from collections.abc import Callable

import pytest

from sporelm.cli.chat_screen import ChatScreen
from sporelm.serve.http.api_keys import ApiKey
from system.serve.running_server import Running

Chat = Callable[..., tuple[int, str, str]]


def test_the_chat_says_what_the_server_answers(spoken: Chat, served: Running) -> None:
    words = ["--url", served.url, "--temp", "0", "-n", "12", "--top-k", "0", "--repetition-penalty", "1.1"]
    code, out, err = spoken(words, "Once upon a time there was", "/fork", "And then", "/list")
    assert code == 0, err
    messages = [{"role": "user", "content": "Once upon a time there was"}]
    answers = []
    for more in ("And then", ""):
        body = {"messages": messages, "temperature": 0, "max_tokens": 12, "top_k": 0, "repetition_penalty": 1.1}
        answers.append(
            served.client().post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        )
        messages += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": more}]
    first, copied, second, *listed = out.splitlines()
    assert [first, second] == answers
    assert copied == "conversation 2 (copy of 1)"
    assert listed == ["  1  1 turn  Once upon a time there was", "* 2  2 turns  Once upon a time there was"]
    assert f"spore: {served.url}/v1 answers with story, its only model" in err
    assert err.count("12 tokens") == 2
    assert err.count("in the prompt cached") == 2


def test_ctrl_c_ends_the_answer_on_the_server(spoken: Chat, served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    say = ChatScreen.print_text

    def interrupting(screen: ChatScreen, text: str) -> None:
        say(screen, text)
        if text:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ChatScreen, "print_text", interrupting)
    words = ["story", "--url", served.url, "-n", "100000", "--ignore-eos", "--roll"]
    code, out, err = spoken(words, "Once upon a time", "/list")
    assert code == 0, err
    assert err.splitlines()[0] == "stopped"
    assert "1 turn  Once upon a time" in out
    end = time.monotonic() + 60
    while not served.engine_idle():
        assert time.monotonic() < end, "the answer goes on"
        time.sleep(0.005)


def test_what_the_server_refuses(spoken: Chat, serve: Callable[..., Running]) -> None:
    running = serve(keys=(ApiKey.parse("ann:s3cret"),))
    words = ["--url", running.url, "--api-key"]
    assert "rejects the API key (401)" in spoken([*words, "wrong"])[2]
    assert "requires an API key (401)" in spoken(words[:2])[2]
    code, _, err = spoken(["unknown", *words, "s3cret"], "Hi")
    assert code == 1
    assert "'unknown'" in err
    assert "leave MODEL out to use its first model" in err
    code, _, err = spoken([*words, "s3cret", "-n", "2"], "/args temp -1", "Hi", "/args temp 0", "Hi " * 2000, "Hi")
    assert code == 1
    assert "rejects the request (400)" in err
    assert "temperature" in err
    assert "context" in err
    assert err.splitlines()[-1].startswith("2 tokens")
