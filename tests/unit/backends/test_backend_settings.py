"""Settings: what is unset, what is a number, and what makes no sense."""

import pytest

from sporelm.errors import RequestError
from sporelm.settings import Setting


def declared(default: str = "7") -> Setting:
    return Setting("SPORE_TEST", lambda: default, "A test.", bounds=(1, 1024))


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("1024", 1024), ("", 7), ("007", 7)])
def test_whole_numbers(monkeypatch: pytest.MonkeyPatch, text: str, number: int) -> None:
    monkeypatch.setenv("SPORE_TEST", text)
    assert declared().integer == number


def test_an_empty_default_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPORE_TEST", raising=False)
    assert declared("").integer is None


@pytest.mark.parametrize("text", ["0", "1025", "-3", "abc", "1.5", "1e3", " 2", "1_0", "²", "9" * 5000, "x" * 5000])
def test_a_value_out_of_bounds_names_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SPORE_TEST", text)
    with pytest.raises(RequestError, match=r"^SPORE_TEST is '.*': it must be a whole number from 1 to 1024$") as error:
        _ = declared().integer
    assert len(str(error.value)) < 200


def test_a_missing_home_folder_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPORE_TEST", "~user-of-this-name/x")
    with pytest.raises(RequestError, match="SPORE_TEST is '~user-of-this-name/x'"):
        _ = declared().path


def test_a_user_without_a_home_folder_is_told_which_variable_helps() -> None:
    def homeless() -> str:
        raise RuntimeError("Could not determine home directory.")

    with pytest.raises(RequestError, match=r"SPORE_TEST: .*no home folder; set it"):
        _ = Setting("SPORE_TEST", homeless, "").path
