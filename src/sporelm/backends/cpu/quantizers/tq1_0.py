"""TQ1_0: five values to a byte."""

from sporelm.backends.cpu.jit import Val
from sporelm.backends.cpu.quantizers.lane_columns import BlockField, Column, QuantizerWorkspace, pack_bits
from sporelm.backends.cpu.quantizers.ternary import round_ternary


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    integers = work.integers(256)
    work.halves(52)[0] = work.half(round_ternary(work, x, integers))
    words = work.words(0, 13)
    _pack_digits(work, integers, words, first=0, nbytes=32, digits=5)
    _pack_digits(work, integers.slice(160, 80), words, first=8, nbytes=16, digits=5)
    _pack_digits(work, integers.slice(240, 16), words, first=12, nbytes=4, digits=4)


def _pack_digits(
    work: QuantizerWorkspace, integers: Column, words: BlockField, *, first: int, nbytes: int, digits: int
) -> None:
    """Write `nbytes` bytes into words from `first` on: digit d of byte b is integer d * nbytes + b."""
    k = work.k

    def byte(place: Val) -> Val:
        whole = integers[place]
        for digit in range(1, digits):
            whole = whole * 3 + integers[place + digit * nbytes]
        whole = whole * 3 ** (5 - digits) * 256 + 242  # as 256ths of 243, rounded up
        return whole * 17261 >> 22  # / 243 of values below 2^16

    with k.range(nbytes // 4) as word:
        words[word + first] = pack_bits([byte(word * 4 + at) for at in range(4)])
