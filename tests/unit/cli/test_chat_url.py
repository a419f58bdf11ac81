"""Conversations with a server, over a real socket: answers, and all that may be wrong with them."""

import gzip
import json
import socket
import ssl
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sporelm.cli.chat_sessions import ReasoningPiece
from sporelm.cli.remote import http_exchange, remote_completion, sse_decoder
from sporelm.cli.remote.http_exchange import describe_failure, find_proxy
from sporelm.cli.remote.remote_completion import RemoteCompletion, RemotePiece, format_stats
from sporelm.cli.remote.remote_params import RemoteParams
from sporelm.cli.remote.remote_server import RemoteConversation, RemoteServer
from sporelm.cli.remote.server_address import ServerAddress
from sporelm.errors import RemoteError, RequestError
from unit.cli.scripted_server import DONE, STREAM, answer, chunk, event, models, reply, scripted

CHUNKED = STREAM.replace(b"Connection: close", b"Transfer-Encoding: chunked")
LONGER = STREAM.replace(b"Connection", b"Content-Length: 999\r\nConnection")
PLAIN = RemoteParams()


def talk(url: str, **more: Any) -> RemoteConversation:
    return RemoteServer(url, model="m", **more).conversation("Be brief.")


def complete_turn(conversation: RemoteConversation, text: str = "Hi", params: RemoteParams = PLAIN) -> RemoteCompletion:
    *_, last = conversation.ask(text, params)
    assert isinstance(last, RemotePiece)
    assert last.completion is not None
    return last.completion


def failure(*scripts: Any, **more: Any) -> str:
    """Why a turn fails; nothing of it is kept."""
    with scripted(*scripts) as server:
        conversation = talk(server.url, **more)
        with pytest.raises(RemoteError) as caught:
            complete_turn(conversation)
        assert len(conversation.messages) == 1
    return str(caught.value)


@pytest.mark.parametrize(("key", "hint"), [("ann:s3cret", True), ("s3cret", False)])
def test_a_key_with_a_colon_that_is_refused_has_a_hint(key: str, hint: bool) -> None:
    told = failure(reply(401, {"error": {"message": "wrong key"}}), key=key)
    assert "give another one with --api-key" in told
    assert ("send only SECRET" in told) == hint
    assert "s3cret" not in told


def test_an_answer_joins_the_messages_and_the_next_turn_has_them() -> None:
    with scripted(answer("Hel", "lo"), answer("Bye")) as server:
        conversation = talk(server.url, key="s3cret")
        assert complete_turn(conversation, "Hi", RemoteParams(temperature=0.5, top_k=3)).text == "Hello"
        assert complete_turn(conversation, "Go").text == "Bye"
        first, second = server.requests
    assert first.line == "POST /v1/chat/completions HTTP/1.1"
    assert first.headers["authorization"] == "Bearer s3cret"
    assert first.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_k": 3,
    }
    assert [each["content"] for each in second.body["messages"]] == ["Be brief.", "Hi", "Hello", "Go"]
    assert not {"temperature", "max_tokens"} & set(second.body), "the server decides values that were not given"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_told_apart_and_not_sent_back(name: str) -> None:
    stream = STREAM + chunk(**{name: "Hm."}) + chunk(content="Yes", **{name: ""}) + chunk("stop") + DONE
    with scripted(stream) as server:
        conversation = talk(server.url)
        pieces = [piece for piece in conversation.ask("Hi", PLAIN) if piece.text]
    assert pieces == [ReasoningPiece("Hm."), RemotePiece("Yes")]
    assert conversation.messages[-1] == {"role": "assistant", "content": "Yes"}


def test_a_stream_in_odd_pieces_is_read_whole() -> None:
    """Chunked, cut inside characters and lines, with comments, carriage returns, several data lines, a null usage."""
    data = ': ping\r\n\r\nevent: x\r\ndata: {"choices":\r\ndata: [{"delta": {"content": "é\U0001f600"}}], '
    data += '"usage": null}\r\n\r\ndata:[DONE]\r\n\r\n'

    def send(connection: socket.socket) -> None:
        connection.sendall(CHUNKED)
        for byte in data.encode():
            connection.sendall(b"1\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")

    with scripted(send) as server:
        assert complete_turn(talk(server.url)).text == "é\U0001f600"


def test_halves_of_characters_do_not_come_through() -> None:
    with scripted(STREAM + b'data: {"choices":[{"delta":{"content":"a\\ud800b"}}]}\n\n' + DONE) as server:
        assert complete_turn(talk(server.url)).text == "a\ufffdb"


def test_an_end_without_done_is_one_if_the_reason_came() -> None:
    with scripted(STREAM + chunk(content="whole") + chunk("length")) as server:
        assert complete_turn(talk(server.url)).finish_reason == "length"
    with scripted((STREAM + chunk(content="whole") + DONE).removesuffix(b"\n\n")) as server:
        assert complete_turn(talk(server.url)).text == "whole"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (STREAM + chunk(content="cut"), "ended its stream in the middle of the answer, without [DONE]"),
        (STREAM, "ended its stream in the middle"),
        (LONGER + chunk(content="cut"), "before its answer"),
        (CHUNKED + b"5\r\nda", "before its answer was complete"),
        (CHUNKED + b"zz\r\n", "before its answer was complete"),
        (b"", "closed the connection without an answer: is it an https:// address?"),
        (b"HTTP/1.1 200 OK\r\nContent-T", "closed the connection before|not with a stream"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP (BadStatusLine)"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", "does not speak HTTP (LineTooLong)"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n", "does not speak HTTP (HTTPException)"),
        (reply(200, {"choices": []}), "answers with application/json and not with a stream"),
        (reply(200, b"<html>", kind="text/html; charset=x"), "answers with text/html and not with a stream"),
        (STREAM + b"data: {nonsense\n\n", "is not JSON"),
        (STREAM + b"data: " + b"[" * 200_000 + b"\n\n", "is not JSON"),
        (STREAM + b"data: [1]\n\n", "is not an object"),
        (STREAM + event(choices=[3]), "is not a choice"),
        (STREAM + event(choices=[{"delta": [3]}]), "is not a delta"),
        (STREAM + chunk(content=[{"type": "text"}]), "as content: a string is expected"),
        (STREAM + chunk(content="a") + event(error={"message": "out of memory"}), "answer failed: out of memory"),
        (STREAM + b'error: {"error": {"message": "too deep"}}\n\n', "answer failed: too deep"),
        (STREAM + b"data: " + b"x" * (sse_decoder.MAX_LINE_BYTES + 1), "a line of more than 1 MiB"),
        (STREAM + (b"data: " + b"x" * 1_000_000 + b"\n") * 5, "an event of more than 4 MiB"),
    ],
)  # fmt: skip
def test_broken_answers(script: bytes, message: str) -> None:
    told = failure(script)
    assert any(each in told for each in message.split("|")), told


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (reply(401, {"error": {"message": "no key"}}), "requires an API key (401): no key; give one with --api-key"),
        (reply(404, {"error": {"message": "no model m"}}), "requested (404): no model m; leave MODEL out to use its"),
        (reply(404, b"<h1>nothing</h1>", kind="text/html"), "/v1 is not an OpenAI-compatible server (404)"),
        (reply(429, {"error": "later"}, "Retry-After: 7"), "is overloaded (429): later; try again in 7 s"),
        (reply(429, b"", "Retry-After: Fri, 31 Dec 2027"), "try again after Fri, 31 Dec 2027"),
        (reply(429, b""), "is overloaded (429); try again later"),
        (reply(503, {"message": "loading"}, "Retry-After: 2"), "failed (503): loading; try again in 2 s"),
        (reply(500, {"detail": [{"msg": "x"}]}), 'failed (500): [{"msg": "x"}]'),
        (reply(500, b"out of\norder", kind="text/plain"), "failed (500): out of order"),
        (reply(400, {"error": {"message": "top_k unknown"}}), "rejects the request (400): top_k unknown"),
        (reply(308, b"", "Location: https://else/v1"), "another address (308): if that is right, give --url 'https"),
        (reply(302, b""), "redirects to another address (302): check the address"),
        (reply(400, b"[" * 60_000), "rejects the request (400)"),
    ],
)  # fmt: skip
def test_refusals(script: bytes, message: str) -> None:
    assert message in failure(script)


def test_a_refused_key_is_told_from_a_missing_one_and_not_shown() -> None:
    told = failure(reply(403, {"error": {"message": "bad"}}), key="s3cret")
    assert "rejects the API key (403): bad; give another one" in told
    assert "s3cret" not in told


def test_messages_of_servers_are_bounded() -> None:
    assert len(failure(reply(400, {"error": {"message": "x" * 50_000}}))) < 500
    assert len(failure(reply(400, b"y" * 500_000, kind="text/plain"))) < 500


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_completion, "MAX_ANSWER_CHARS", 20)
    assert "more than 20 characters" in failure(answer("ten letter", "ten letter", "!"))


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "READ_SECONDS", 0.03)

    def wait(connection: socket.socket) -> None:
        connection.sendall(STREAM + chunk(content="a"))
        connection.settimeout(60)
        connection.recv(1)

    assert "sent nothing for" in failure(wait)


def test_what_a_server_does_not_know_is_asked_in_another_way_and_kept_to() -> None:
    length = reply(400, {"error": {"message": "'max_tokens' is not supported: use 'max_completion_tokens'"}})
    usage = reply(422, {"detail": "extra fields: stream_options"})
    with scripted(length, usage, answer("a")) as server:
        conversation = talk(server.url)
        assert complete_turn(conversation, params=RemoteParams(max_tokens=5)).text == "a"
        assert complete_turn(conversation, params=RemoteParams(max_tokens=5)).text == "a"
        bodies = [request.body for request in server.requests]
    assert len(bodies) == 4
    assert all(body["max_completion_tokens"] == 5 and "max_tokens" not in body for body in bodies[1:])
    assert ["stream_options" in body for body in bodies] == [True, True, False, False]
    assert "max_completion_tokens" in failure(length), "nothing was given that could be asked otherwise"


def test_leaving_an_answer_closes_its_connection_and_keeps_what_came() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(STREAM + chunk(reasoning="Hm.") + chunk(content="one ") + chunk(content="two"))
        server.until_closed(connection)

    with scripted(endless) as server:
        conversation = talk(server.url)
        with closing(conversation.ask("Hi", PLAIN)) as pieces:
            assert next(piece for piece in pieces if piece.text == "two")
        assert server.closed_early.wait(60)
    assert [each["content"] for each in conversation.messages] == ["Be brief.", "Hi", "one two"]


def test_leaving_before_the_answer_keeps_nothing() -> None:
    with scripted(lambda connection: server.until_closed(connection)) as server:
        conversation = talk(server.url)
        with closing(conversation.ask("Hi", PLAIN)) as pieces:
            assert next(pieces) == RemotePiece("")
        assert server.closed_early.wait(60)
    assert len(conversation.messages) == 1


def test_a_reader_that_is_behind_holds_little() -> None:
    """Pieces that the reader has not taken wait at the server, and leaving does not wait for them."""

    def flood(connection: socket.socket) -> None:
        connection.sendall(STREAM)
        try:
            while True:
                connection.sendall(chunk(content="x" * 10_000))
        except OSError:
            server.closed_early.set()

    with scripted(flood) as server:
        conversation = talk(server.url)
        with closing(conversation.ask("Hi", PLAIN)) as pieces:
            assert next(piece for piece in pieces if piece.text)
        assert server.closed_early.wait(60)


def test_models_are_asked_for() -> None:
    with scripted(models("first", "second")) as server:
        assert RemoteServer(server.url + "/v1/", key="k").list_models() == ["first", "second"]
        assert server.requests[0].line == "GET /v1/models HTTP/1.1"
        assert server.requests[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (models(), "lists no usable models: name one"),
        (models("x" * 600), "lists no usable models"),
        (reply(200, {"data": 3}), "/v1/models is not a list of models"),
        (reply(200, b"<html>", kind="text/html"), "is not an OpenAI-compatible server"),
        (reply(200, b"[" * 100_000), "is not an OpenAI-compatible server"),
        (reply(401, b""), "requires an API key (401)"),
    ],
)
def test_lists_of_models_that_are_none(script: bytes, message: str) -> None:
    with scripted(script) as server, pytest.raises(RemoteError) as caught:
        RemoteServer(server.url).list_models()
    assert message in str(caught.value)


def test_no_server_listens() -> None:
    with socket.socket() as silent:  # keeps its port for itself and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(RemoteError, match=f":{port} refuses connections: is the server running"):
            RemoteServer(f"http://127.0.0.1:{port}").list_models()


def test_tls_where_there_is_none() -> None:
    with scripted(b"") as server, pytest.raises(RemoteError, match=r"does not speak TLS .*: is it an http:// address"):
        RemoteServer(server.url.replace("http:", "https:")).list_models()


@pytest.mark.parametrize(
    ("error", "is_connected", "message"),
    [
        (TimeoutError("timed out"), False, "did not answer within 10 seconds"),
        (TimeoutError("timed out"), True, "sent nothing for 600 seconds"),
        (socket.gaierror(-2, "Name or service not known"), False, "unknown host 'host.example': Name or service"),
        (OSError(101, "Network is unreachable"), False, "is unreachable: 'Network is unreachable'"),
        (ConnectionResetError(104, "reset"), True, "closed the connection before"),
        (ssl.SSLCertVerificationError("bad"), False, "is not trusted: self-signed certificate"),
    ],
)
def test_reasons(error: Exception, is_connected: bool, message: str) -> None:
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = "self-signed certificate"
    assert message in describe_failure(error, ServerAddress.parse("https://host.example"), is_connected=is_connected)


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "urllib.request.getproxies", lambda: {"http": "http://us:e%21@proxy:3128", "https": "socks5://x:1"}
    )
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda host: host == "inside")
    assert find_proxy(ServerAddress.parse("http://127.0.0.1:1")) is None
    assert find_proxy(ServerAddress.parse("http://inside")) is None
    headers = {"Proxy-Authorization": "Basic dXM6ZSE="}
    assert find_proxy(ServerAddress.parse("http://outside")) == ("proxy", 3128, headers)
    with pytest.raises(RemoteError, match="proxy for https is not supported"):
        find_proxy(ServerAddress.parse("https://outside"))


def test_a_request_through_a_proxy_names_the_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(models("m")) as server:
        host, port = server.listening.getsockname()
        monkeypatch.setenv("http_proxy", f"http://us:e%21@{host}:{port}")
        assert RemoteServer("http://outside.example").list_models() == ["m"]
        assert server.requests[0].line == "GET http://outside.example/v1/models HTTP/1.1"
        assert server.requests[0].headers["proxy-authorization"] == "Basic dXM6ZSE="


def test_a_server_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with scripted(models("m")) as server:
        assert RemoteServer(server.url).list_models() == ["m"]
        assert "proxy-authorization" not in server.requests[0].headers


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:x"])
def test_proxies_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(RemoteError, match="the proxy for https is not supported"):
        RemoteServer("https://outside.example").list_models()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_gets_no_key(status: int) -> None:
    with scripted(answer("stolen")) as other:
        told = failure(reply(status, b"", f"Location: {other.url}/v1/chat/completions"), key="s3cret")
        assert "redirects to another address" in told
        assert not other.requests


def test_compressed_answers_are_not_expanded() -> None:
    """A few bytes of gzip can become gigabytes. The request does not ask for it, and nothing is decompressed."""
    bomb = gzip.compress(b"data: " + b"x" * 50_000_000)
    compressed = STREAM.replace(b"Connection", b"Content-Encoding: gzip\r\nConnection")
    with scripted(compressed + bomb) as server:
        with pytest.raises(RemoteError, match="ended its stream"):
            complete_turn(talk(server.url))
        assert server.requests[0].headers["accept-encoding"] == "identity"


def test_conversations_are_saved_and_loaded_as_json(tmp_path: Path) -> None:
    server = RemoteServer("http://127.0.0.1:1", model="m")
    conversation = server.conversation("S")
    conversation.messages.append({"role": "user", "content": "é\n"})
    path = tmp_path / "talk.json"
    assert conversation.save(path) == path.stat().st_size
    assert conversation.save(path) == path.stat().st_size, "over itself"
    assert server.wake(path).messages == conversation.messages
    path.write_text('[{"role": "user", "content": "bare", "extra": 1}]')
    assert server.wake(path).messages == [{"role": "user", "content": "bare"}]
    assert [each.name for each in tmp_path.iterdir()] == ["talk.json"]


PNG = b"\x89PNG\r\n\x1a\n..."


def test_pictures_are_sent_as_data_uris_and_kept_in_files(tmp_path: Path) -> None:
    with scripted(answer("A cat"), answer("Yes")) as server:
        conversation = RemoteServer(server.url, model="m").conversation()
        list(conversation.ask("What?", PLAIN, [PNG, b"\xff\xd8\xff..."]))
        path = tmp_path / "talk.json"
        conversation.save(path)
        woken = RemoteServer(server.url, model="m").wake(path)
        assert woken.messages == conversation.messages
        list(woken.ask("Sure?", PLAIN))
        content = server.requests[1].body["messages"][0]["content"]
        assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
        assert content[0]["image_url"]["url"] == f"data:image/png;base64,{b64encode(PNG).decode()}"
        assert content[1]["image_url"]["url"].startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    "part",
    [3, {}, {"type": "audio"}, {"type": "text", "text": 3}, {"type": "image_url", "image_url": {"url": "https://a"}}],
)
def test_files_with_other_parts_are_refused(tmp_path: Path, part: object) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"role": "user", "content": [part]}]))
    with pytest.raises(RequestError, match="not a conversation with a server"):
        RemoteServer("http://127.0.0.1:1", model="m").wake(path)


def test_a_conversation_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sporelm.cli.remote.conversation_file.MAX_FILE_BYTES", 20)
    with pytest.raises(RequestError, match=r"too large to be saved \(got \d+ bytes; allowed 20\)"):
        RemoteServer("http://127.0.0.1:1", model="m").conversation("Be brief.").save(tmp_path / "talk.json")


@pytest.mark.parametrize(
    "text", ["", "{}", "[3]", '[{"role": "user"}]', '[{"role": "king", "content": ""}]', "[" * 100_000, "\0", "3"]
)
def test_other_files_are_neither_loaded_nor_written_over(tmp_path: Path, text: str) -> None:
    server = RemoteServer("http://127.0.0.1:1", model="m")
    path = tmp_path / "notes"
    path.write_text(text)
    for act in (server.wake, server.conversation().save):
        with pytest.raises(RequestError, match="not a conversation with a server"):
            act(path)
    assert path.read_text() == text
    for place in (tmp_path / "none" / "x", tmp_path, Path("a\0b")):
        with pytest.raises(RequestError):
            server.conversation().save(place)
        with pytest.raises(RequestError):
            server.wake(place)


def test_forks_go_their_own_way() -> None:
    with scripted(answer("a")) as server:
        conversation = talk(server.url)
        child = conversation.fork()
        complete_turn(child)
        assert (len(conversation.messages), len(child.messages)) == (1, 3)
        conversation.close()


def test_figures() -> None:
    made = RemoteCompletion(started_at=10.0, first_at=10.5, last_at=11.5, num_pieces=4, finish_reason="stop")
    assert format_stats(made) == "4 pieces, 3.0 pieces/s | first after 0.50 s"
    made.usage = remote_completion.parse_usage(
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8, "audio": None}}
    )
    made.finish_reason = "length"
    assert format_stats(made) == "5 tokens, 4.0 tok/s | first after 0.50 s | 8 of 9 in the prompt cached | length"
    assert (
        format_stats(RemoteCompletion(usage={"completion_tokens": 1, "prompt_tokens": 3}, is_done=True))
        == "1 token | 3 in the prompt"
    )
    assert format_stats(None) == "stopped"
    assert remote_completion.parse_usage({"prompt_tokens": True, "completion_tokens": -1, "cached_tokens": "9"}) == {}
