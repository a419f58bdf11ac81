"""Reports of panics are kept from stderr; all other output arrives there, and at once."""

import os
import time

import pytest

from sporelm.text.tokenizers.rust_panics import find_forwardable_length, hide_panics, remove_reports

REPORT = b"\nthread '<unnamed>' (42) panicked at src/lib.rs:1:2:\nindex out of bounds\n"
NOTE = b"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
TRACE = (
    b"stack backtrace:\n   0: begin_unwind\n             at /src/a.rs:1\n   1: main\nnote: Some details are omitted\n"
)


@pytest.mark.parametrize("end", [b"", NOTE, TRACE], ids=["bare", "note", "trace"])
def test_only_reports_are_removed(end: bytes) -> None:
    assert remove_reports(b"before\n" + REPORT + end + b"after\n") == b"before\nafter\n"
    assert remove_reports(REPORT + end + REPORT + end) == b""
    assert remove_reports(b"nothing of the kind\n") == b"nothing of the kind\n"


def test_stderr_is_whole_again_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with hide_panics(), hide_panics():
            os.write(2, b"one\n" + REPORT + NOTE + b"two\n")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    os.write(2, b"three\n")
    assert capfd.readouterr().err == "one\ntwo\nthree\n"


def test_a_panic_of_the_library_itself(capfd: pytest.CaptureFixture[str]) -> None:
    from tokenizers import decoders

    with pytest.raises(BaseException, match="index out of bounds"), hide_panics():
        decoders.Strip("a", 0, 2).decode(["a"])
    assert capfd.readouterr().err == ""


def test_output_of_other_threads_is_not_delayed(capfd: pytest.CaptureFixture[str]) -> None:
    with hide_panics():
        os.write(2, b"one\nwithout a line break")
        output, deadline = "", time.monotonic() + 30
        while output != "one\nwithout a line break" and time.monotonic() < deadline:
            time.sleep(0.01)
            output += capfd.readouterr().err
        assert output == "one\nwithout a line break"
        os.write(2, b"\ntwo\n" + REPORT)
    assert capfd.readouterr().err == "\ntwo\n"


@pytest.mark.parametrize(
    ("data", "forwarded"),
    [
        (b"", b""),
        (b"one\ntwo", b"one\ntwo"),
        (b"one\nthr", b"one\n"),
        (b"one\n\n", b"one\n"),
        (b"\n", b""),
        (b"one\n" + REPORT, b"one\n"),
        (REPORT + b"two\n", b""),
    ],
)
def test_output_is_held_from_the_beginning_of_a_report_on(data: bytes, forwarded: bytes) -> None:
    assert data[: find_forwardable_length(data)] == forwarded
