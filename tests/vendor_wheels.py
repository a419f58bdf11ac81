"""Wheels of other projects that tests read without installing them: fetched with pip, and kept in a folder."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(tempfile.gettempdir()) / "sporelm-wheels"


def unpack_wheel(requirement: str, suffixes: tuple[str, ...] = (".py", ".yaml")) -> Path:
    """Return the folder with a wheel's text files; skip the test where pip cannot fetch it for this Python.

    requirement  a name and a version, such as "torch-npu==2.13.0"
    """
    name = requirement.replace("==", "-").replace("*", "x")
    target = FOLDER / name
    if not target.is_dir():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", folder, requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode or not wheels:
                reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1][:200]
                pytest.skip(f"{requirement} cannot be fetched: {reason}")
            unpacked = Path(folder) / "unpacked"
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extractall(unpacked, [each for each in wheel.namelist() if each.endswith(suffixes)])
            unpacked.rename(target)
    return target
