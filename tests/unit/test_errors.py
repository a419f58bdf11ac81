"""Commands and options that messages name."""

from pathlib import Path

import pytest

import sporelm.errors
from sporelm.errors import install_command, rename_options


def test_a_checkout_installs_its_extras_from_its_folder() -> None:
    root = Path(__file__).parents[2]
    command = install_command("torch")
    assert command.startswith("pip install -e ")
    assert f"{root}[torch]" in command


def test_an_installed_package_comes_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "lib" / "site-packages" / "sporelm" / "errors.py"
    monkeypatch.setattr(sporelm.errors, "__file__", str(place))
    assert install_command("torch") == "pip install 'sporelm[torch]'"


def test_a_folder_with_a_space_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "my checkout"
    (root / "src" / "sporelm").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    monkeypatch.setattr(sporelm.errors, "__file__", str(root / "src" / "sporelm" / "errors.py"))
    assert install_command("hub") == f"pip install -e '{root}[hub]'"


def test_options_get_the_names_that_are_found() -> None:
    text = "the option max_context is 9: raise it, or the option kv_memory. Leave the options out, or the option."
    assert rename_options(text, {"max_context": "--context"}.get) == text.replace("the option max_context", "--context")
