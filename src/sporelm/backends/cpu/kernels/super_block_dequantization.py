"""Blocks of 256 values to vectors of f32: K-quants and ternary formats. `quant` documents the layouts."""

from collections.abc import Callable, Iterator, Sequence

from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, vec

Values = Iterator[Val]


def load_bytes(k: Builder, block: Val, offset: int) -> Val:
    """Load one byte per lane, as i32 from 0 to 255."""
    return k.load(vec(i8, k.lanes), block, offset).zext(k.vi)


def load_half(k: Builder, block: Val, offset: int) -> Val:
    """Load a float16 number into every lane, as f32."""
    return k.splat(k.target.from_half(k, k.load(i16, block, offset, 1)))


def lookup_levels(k: Builder, codes: Val, levels: Sequence[int]) -> Val:
    """Look up the level of each code, f32."""
    found = k.const(k.vf, levels[0])
    for code in range(1, len(levels)):
        found = k.select(codes.equals(code), k.const(k.vf, levels[code]), found)
    return found


def _pairs(k: Builder, block: Val, offset: int, place: int) -> Val:
    """Return two bits of each value from `place` on, as `packing.split_bit_pairs` orders them."""
    half, within = divmod(place, 128)
    return load_bytes(k, block, offset + 32 * half + within % 32) >> (2 * (within // 32)) & 3


def _plane(k: Builder, block: Val, offset: int, place: int) -> Val:
    """Return one bit of each value from `place` on, as `packing.split_bit_planes` orders them."""
    return load_bytes(k, block, offset + place % 32) >> (place // 32) & 1


def _byte(k: Builder, block: Val, offset: int) -> Val:
    return k.load(i8, block, offset).zext(i32)


def _six_bits(k: Builder, block: Val, group: int) -> tuple[Val, Val]:
    """Return a group's scale and minimum, scalars, from the 12 bytes at 4 that `packing.split_scales` describes."""
    if group < 4:
        return _byte(k, block, 4 + group) & 63, _byte(k, block, 8 + group) & 63
    lower = _byte(k, block, 8 + group)
    upper = [_byte(k, block, start + group - 4) >> 6 << 4 for start in (4, 8)]
    return lower & 15 | upper[0], lower >> 4 | upper[1]


def _scaled_groups(k: Builder, block: Val, integers: Callable[[int], Val]) -> Values:
    """Yield integer * step - drop in groups of 32, with the factors at 0 and 2."""
    factor, other = load_half(k, block, 0), load_half(k, block, 2)
    for group in range(8):
        scale, minimum = _six_bits(k, block, group)
        step, drop = factor * k.splat(scale.to_float()), other * k.splat(minimum.to_float())
        for place in range(32 * group, 32 * group + 32, k.lanes):
            yield integers(place).to_float() * step - drop


def _nibble(k: Builder, block: Val, offset: int, place: int, run: int) -> Val:
    """Return four bits of each value from `place` on, as `packing.split_nibbles` orders them."""
    turn, within = divmod(place, 2 * run)
    return load_bytes(k, block, offset + run * turn + within % run) >> (4 * (within // run)) & 15


def _q4_k(k: Builder, block: Val) -> Values:
    return _scaled_groups(k, block, lambda place: _nibble(k, block, 16, place, 32))


def _q5_k(k: Builder, block: Val) -> Values:
    return _scaled_groups(k, block, lambda place: _nibble(k, block, 48, place, 32) | _plane(k, block, 16, place) << 4)


def _q2_k(k: Builder, block: Val) -> Values:
    factor, other = load_half(k, block, 80), load_half(k, block, 82)
    for group in range(16):
        both = _byte(k, block, group)
        step, drop = factor * k.splat((both & 15).to_float()), other * k.splat((both >> 4).to_float())
        for place in range(16 * group, 16 * group + 16, k.lanes):
            yield _pairs(k, block, 16, place).to_float() * step - drop


def _q3_k(k: Builder, block: Val) -> Values:
    factor = load_half(k, block, 108)
    for group in range(16):
        lower = _byte(k, block, 96 + group % 8) >> (4 * (group // 8)) & 15
        upper = _byte(k, block, 104 + group % 4) >> (2 * (group // 4)) & 3
        step = factor * k.splat(((lower | upper << 4) - 32).to_float())
        for place in range(16 * group, 16 * group + 16, k.lanes):
            integer = _pairs(k, block, 32, place) | _plane(k, block, 0, place) << 2
            yield (integer - 4).to_float() * step


def _q6_k(k: Builder, block: Val) -> Values:
    factor = load_half(k, block, 208)
    for group in range(16):
        step = factor * k.splat(k.load(i8, block, 192 + group).sext(i32).to_float())
        for place in range(16 * group, 16 * group + 16, k.lanes):
            integer = _nibble(k, block, 0, place, 64) | _pairs(k, block, 128, place) << 4
            yield (integer - 32).to_float() * step


def _tq2_0(k: Builder, block: Val) -> Values:
    factor = load_half(k, block, 64)
    for place in range(0, 256, k.lanes):
        yield (_pairs(k, block, 0, place) - 1).to_float() * factor


def _tq1_0(k: Builder, block: Val) -> Values:
    factor = load_half(k, block, 52)
    for start, nbytes, first, last in ((0, 32, 0, 160), (32, 16, 160, 240)):
        for place in range(first, last, k.lanes):
            digit, at = divmod(place - first, nbytes)
            yield _digits(load_bytes(k, block, start + at), k.const(k.vi, 3**digit)) * factor
    four = k.load(vec(i8, 4), block, 48)
    for place in range(0, 16, k.lanes):
        fractions = k.shuffle(four, four, [lane % 4 for lane in range(k.lanes)]).zext(k.vi)
        powers = k.vector([k.const(i32, 3 ** ((place + lane) // 4)) for lane in range(k.lanes)])
        yield _digits(fractions, powers) * factor


def _digits(fractions: Val, powers: Val) -> Val:
    """Return a base-3 digit of fractions of 256, minus one, as f32."""
    return (((fractions * powers & 255) * 3 >> 8) - 1).to_float()


SUPER_BLOCK_READERS: dict[str, tuple[int, int, Callable[[Builder, Val], Values]]] = {
    "Q2_K": (256, 84, _q2_k),
    "Q3_K": (256, 110, _q3_k),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
    "TQ1_0": (256, 54, _tq1_0),
    "TQ2_0": (256, 66, _tq2_0),
}
