"""Reports of panics are kept from stderr; everything else that is printed there arrives."""

import os

import pytest

from sporelm.text.rust_panics import hide_panics, without_reports

REPORT = b"\nthread '<unnamed>' (42) panicked at src/lib.rs:1:2:\nindex out of bounds\n"
NOTE = b"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
TRACE = (
    b"stack backtrace:\n   0: begin_unwind\n             at /src/a.rs:1\n   1: main\nnote: Some details are omitted\n"
)


@pytest.mark.parametrize("end", [b"", NOTE, TRACE], ids=["bare", "note", "trace"])
def test_only_reports_are_left_out(end: bytes) -> None:
    assert without_reports(b"before\n" + REPORT + end + b"after\n") == b"before\nafter\n"
    assert without_reports(REPORT + end + REPORT + end) == b""
    assert without_reports(b"nothing of the kind\n") == b"nothing of the kind\n"


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
