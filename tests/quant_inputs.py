"""Values and bit patterns for number formats, the same on every machine and with every numpy: integers from a bit
generator, whose stream numpy promises to keep, made floats by exact arithmetic.
"""

import zlib
from collections.abc import Callable

import numpy as np

WIDTH = 256  # a superblock, or eight blocks of 32


class Source:
    """Random integers and floats."""

    def __init__(self, seed: int) -> None:
        self.raw = np.random.PCG64(seed).random_raw

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """int64 of low to high - 1."""
        return (self.raw(int(np.prod(shape))) >> np.uint64(11)).astype(np.int64).reshape(shape) % (high - low) + low

    def gaussian(self, *shape: int) -> np.ndarray:
        """float32 near a Gaussian with mean 0 and a deviation of 1.15: sums of four uniform numbers."""
        fields = np.asarray(self.raw(int(np.prod(shape))), "<u8").view("<u2").reshape(*shape, 4)
        return (fields.astype(np.int64).sum(axis=-1) - 131_070).astype(np.float32) * np.float32(2**-15)

    def spread(self, low: int, high: int, n: int, size: int) -> np.ndarray:
        """`gaussian` [n, WIDTH], each run of `size` values times its own power of two."""
        values = self.gaussian(n * WIDTH // size, size)
        powers = self.integers(low, high, n * WIDTH // size, 1).astype(np.int32)
        with np.errstate(under="ignore"):
            return np.ldexp(values, powers).reshape(n, WIDTH)


def _repeated(source: Source, n: int, size: int) -> np.ndarray:
    return np.repeat(source.gaussian(n * WIDTH // size, 1), size, axis=1).reshape(n, WIDTH)


def _finite_bits(source: Source, n: int) -> np.ndarray:
    bits = np.asarray(source.raw(n * WIDTH), "<u8").view("<u4")[::2].reshape(n, WIDTH)
    return np.where((bits & 0x7F80_0000) == 0x7F80_0000, bits & 0xBFFF_FFFF, bits).astype("<u4").view("<f4")


NORMAL = "bell"  # old name: the name seeds the values of stored goldens
# Functions that make float32 [n, WIDTH] from a source.
CASES: dict[str, Callable[[Source, int], np.ndarray]] = {
    NORMAL: lambda s, n: s.gaussian(n, WIDTH),
    "rows of many sizes": lambda s, n: s.spread(-20, 20, n, WIDTH),
    "groups of many sizes": lambda s, n: s.spread(-12, 12, n, 16),
    "groups far apart": lambda s, n: s.spread(-60, 30, n, 16),
    "groups at the ends of float32": lambda s, n: s.spread(-140, 126, n, 16),
    "huge": lambda s, n: s.gaussian(n, WIDTH) * np.float32(8e37),
    "squares overflow": lambda s, n: s.gaussian(n, WIDTH) * np.float32(1e20),
    "tiny": lambda s, n: s.spread(-149, -100, n, WIDTH),
    "counted as zero or just not": lambda s, n: s.spread(-54, -42, n, WIDTH),
    "groups counted as zero or just not": lambda s, n: s.spread(-52, -45, n, 16),
    "integers": lambda s, n: s.integers(-8, 8, n, WIDTH).astype(np.float32),
    "few different": lambda s, n: s.integers(-2, 3, n, WIDTH).astype(np.float32) / 4,
    "negative": lambda s, n: -np.abs(s.gaussian(n, WIDTH)),
    "positive": lambda s, n: np.abs(s.gaussian(n, WIDTH)),
    "far from zero": lambda s, n: s.gaussian(n, WIDTH) * np.float32(1e-5) - np.float32(1000),
    "sparse": lambda s, n: s.gaussian(n, WIDTH) * (s.integers(0, 20, n, WIDTH) == 0),
    "constant groups": lambda s, n: _repeated(s, n, 16),
    "constant": lambda s, n: _repeated(s, n, WIDTH),
    "zeros of both signs": lambda s, n: np.where(s.integers(0, 2, n, WIDTH) == 0, np.float32(0), np.float32(-0.0)),
    "any finite bits": _finite_bits,
}

# What makes the importance of columns, float32 [width], not below 0, from a source.
IMPORTANCES: dict[str, Callable[[Source, int], np.ndarray]] = {
    "equal": lambda s, width: np.ones(width, np.float32),
    "squares": lambda s, width: s.gaussian(width) ** 2,
    "with zeros": lambda s, width: s.gaussian(width) ** 2 * (s.integers(0, 3, width) > 0),
    "mostly zeros": lambda s, width: s.gaussian(width) ** 2 * (s.integers(0, 12, width) == 0),
    "groups of zeros": lambda s, width: s.gaussian(width) ** 2 * np.repeat(s.integers(0, 2, width // 16), 16),
    "zeros": lambda s, width: np.zeros(width, np.float32),
    "of many sizes": lambda s, width: np.ldexp(s.gaussian(width) ** 2, s.integers(-60, 60, width).astype(np.int32)),
    "huge": lambda s, width: s.gaussian(width) ** 2 * np.float32(1e37),
    "tiny": lambda s, width: s.gaussian(width) ** 2 * np.float32(1e-42),
}


def importance(kind: str, width: int) -> np.ndarray:
    """float32 [width] of a kind, finite and not below 0."""
    with np.errstate(under="ignore"):
        return np.ascontiguousarray(IMPORTANCES[kind](Source(zlib.crc32(kind.encode())), width), np.float32)


def values(case: str, n: int) -> np.ndarray:
    """float32 [n, WIDTH] of a case, all finite."""
    made = CASES[case](Source(zlib.crc32(case.encode())), n)
    return np.ascontiguousarray(made, np.float32)


def patterns(name: str, nbytes: int, n: int) -> np.ndarray:
    """Blocks of any bits for the format `name`: uint8 [n, nbytes]."""
    return Source(zlib.crc32(name.encode())).integers(0, 256, n, nbytes).astype(np.uint8)


def checksums(rows: np.ndarray) -> np.ndarray:
    """The CRC-32 of each row's bytes, NaNs of floats counting as one: [n, anything] -> uint32 [n]."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), np.float32(np.nan), rows).astype("<f4")
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint32)
