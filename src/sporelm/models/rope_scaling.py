"""RoPE scaling: how frequencies differ from theta ** (-2 i / head_dim), in one record for each kind.

The records hold the values of a file, with defaults filled in; `models.rotary` computes angles from them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """No scaling, and the fields that all kinds share."""

    attention: float = 1.0  # factor of cosines and sines, so that scores are multiplied by its square
    divisors: tuple[float, ...] = ()  # of each of the head_dim / 2 frequencies, applied last; () for none

    @property
    def extended_context(self) -> int:
        """The number of positions that the scaling extends the context to; 0 if the file's own context length
        counts."""
        return 0


UNSCALED = RopeScaling()


@dataclass(frozen=True, kw_only=True)
class LinearScaling(RopeScaling):
    """Position interpolation: positions are divided by `factor` (Chen et al. 2023)."""

    factor: float
    original: int = 0  # positions of the model before scaling; 0 if the file does not say

    @property
    def extended_context(self) -> int:
        return int(self.original * self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicNtkScaling(RopeScaling):
    """A base that grows with contexts longer than `original` (as in transformers; see ADR 0008)."""

    factor: float
    original: int

    @property
    def extended_context(self) -> int:
        return int(self.original * self.factor)


@dataclass(frozen=True, kw_only=True)
class YarnScaling(RopeScaling):
    """Slow frequencies are divided by `factor`, fast ones are kept, with a ramp between them (Peng et al. 2023).

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
    """Frequencies with wavelengths above original / low are divided by `factor`, those below original / high are kept,
    and those between are interpolated (Llama 3.1)."""

    factor: float
    original: int
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(RopeScaling):
    """A divisor for each frequency: one list for contexts up to `original`, one for longer contexts (Ding et al.
    2024)."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
