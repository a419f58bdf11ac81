"""A few fuzz cases in every test run, more with --all; `run.py` runs for hours."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.cases import run_case, seed
from fuzz.seeds import WRITERS
from fuzz.targets import names, read_gguf, read_model, read_safetensors, read_tokenizer, run_captured
from sporelm.tools.imatrix_file import read_imatrix

FOLDERS = ("folder", "shards", "two-files")
MODELS = ("llama", "super", *FOLDERS)
TOKENIZERS = ("llama", "gpt2", "bert", "t5", *FOLDERS)
HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_seeds_are_sound(name: str, tmp_path: Path) -> None:
    """The undamaged seeds can be read."""
    sound = seed(name).write(tmp_path)
    if name == "imatrix-dat":
        read_imatrix(sound)
        return
    read = read_safetensors if name in ("safetensors", *FOLDERS) else read_gguf
    read(sound)
    assert run_captured(["gguf", "show", str(sound)])[0] == 0
    if name in MODELS:
        read_model(sound)
    if name in TOKENIZERS:
        read_tokenizer(sound)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=HEALTH, database=None)
@given(random=st.randoms(use_true_random=False), name=st.sampled_from(sorted(WRITERS)))
def test_damaged_models(random: Random, name: str) -> None:
    outcome = run_case(random, only=name, measured=False)
    assert outcome.fault is None, (outcome.target, outcome.fault)


@pytest.mark.all
@pytest.mark.parametrize("number", range(20))
def test_many_damaged_models(number: int) -> None:
    for step in range(150):
        outcome = run_case(Random(f"all {number} {step}"))
        assert outcome.fault is None, (number, step, outcome.target, outcome.fault)


def test_every_tool_for_model_files_is_a_target() -> None:
    from sporelm.cli.main import COMMANDS

    tools = {name for name in COMMANDS if name.startswith("gguf ")}
    assert tools <= set(names()), f"the fuzzer does not know {tools - set(names())}"
