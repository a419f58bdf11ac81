"""Every call of the Ascend back-end against the schemas and the meta functions in torch_npu's own wheel.

The wheel's Python is loaded without its native library, which needs a driver: the operators are defined by the schemas
of its yaml file, and its meta functions give the results' shapes on torch's device without values. In a process of its
own, where torch knows no other operators of these names.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vendor_wheels import unpack_wheel

torch = pytest.importorskip("torch", reason="torch is not installed")

REQUIREMENT = "torch-npu=={}"
PROGRAM = Path(__file__).with_name("torch_npu_meta.py")
MODELS = ("llama", "qwen2_moe", "mixtral", "internlm2", "internvl", "mistral", "deepseek_v2")


def fetch_wheel() -> Path:
    """Return the unpacked wheel of torch_npu for the installed torch; skip where there is none."""
    release = ".".join(torch.__version__.partition("+")[0].split(".")[:3])
    return unpack_wheel(REQUIREMENT.format(release))


def run_program(*args: str) -> str:
    command = [sys.executable, str(PROGRAM), str(fetch_wheel()), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.all
def test_the_schemas_of_the_emulation_are_the_wheels() -> None:
    from unit.backends.vendor import emulated_npu

    found = set(run_program("schemas").splitlines())
    assert {" ".join(schema.replace("'", '"').split()) for schema in emulated_npu.SCHEMAS} <= found


@pytest.mark.all
@pytest.mark.parametrize("name", MODELS)
def test_every_call_of_a_models_steps_is_legal(name: str) -> None:
    output = run_program("model", name)
    assert "illegal" not in output
    assert "legal" in output


@pytest.mark.all
def test_every_padded_step_of_the_kinds_of_blocks_is_legal() -> None:
    rows: Any = [line for line in run_program("buckets").splitlines() if line]
    assert rows
    assert not [line for line in rows if ": legal" not in line], rows
