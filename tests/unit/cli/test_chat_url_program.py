"""`spore chat --url` as a program: its options, what it prints, how it ends."""

import _thread
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from architecture.sources import PACKAGE
from sporelm import settings
from sporelm.cli import chat
from sporelm.cli.chat_screen import ChatScreen
from sporelm.cli.chat_sessions import ARGUMENTS, field_of
from sporelm.cli.remote.remote_params import RemoteParams
from sporelm.cli.sampling_options import LENGTH_OPTIONS, PENALTY_OPTIONS, SAMPLER_OPTIONS, dest_of
from sporelm.cli.terminal_text import escape_controls
from unit.cli.scripted_server import DONE, STREAM, answer, chunk, models, reply, scripted

Chat = Callable[..., tuple[int, str, str]]


def test_a_chat_through_a_pipe(spoken: Chat) -> None:
    with scripted(models("smol", "other"), answer("Hel", "lo"), answer("Bye")) as server:
        code, out, err = spoken(["--url", server.url, "--system", "S"], "Hi", "/fork", "Go", "/list", "/exit", "never")
    assert code == 0
    assert out == "Hello\nconversation 2 (copy of 1)\nBye\n  1  1 turn  Hi\n* 2  2 turns  Hi\n"
    first, *rest = err.splitlines()
    assert first == f"spore: {server.url}/v1 answers with smol, the first of its 2 models"
    assert [line.split(",")[0].split(" |")[0] for line in rest] == ["2 tokens", "1 token"]
    assert [request.body["model"] for request in server.requests[1:]] == ["smol", "smol"]


def test_a_model_that_is_named_is_not_asked_for(spoken: Chat) -> None:
    with scripted(answer("Hi")) as server:
        assert spoken(["mine", "--url", server.url], "Hello")[:2] == (0, "Hi\n")
    assert server.requests[0].body["model"] == "mine"


def test_failures_are_one_line_each_and_the_chat_goes_on(spoken: Chat) -> None:
    cut = STREAM + chunk(content="cu") + chunk(content="t")
    with scripted(reply(429, {"error": "busy"}, "Retry-After: 3"), cut, answer("whole")) as server:
        code, out, err = spoken(["m", "--url", server.url], "one", "two", "/nope", "three", "/list")
    assert code == 1
    assert out == "cut\nwhole\n* 1  1 turn  three\n"
    busy, ended, unknown, figures = err.splitlines()
    assert busy == f"spore: {server.url} is overloaded (429): busy; try again in 3 s"
    assert "without [DONE]: the turn was dropped" in ended
    assert "Unknown command" in unknown
    assert figures.startswith("1 token")


def test_a_server_cannot_steer_the_terminal(spoken: Chat) -> None:
    """Not by answers, thoughts, errors, names of models, or conversations in files."""
    evil = "\x1b]0;title\x07\x9b2J\r\b\x00"
    shown = "\\x1b]0;title\\x07\\x9b2J\\r\\x08\\x00"
    stream = STREAM + chunk(reasoning=evil) + chunk(content=f"a\tb\n{evil}👨\u200d👩") + chunk(f"st{evil}") + DONE
    refused = reply(400, {"error": {"message": evil}}, "Retry-After: \x1b[2J")
    moved = reply(301, b"", "Location: http://x/\x1b[2J")
    with scripted(models(evil), stream, refused, moved, reply(200, b"", kind="text/\x1b[2J")) as server:
        _, out, err = spoken(["--url", server.url], "one", "two", "three", "four", f"/{evil}")
    assert f"a\tb\n{shown}👨\u200d👩\n" in out
    assert f"answers with {shown}" in err
    assert len(err.splitlines()) == 7, err
    assert not set(out + err) & {chr(code) for code in (*range(32), *range(127, 160))} - set("\t\n")


def test_thoughts_go_to_stderr(spoken: Chat) -> None:
    stream = STREAM + chunk(reasoning_content="Let me ") + chunk(reasoning_content="see.") + chunk(content="4")
    with scripted(stream + chunk("stop") + DONE) as server:
        _, out, err = spoken(["m", "--url", server.url], "2+2")
    assert out == "4\n"
    assert err.startswith("Let me see.\n3 pieces")


def test_ctrl_c_stops_the_answer_and_what_came_stays(spoken: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(STREAM + chunk(content="one ") + chunk(content="two"))
        server.until_closed(connection)

    print_text = ChatScreen.print_text

    def interrupting(screen: ChatScreen, text: str) -> None:
        print_text(screen, text)
        if text == "two":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ChatScreen, "print_text", interrupting)
    with scripted(endless, answer("more")) as server:
        code, out, err = spoken(["m", "--url", server.url], "Hi", "/list", "Go on")
        assert server.closed_early.wait(60)
    assert (code, out) == (0, "one two\n* 1  1 turn  Hi\nmore\n")
    assert err.splitlines()[0] == "stopped"
    assert [each["content"] for each in server.requests[1].body["messages"]] == ["Hi", "one two", "Go on"]


def test_ctrl_c_before_the_first_piece(spoken: Chat) -> None:
    """The server has the request and says nothing; the question is not kept."""

    def silent(connection: socket.socket) -> None:
        _thread.interrupt_main()
        server.until_closed(connection)

    with scripted(silent, answer("a")) as server:
        code, out, err = spoken(["m", "--url", server.url], "Hi", "Again")
    assert (code, out) == (0, "\na\n")
    assert err.startswith("stopped\n")
    assert [each["content"] for each in server.requests[1].body["messages"]] == ["Again"]


def test_no_server_listens(spoken: Chat) -> None:
    with socket.socket() as silent:  # keeps its port for itself and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        code, out, err = spoken(["--url", f"http://127.0.0.1:{port}"], "Hi")
    assert (code, out) == (1, "")
    assert err == f"spore: http://127.0.0.1:{port} refuses connections: is the server running?\n"


def test_args_shows_what_is_sent_and_takes_it_back(spoken: Chat) -> None:
    with scripted(answer("a")) as server:
        words = ["m", "--url", server.url, "--temp", "0.8", "-n", "9"]
        lines = [
            "Hi",
            "/args top-k 7",
            "/args temp none",
            "Ho",
            "/args seed nan",
            "/args roll perhaps",
            "/args min-p nan",
        ]
        code, out, err = spoken([*words, "--api-key", "k"], *lines)
    assert code == 1
    first, second = (request.body for request in server.requests)
    assert (first["temperature"], first["max_tokens"]) == (0.8, 9), "a default that is given is sent"
    assert "top_k" not in first
    assert second["top_k"] == 7
    assert "temperature" not in second
    assert "temperature         (the server's)" in out
    assert err.splitlines()[2:] == [
        "spore: seed cannot be 'nan': a number is expected",
        "spore: roll cannot be 'perhaps': it must be on or off",
        "spore: min_p is nan: it must be a finite number",
    ]


def test_save_and_load(spoken: Chat, tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    with scripted(answer("Hello")) as server:
        code, out, _ = spoken(
            ["m", "--url", server.url], "Hi", f"/save {path}", f"/load {path}", "/help", "/load nothing"
        )
    assert code == 1
    assert f"wrote {path}, 0.1 kB\nconversation 2 (from {path}, 1 turn)" in out
    assert "/save FILE           write the current conversation to a file, as JSON" in out
    assert "none leaves it to the server" in out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[
            ("--session-dir", "d"),
            ("--threads", "2"),
            ("--backend", "cpu"),
            ("--device", "cpu"),
            ("--max-context", "9"),
        ],
        *[("--kv", "f16"), ("--kv-memory", "1G"), ("--speculate", "ngram"), ("--draft-model", "m"), ("--eager", None)],
        *[("--lora", "a.gguf"), ("--trace", "t"), ("--record", "r")],
    ],
)
def test_options_of_an_engine_are_refused(spoken: Chat, option: str, value: str | None) -> None:
    code, out, err = spoken(["--url", "http://127.0.0.1:1", option, *([value] if value else [])])
    assert (code, out) == (2, "")
    assert err == (
        f"spore: {option} is for a local model, and with --url the model runs on the server: leave one of them out\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--api-key", "k"], "--api-key is for a server: name one with --url"),
        (["--url", "127.0.0.1:8000"], "write it as http://127.0.0.1:8000"),
        (["--url", "http://me:pass@host"], "give the key with --api-key"),
        (["--url", "http://h", "--api-key", "two words"], "the API key has invalid characters"),
        (["--url", "http://h", "--temp", "nan"], "temperature is nan"),
        (["--url", "http://h", "--logit-bias", "1=2", "--logit-bias", "1=3"], "names a token twice"),
    ],
)
def test_wrong_usage(spoken: Chat, words: list[str], message: str) -> None:
    code, out, err = spoken(words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert "pass@" not in err


def test_every_option_of_sampling_has_its_field() -> None:
    """Each option that the chat has is sent, or refused; and those of SamplingParams have the server's names."""
    words = [
        word
        for option, _, kind, *_ in (*SAMPLER_OPTIONS, *PENALTY_OPTIONS, *LENGTH_OPTIONS)
        for word in (option, str(kind(1)))
    ]
    words += ["--stop", "a", "--stop", "b", "--stop-token-id", "3", "--logit-bias", "5=-1", "--dry-breaker", "none"]
    words += ["--ignore-eos", "--roll", "-n", "1", "--url", "http://h"]
    sent = RemoteParams.from_args(chat.make_parser().parse_args(words)).as_fields()
    named = {dest_of(option) for option, *_ in (*SAMPLER_OPTIONS, *PENALTY_OPTIONS, *LENGTH_OPTIONS)} - {"temp"} | {
        "temperature"
    }
    more = {"stop", "stop_token_ids", "logit_bias", "dry_breakers", "ignore_eos", "roll", "max_tokens"}
    assert set(sent) == named | more
    assert (sent["stop"], sent["stop_token_ids"], sent["logit_bias"]) == (["a", "b"], [3], {"5": -1.0})
    assert sent["dry_breakers"] == []
    assert {field_of(key) for key in ARGUMENTS} <= set(RemoteParams.__dataclass_fields__)


def test_fields_are_those_of_our_server() -> None:
    from sporelm.serve.routes.openai_chat import ChatCompletionRequest

    assert set(RemoteParams.__dataclass_fields__) <= set(ChatCompletionRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (["--choice", "yes", "--choice", "no"], {"type": "choice", "choice": ["yes", "no"]}),
        (["--regex", "[ab]+"], {"type": "regex", "regex": "[ab]+"}),
        (
            ["--json-schema", '{"type": "object"}'],
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
        ),
    ],
)
def test_forms_of_answers(words: list[str], form: dict[str, Any]) -> None:
    assert RemoteParams.from_args(chat.make_parser().parse_args(["--url", "http://h", *words])).as_fields() == {
        "response_format": form
    }


@pytest.mark.parametrize(("value", "sent"), [("s3cret", "s3cret"), ("ann:s3cret", "ann:s3cret"), ("", None)])
def test_the_key_of_the_environment(
    spoken: Chat, monkeypatch: pytest.MonkeyPatch, value: str, sent: str | None
) -> None:
    monkeypatch.setitem(vars(settings.API_KEY), "value", value)
    with scripted(answer("a")) as server:
        spoken(["m", "--url", server.url], "Hi")
        spoken(["m", "--url", server.url, "--api-key", "other"], "Hi")
    asked = [request.headers.get("authorization") for request in server.requests]
    assert asked == [sent and f"Bearer {sent}", "Bearer other"]


def test_given_options_are_told_from_defaults() -> None:
    parser = chat.make_parser()
    args = parser.parse_args(["--url", "http://h", "--temp", "0.8", "--stop", "a"])
    assert args.given_names == {"url", "temp", "stop"}
    assert (args.top_k, args.stop, args.model) == (40, ["a"], None), "the others have their defaults, again"
    assert parser.parse_args(["m"]).given_names == {"model"}


def test_it_starts_without_the_engine() -> None:
    """Nothing of numpy, the engine or the terminal's library is imported for a turn over a pipe."""
    with scripted(models("m"), answer("Hello")) as server:
        code = (
            "import sys; from sporelm.cli.main import main\n"
            f"assert main(['chat', '--url', {server.url!r}]) == 0\nprint(*sys.modules, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], input="Hi\n", cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert done.stdout == "Hello\n", done.stderr
    heavy = ("numpy", "llvmlite", "prompt_toolkit", "msgspec", "sporelm.api", "sporelm.engine", "sporelm.checkpoints")
    assert not [name for name in done.stderr.split() if name.startswith(heavy)]


def test_controls_are_shown_and_text_stays_as_it_is() -> None:
    assert escape_controls("a\tb\n\x1b[31mé\x7f\u200d👩") == "a\tb\n\\x1b[31mé\\x7f\u200d👩"
