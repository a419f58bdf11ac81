"""Errors of the command line have the form of all others: THING: problem (got X; allowed Y). Remedy."""

import pytest

from sporelm.cli import run, worker
from sporelm.cli.parser import Parser
from sporelm.cli.rank_options import name_flags, select_ranks
from sporelm.errors import UsageError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp", "two"], "--tp: not a whole number (got 'two')"),
        (["--tp"], "--tp: the value is missing"),
        (["--tp-shares", "1,a"], "--tp-shares: not a list of whole numbers (got '1,a'; allowed numbers such as 1,1,2)"),
        (["--rank-executor", "magic"], "--rank-executor: unknown (got 'magic'; allowed processes, threads)"),
        (["--temp", "hot"], "--temp: not a number (got 'hot')"),
        (["--kv", "f8"], "--kv: unknown (got 'f8'; allowed f16, bf16, f32, fp8, q8_0)"),
        (["--tq"], "unrecognized arguments: --tq"),
    ],
)
def test_values_of_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        parse_error(run.make_parser(), ["-p", "Hi", *words], capsys) == f"spore run: {message}. See 'spore run --help'."
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--join, --token-file: missing"),
        (
            ["--join", "10.0.0.1:7000", "--token-file", "t", "--wait-seconds", "x"],
            "--wait-seconds: not a number (got 'x')",
        ),
    ],
)
def test_options_of_a_worker(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_error(worker.make_parser(), words, capsys) == f"spore worker: {message}. See 'spore worker --help'."


def parse_error(parser: Parser, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(words)
    assert raised.value.code == 2
    return capsys.readouterr().err.removesuffix("\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp", "0"], "--tp: out of range (got 0; allowed 1 to 4096). Give the number of ranks."),
        (
            ["--tp", "2", "--tp-shares", "1"],
            "--tp-shares: must be one positive number for each rank (got [1] for tp 2)",
        ),
        (["--tp", "2", "--remote-ranks", "2"], "Give less, or raise --tp or --pp."),
        (["--micro-batches", "2"], "--micro-batches: needs stages that work at the same time. Set --pp."),
    ],
)
def test_options_that_do_not_fit_are_named_as_they_were_given(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        select_ranks(run.make_parser().parse_args(["-p", "Hi", *words]))
    assert message in str(raised.value)


def test_flags_in_place_of_options() -> None:
    assert name_flags("the option rank_listen: needs the option tp") == "--rank-listen: needs --tp"
