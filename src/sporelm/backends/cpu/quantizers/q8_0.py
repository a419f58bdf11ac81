"""Q8_0: signed bytes."""

from sporelm.backends.cpu.jit import Val
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, inverse_or_zero, pack_bits


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k = work.k
    largest = k.fabs(x[0])
    for at in range(1, 32):
        largest = k.fmax(k.fabs(x[at]), largest)
    scale = largest / 127.0
    inverse = inverse_or_zero(k, scale)
    work.halves(0)[0] = work.half(scale)
    words = work.words(2, 8)

    def integer(at: int) -> Val:  # halves round away from zero, as C's roundf does
        scaled = x[at] * inverse
        whole = scaled.to_int()
        away = k.select(scaled < 0.0, k.const(k.vi, -1), k.const(k.vi, 1))
        return whole + k.select(k.fabs(scaled - whole.to_float()) >= 0.5, away, k.const(k.vi, 0)) & 0xFF

    for word in range(8):
        words[word] = pack_bits([integer(at) for at in range(4 * word, 4 * word + 4)])
