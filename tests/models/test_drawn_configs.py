"""Random configurations of every class that transformers has: what it computes, we compute, or say which key we lack.

By default some that are stored with transformers' values; with --all some 2,000 that transformers builds and runs now.
"""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from config_draws.comparison import TOLERANCE, named_keys, run_ours
from config_draws.goldens import DEFAULTS, DRAWN, sampled, written
from families import EVERY, WHOLE
from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.hf_aliases import ALIASES, with_both_names
from sporelm.checkpoints.supported_models import MODELS
from sporelm.errors import SporeError
from sporelm.models import Encoder, model_class
from sporelm.models.config import ModelConfig

STORED: list[dict[str, Any]] = json.loads(DRAWN.read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = json.loads(DEFAULTS.read_text(encoding="utf-8"))
CLASSES = {name: each for each in CONFIGS.values() for name in each["classes"]}
NOT_READ = {"num_mtp_layers", "num_local_experts"}  # second names that change nothing here, or in transformers
DRAWS = 10  # of each class, with --all


@pytest.fixture(scope="module")
def backend() -> Any:
    """The CPU, with one thread."""
    from config_draws.comparison import backend

    return backend()


@pytest.mark.parametrize("entry", STORED, ids=lambda entry: entry["name"].replace(" ", "-"))
def test_drawn_configs_compute_what_transformers_does(entry: dict[str, Any], backend: Any, tmp_path: Path) -> None:
    name = entry["config"]["architectures"][0]
    found = sampled(run_ours(written(tmp_path / "m", entry), name, backend))
    span = max(entry["span"], 1.0) if name.endswith("ForSequenceClassification") else entry["span"]
    assert np.abs(np.array(found) - np.array(entry["values"])).max() <= TOLERANCE * span


def test_each_family_of_transformers_is_drawn() -> None:
    found = {entry["config"]["architectures"][0] for entry in STORED}
    lacking = [each.module for each in MODELS if set(each.names) & CLASSES.keys() and not set(each.names) & found]
    assert lacking == []


def read(values: dict[str, Any]) -> ModelConfig | str:
    """The configuration, or why there is none."""
    try:
        return config_from_hf(values, "config.json")
    except SporeError as reason:
        return str(reason)


def without(base: dict[str, Any], key: str, said: dict[str, Any]) -> dict[str, Any]:
    """A config.json with `said` in place of a key, by all its names."""
    aliases = CLASSES[base["architectures"][0]]["aliases"]
    names = {key, *(alias for alias, field in aliases.items() if field == key)}
    names |= {aliases[key]} if key in aliases else set()
    names |= {"rope_scaling"} if key == "rope_parameters" else set()
    inner = base.get("text_config", base)
    changed = {name: value for name, value in inner.items() if name not in names} | said
    return {**base, "text_config": changed} if "text_config" in base else changed


# Keys whose default is refused beside a tiny vocabulary, or where it is written out.
NOT_WRITTEN = {("Gemma4", "vocab_size_per_layer_input"), ("OlmoHybrid", "rope_parameters")}
PLAIN = [case.config for case in (*EVERY, *WHOLE) if case.config["architectures"][0] in CLASSES]


def comparable(config: ModelConfig) -> ModelConfig:
    """The configuration, without differences that mean nothing: one group of experts is none, and encoders have no
    output that could be tied."""
    experts = config.experts
    if experts is not None and experts.groups <= 1:
        config = replace(config, experts=replace(experts, groups=0, top_groups=0))
    return replace(config, tie_embeddings=False) if issubclass(model_class(config), Encoder) else config


@pytest.mark.parametrize("base", PLAIN, ids=lambda base: base["architectures"][0])
def test_an_absent_key_means_what_the_class_takes_for_it(base: dict[str, Any]) -> None:
    """A missing key is read as its class's default, or named in an error."""
    name = base["architectures"][0]
    for key, default in CLASSES[name]["defaults"].items():
        silent, told = read(without(base, key, {})), read(without(base, key, {key: default}))
        if isinstance(silent, str):
            assert silent == told or named_keys(silent, {key: default} | base), f"{key}: {silent}"
        elif isinstance(told, str):
            assert any(name.startswith(start) and key == other for start, other in NOT_WRITTEN), f"{key}: {told}"
        else:
            assert comparable(silent) == comparable(told), f"{key}: absent is not {default!r}"


@pytest.mark.parametrize("model_type", ALIASES)
def test_second_names_are_read(model_type: str) -> None:
    for alias, key in ALIASES[model_type].items():
        assert with_both_names({alias: 5, key: 3}, model_type) == {alias: 5, key: 5}
        assert with_both_names({key: 3}, model_type) == {alias: 3, key: 3}
        assert with_both_names({alias: None, key: 3}, model_type)[key] == 3


@pytest.fixture(scope="module")
def live() -> Any:
    """transformers, which keeps quiet."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'sporelm[live]' compares live")
    return import_module("transformers")


@pytest.mark.all
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSES)
def test_drawn_configs_against_transformers(name: str, live: Any) -> None:
    """None is silently different, none refused without the name of a key; every third goes through a GGUF file too."""
    from config_draws.comparison import draw

    live.utils.logging.disable_progress_bar()
    found = [draw(name, index, gguf=index % 3 == 0) for index in range(DRAWS)]
    faults = [each for each in found if each.verdict not in ("equal", "refused", "discarded")]
    assert not faults, "\n".join(f"{each.index}: {each.verdict} {each.message} {each.gguf}" for each in faults)


@pytest.mark.all
def test_stored_defaults_are_those_of_transformers(live: Any) -> None:
    from config_draws.bases import class_defaults

    assert class_defaults() == CONFIGS


def test_every_second_name_of_transformers_is_known() -> None:
    """Which of the two names is the class's field, `with_both_names` does not ask."""
    for name, each in CONFIGS.items():
        known = {frozenset(pair) for pair in ALIASES.get(each["model_type"], {}).items()}
        said = {frozenset(pair) for pair in each["aliases"].items() if pair[0] not in NOT_READ}
        assert said <= known, name
