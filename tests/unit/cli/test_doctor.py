"""`spore doctor --conformance` fails where the device that is asked for cannot be checked."""

import re

import pytest

from sporelm.cli.main import main


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--device", "cuda:99"], r"no back-end can run on device 'cuda:99' \(torch: .*"),
        (["--backend", "cpu", "--device", "cuda:99"], r"back-end 'cpu' has no device 'cuda:99'\. Leave out --device\."),
        (
            ["--backend", "reference", "--dtype", "bf16"],
            r"back-end 'reference' has no dtype 'bf16'\. Leave out --dtype\.",
        ),
    ],
)
def test_a_check_that_would_leave_out_the_device_is_an_error(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--conformance", *options]) == 1
    found = capsys.readouterr()
    assert not found.out
    assert re.fullmatch(f"spore: {problem}\n", found.err)
