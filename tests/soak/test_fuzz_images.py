"""A few seconds of the fuzzing of pictures."""

from pathlib import Path
from random import Random

import pytest

from image_files import valid_files
from soak.fuzz_images import correct_checksums, mutate, run


def test_mutated_pictures_are_decoded_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(3.0, 3, tmp_path) == 0, capsys.readouterr().out
    assert "'decoded'" in capsys.readouterr().out


def test_checksums_are_corrected() -> None:
    data = valid_files()["PNG"]
    assert correct_checksums(data) == data
    broken = data[:20] + b"\1" + data[21:]
    assert correct_checksums(broken) not in (data, broken)
    assert mutate(data, data, Random(1)) == mutate(data, data, Random(1)) != data
