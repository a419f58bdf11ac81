"""The identity of a model: it depends on the files alone, and on all of them that change keys and values."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from families import CASES, write_case
from families.case import Case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import open_model
from sporelm.checkpoints.identity import ModelIdentity, compute_identity
from sporelm.checkpoints.legacy_identity import legacy_config_text
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.lazy_model import MetadataEntry
from sporelm.tools.output_file import OutputFile, save_models
from tiny_files import write_folder
from tiny_models import TINY
from written_models import WRITTEN

LEGACY_TEXTS: dict[str, list[str | None]] = json.loads((WRITTEN / "config_texts.json").read_text(encoding="ascii"))


def identity_at(path: Path) -> ModelIdentity:
    source = open_model(path)
    found = compute_identity(source)
    source.files.close()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny", TINY[0])


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def test_it_is_the_same_wherever_the_files_lie(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    assert identity_at(write_folder(folder, TINY[0])) == identity_at(tmp_path / "elsewhere")


@pytest.mark.parametrize("change", [{"rope_theta": 5e5}, {"rms_norm_eps": 1e-6}], ids=str)
def test_a_hyperparameter_changes_it(folder: Path, change: dict[str, Any]) -> None:
    before = identity_at(folder)
    edit_json(folder / "config.json", lambda values: values.update(change))
    after = identity_at(folder)
    assert after.sha256 != before.sha256
    assert after.legacy_sha256 != before.legacy_sha256
    assert not before.matches(after.sha256)


def test_a_weight_changes_it(folder: Path) -> None:
    before = identity_at(folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert identity_at(folder).sha256 != before.sha256


def test_a_gguf_file_is_known_by_its_architecture_and_not_by_its_name_or_tokenizer(
    folder: Path, tmp_path: Path
) -> None:
    write_tokenizer(folder, tokenizer_json(TINY[0].config["vocab_size"]))
    converted = from_hf(folder).model
    paths = {name: tmp_path / f"{name}.gguf" for name in ("plain", "renamed", "scaled")}
    changes = {
        "renamed": {"general.name": MetadataEntry("str", "other")},
        "scaled": {"llama.rope.freq_base": MetadataEntry("f32", 5e5)},
    }
    for name, path in paths.items():
        save_models([OutputFile(path, replace(converted, metadata={**converted.metadata, **changes.get(name, {})}))])
    identities = {name: identity_at(path).sha256 for name, path in paths.items()}
    assert identities["plain"] == identities["renamed"]
    assert identities["plain"] != identities["scaled"]


def test_files_of_both_kinds_are_accepted() -> None:
    identity = ModelIdentity("new", "old")
    assert identity.matches("new")
    assert identity.matches("old")
    assert not identity.matches("other")
    assert not identity.matches(None)


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def test_configurations_are_written_as_version_0_1_0_printed_them() -> None:
    """Of every architecture, as read from config.json: session files of that version still name the model so."""
    cases = {case.name: case for case in CASES}
    assert len(LEGACY_TEXTS.keys() & cases.keys()) > 300
    wrong = [
        name
        for name, (folder_text, _) in LEGACY_TEXTS.items()
        if name in cases and digest(legacy_config_text(cases[name].model.config)) != folder_text
    ]
    assert not wrong


SOME = ("gemma2", "deepseek2", "qwen3next", "mamba2", "gpt-oss", "llama")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.name in SOME else pytest.mark.all, id=case.name)
        for case in CASES
        if LEGACY_TEXTS.get(case.name, [None, None])[1] is not None
    ],
)
def test_configurations_of_gguf_files_are_written_so_too(case: Case, tmp_path: Path) -> None:
    place = write_case(tmp_path / case.name, case)
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    path = tmp_path / f"{case.name}.gguf"
    save_models([OutputFile(path, from_hf(place).model)])
    source = open_model(path)
    assert digest(legacy_config_text(source.config)) == LEGACY_TEXTS[case.name][1]
    source.files.close()
