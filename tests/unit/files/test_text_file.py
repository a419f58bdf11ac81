"""Text files that a user names are bounded."""

import io
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from sporelm.errors import RequestError
from sporelm.files.text_file import read_text_file, read_text_or_stdin


def test_the_text_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes("größer\r\n".encode())
    assert read_text_file(tmp_path / "t", "the text", 10) == "größer\r\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"12345678901", "the text '.*t' has more than 0.0 MB, which is the limit"),
        (b"caf\xe9", "is not UTF-8 text: byte 3 is 0xe9"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    with pytest.raises(RequestError, match=reason):
        read_text_file(tmp_path / "t", "the text", 10)


def test_what_may_have_no_end_is_refused(tmp_path: Path) -> None:
    for path, what in ((tmp_path, "is a folder; give a file"), (Path(os.devnull), "is a device, not a file")):
        with pytest.raises(RequestError, match=what):
            read_text_file(path, "the text", 10)
    with pytest.raises(RequestError, match="the name of the text is empty"):
        read_text_or_stdin("", "the text", 10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_a_pipe_is_read_to_its_end_within_the_limit(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for text, longest in (("ten letters", 11), ("eleven lette", 11)):
        writer = threading.Thread(target=pipe.write_text, args=(text,))
        writer.start()
        if len(text) <= longest:
            assert read_text_file(pipe, "the text", longest) == text
        else:
            with pytest.raises(RequestError, match="has more than"):
                read_text_file(pipe, "the text", longest)
        writer.join()


def test_standard_input_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"text")))
    assert read_text_or_stdin("-", "the text", 4) == "text"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"text!")))
    with pytest.raises(RequestError, match="the text of standard input has more than"):
        read_text_or_stdin("-", "the text", 4)
