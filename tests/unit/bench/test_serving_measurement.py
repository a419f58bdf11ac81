"""The probe of a server before the measurement, and the measurement in every output format."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sporelm.bench.serving import serving_tables
from sporelm.bench.serving.load_generator import OfferedLoad
from sporelm.bench.serving.random_prompts import LONG_ANSWER_SUFFIX, RandomPrompts
from sporelm.bench.serving.serving_measurement import ServingPlan, ServingReport, measure_server
from sporelm.cli.main import main
from sporelm.errors import RequestError, UsageError
from unit.bench.scripted_server import (
    DONE,
    STREAM,
    Part,
    RecordedRequest,
    ScriptedServer,
    answered,
    event,
    reply,
    scripted,
)


def plan(server: ScriptedServer, **fields: Any) -> ServingPlan:
    given = {
        "loads": (OfferedLoad(users=2),),
        "prompt_tokens": 30,
        "new_tokens": 4,
        "requests": 4,
        "timeout": 60.0,
    } | fields
    key = given.pop("key", "")
    return ServingPlan(replace(server.target, key=key), **given)


def test_a_measurement() -> None:
    steps: list[tuple[str, int, int]] = []
    with scripted() as server:
        found = measure_server(
            plan(server, loads=(OfferedLoad(users=2), OfferedLoad(rate=400.0)), repeat=2, warmup=1),
            lambda phase, done, total: steps.append((phase, done, total)),
        )
    assert [(row.load.name, len(row.answers), len(row.samples)) for row in found.rows] == [
        ("c 2", 8, 2),
        ("400/s", 8, 2),
    ]
    assert found.dialect.model == "tiny"
    assert found.dialect.prompt_tokens == 30, "the words were chosen so that the server counts what was asked for"
    assert found.notes == []
    assert steps[-1] == ("measuring 400/s", 16, 16)
    row = found.rows[0]
    assert row.counted_by == "usage"
    assert {each.tokens for each in row.answers} == {4}
    assert row.tok_s > 0
    assert row.ttft is not None
    assert row.e2e is not None
    assert row.ttft.p50 <= row.e2e.p50 <= row.e2e.p90 <= row.e2e.p99
    prompts = server.prompts(4)
    assert len(prompts) == len(set(prompts)) == 2 * 2 * (4 + 1), "no prompt comes twice"
    assert len({prompt.split()[0] for prompt in prompts}) > 5, "and they have no beginning in common"
    assert not {asked.headers.get("authorization") for asked in server.requests} - {None}


def test_fields_and_key_are_sent() -> None:
    with scripted() as server:
        measure_server(plan(server, endpoint="completions", model="m", key="k-1", temperature=0.5, warmup=0))
    asked = server.requests[-1]
    assert asked.line == "POST /v1/completions HTTP/1.1"
    assert asked.headers["authorization"] == "Bearer k-1"
    assert asked.headers["host"] == f"127.0.0.1:{server.port}"
    sent = {key: value for key, value in asked.body.items() if key != "prompt"}
    assert sent == {
        "model": "m", "max_tokens": 4, "temperature": 0.5, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def strict(*names: str) -> Any:
    """A server that refuses fields."""

    def script(asked: RecordedRequest) -> Sequence[Part]:
        if refused := [name for name in names if asked.body and name in asked.body]:
            return [reply(400, {"error": {"message": f"{refused[0]} is not known; max_completion_tokens is"}})]
        return answered(asked)

    return script


def test_fields_that_are_refused_are_left_out() -> None:
    with scripted(strict("max_tokens", "ignore_eos")) as server:
        found = measure_server(plan(server))
    assert server.requests[-1].body["max_completion_tokens"] == 4
    assert not found.dialect.ignore_eos
    assert found.dialect.usage
    assert server.requests[-1].prompt.endswith(LONG_ANSWER_SUFFIX)
    assert any("does not take ignore_eos" in note for note in found.notes)


def test_a_server_that_does_not_count() -> None:
    def script(asked: RecordedRequest) -> Sequence[Part]:
        if asked.body and "stream_options" in asked.body:
            return [reply(422, {"detail": "stream_options"})]
        return [part for part in answered(asked) if not (isinstance(part, bytes) and b'"usage"' in part)]

    with scripted(script) as server:
        found = measure_server(plan(server))
    assert found.rows[0].counted_by == "pieces"
    assert {each.tokens for each in found.rows[0].answers} == {4}
    assert any("does not count tokens" in note for note in found.notes)


def test_short_answers_and_failures_are_told() -> None:
    numbers = iter(range(100))

    def script(asked: RecordedRequest) -> Sequence[Part]:
        if asked.body and asked.body["max_tokens"] == 4:
            if next(numbers) % 2:
                return [reply(429, {"error": {"message": "later"}})]
            asked.body["max_tokens"] = 2
        return answered(asked)

    with scripted(script) as server:
        found = measure_server(plan(server, warmup=0))
    assert found.rows[0].errors == {"HTTP 429": 2}
    assert "c 2: 2 of 4 failed, HTTP 429: later" in found.notes
    assert "answers have 2.0 tokens on average, 4 were asked for" in found.notes
    assert found.rows[0].as_json()["errors"] == {"HTTP 429": 2}
    assert "2 HTTP 429" in found.rows[0].cells()


def test_all_that_fail_leave_a_row() -> None:
    def script(asked: RecordedRequest) -> Sequence[Part]:
        return [reply(503, {})] if asked.body and asked.body["max_tokens"] == 4 else answered(asked)

    with scripted(script) as server:
        (row,) = measure_server(plan(server)).rows
    assert (row.tok_s, row.ttft, row.answers, row.errors) == (0.0, None, [], {"HTTP 503": 4})
    assert row.as_json()["ttft_ms"] is None
    assert len(row.cells()) == 9


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([reply(401, {})], r"wants an API key: give --api-key, or SPORE_API_KEY \(HTTP 401\)"),
        ([reply(404, {"error": {"message": "no m"}})], "unknown path or model 'm': no m"),
        ([reply(400, {"error": {"message": "too long"}})], "answered HTTP 400: too long"),
        ([reply(200, {"choices": []})], "does not stream its answer"),
        ([STREAM, event({"error": {"message": "bad"}}), DONE], "answered with an error: bad"),
        ([b"SSH-2.0-x\r\n"], "does not speak HTTP"),
        ([30.0], r"did not answer within 0.2 s \(--timeout\)"),
        (["close"], "closed the connection without an answer"),
    ],
)
def test_servers_that_cannot_be_measured(script: Sequence[Part], said: str) -> None:
    with scripted(lambda asked: script) as server, pytest.raises(RequestError, match=said):
        measure_server(plan(server, model="m", timeout=0.2 if "answer within" in said else 60.0))


def test_a_list_without_models() -> None:
    with scripted(lambda asked: [reply(200, {"data": []})]) as server, pytest.raises(RequestError, match="--model"):
        measure_server(plan(server))


def test_tls_where_there_is_none() -> None:
    with scripted() as server:
        made = plan(server)
        with pytest.raises(RequestError, match="does not speak TLS"):
            measure_server(replace(made, target=replace(server.target, scheme="https")))


def test_a_key_that_is_refused_is_not_shown() -> None:
    with scripted(lambda asked: [reply(401, {})]) as server, pytest.raises(RequestError) as caught:
        measure_server(plan(server, key="sesame"))
    assert "does not accept this key" in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loads": (OfferedLoad(users=0),)}, "-c is 0"),
        ({"loads": (OfferedLoad(users=5000),)}, "-c is 5000"),
        ({"loads": (OfferedLoad(rate=float("nan")),)}, "--rate is nan"),
        ({"loads": (OfferedLoad(rate=-1.0),)}, "--rate is -1"),
        ({"loads": (OfferedLoad(users=8),)}, "--requests 4 cannot keep -c 8 busy"),
        ({"shared": 1.5}, "--shared-prefix is 1.5"),
        ({"new_tokens": 0}, "-n is 0"),
        ({"warmup": -1}, "--warmup is -1"),
        ({"timeout": 0.0}, "--timeout is 0"),
        ({"temperature": float("nan")}, "--temp is nan"),
    ],
)
def test_plans_that_cannot_be(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(ScriptedServer(port=1), **fields)


def test_prompts_share_what_is_asked() -> None:
    texts = [RandomPrompts(7, 20, 0.5).text(number).split() for number in range(3)]
    assert texts[0][:10] == texts[1][:10] == texts[2][:10]
    assert texts[0][10:] != texts[1][10:]
    assert {len(words) for words in texts} == {20}
    assert RandomPrompts(7, 20, 0.5).text(1).split() == texts[1]
    assert RandomPrompts(8, 20).text(1) != RandomPrompts(7, 20).text(1)
    assert len({RandomPrompts(7, 5, 1.0).text(number) for number in range(3)}) == 1


def test_stopped_measurements_have_what_came() -> None:
    with scripted() as server:
        calls = iter(range(1000))
        found = measure_server(
            plan(server, loads=(OfferedLoad(users=1), OfferedLoad(users=2))), stopped=lambda: next(calls) > 4
        )
    assert found.stopped
    with scripted(lambda asked: [30.0]) as server, pytest.raises(KeyboardInterrupt):
        measure_server(plan(server), stopped=lambda: True)


def test_rows_as_csv_and_markdown() -> None:
    with scripted() as server:
        found: ServingReport = measure_server(
            plan(server, loads=(OfferedLoad(users=1), OfferedLoad(rate=100.0)), repeat=2, seed=5, key="sesame")
        )
    lines = list(csv.DictReader(io.StringIO(serving_tables.report_to_csv(found))))
    assert [(line["concurrency"], line["rate"], line["seed"]) for line in lines] == [("1", "", "5"), ("", "100.0", "5")]
    assert [len(line["samples"].split()) for line in lines] == [2, 2]
    assert float(lines[0]["ttft_ms_p50"]) > 0
    assert all(
        len(line) == len(serving_tables.SERVING_CSV_COLUMNS) for line in serving_tables.report_to_csv_lines(found)
    )
    table = serving_tables.serving_rows_to_markdown(found.rows).splitlines()
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert "sesame" not in str(found.as_json())


def test_what_a_server_says_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def script(asked: RecordedRequest) -> Sequence[Part]:
        if asked.path.endswith("/models"):
            return [reply(200, {"data": [{"id": "tiny\x1b[2J"}]})]
        if asked.body["max_tokens"] == 1:  # what is asked before anything is measured
            return answered(asked)
        return [reply(500, {"error": {"message": "\x1b[2Jgone"}})]

    for form in ("--md", "--csv"):
        with scripted(script) as server:
            assert main(["bench", "serve", "--url", server.target.origin, "-c", "1", "--requests", "2", form]) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert r"HTTP 500: \x1b[2Jgone" in err
