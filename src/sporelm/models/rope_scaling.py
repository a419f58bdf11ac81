"""How a model's rotary frequencies differ from theta ** (-2 i / head_dim): one record for each kind of scaling.

The records hold what a file says, with defaults filled in; `models.rotary` turns them into angles.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """No scaling of its own; and what every kind may have besides."""

    attention: float = 1.0  # by which cosines and sines are multiplied: attention's scores by its square
    divisors: tuple[float, ...] = ()  # by which each of the head_dim / 2 frequencies is divided at last; () for none

    @property
    def extended_context(self) -> int:
        """Positions that the scaling was made for; 0 where the file's own context length says it."""
        return 0


UNSCALED = RopeScaling()


@dataclass(frozen=True, kw_only=True)
class LinearScaling(RopeScaling):
    """Positions divided by `factor` (Chen et al. 2023, "position interpolation")."""

    factor: float
    original: int = 0  # positions of the model before scaling; 0 where nobody says

    @property
    def extended_context(self) -> int:
        return int(self.original * self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicNtkScaling(RopeScaling):
    """A base that grows with the context once that is longer than `original` (as in transformers; see ADR 0008)."""

    factor: float
    original: int

    @property
    def extended_context(self) -> int:
        return int(self.original * self.factor)


@dataclass(frozen=True, kw_only=True)
class YarnScaling(RopeScaling):
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between them (Peng et al. 2023).

    A frequency is fast if it turns at least `beta_fast` times in `original` positions, slow below `beta_slow`.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0  # how much of the ramp counts; 0: all frequencies are divided
    truncate: bool = True  # the ramp's ends are whole frequency numbers

    @property
    def extended_context(self) -> int:
        return int(self.original * self.factor)


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(RopeScaling):
    """Frequencies of waves longer than original / low are divided by `factor`, those of waves below original / high
    are kept, those between are mixed (Llama 3.1)."""

    factor: float
    original: int
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(RopeScaling):
    """A divisor for each frequency: one list for contexts up to `original`, one beyond (Ding et al. 2024)."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
