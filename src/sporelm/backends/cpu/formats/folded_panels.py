"""Super-blocks with scales so small that bytes hold code * scale, which many tokens multiply directly."""

from sporelm.backends.cpu.formats.code_panels import CodePanels
from sporelm.backends.cpu.formats.panels import SuperBlock
from sporelm.backends.cpu.jit import Builder, Val, i16, vec
from sporelm.backends.cpu.targets import CpuTarget


class FoldedPanels(CodePanels):
    """Panels whose codes times the greatest scale are at most `folded_largest`, which fits a byte.

    A target that adds products in 32 bits multiplies many tokens with bytes that already include their scales. The sums
    are the same integers.
    """

    folded_largest = 0

    def __init__(self, target: CpuTarget, folded: bool = False) -> None:
        super().__init__(target)
        self.folded = folded
        if folded:
            self.scaled, self.largest = False, self.folded_largest

    def for_many(self) -> "FoldedPanels":
        return type(self)(self.target, True) if self.folded_largest <= self.target.folds_to else self

    def fold(self, word: Val, scale: Val) -> Val:
        """Multiply four bytes per lane by their run's scale. None overflows into its neighbour."""
        return word * scale

    def fold_pair(self, pair: Val) -> Val:
        """Return the i16 factors of the activations' sums for folded bytes."""
        return pair

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        plain = super().super_block(k, group)
        if not self.folded:
            return plain
        words = 64 // self.runs

        def word(number: int) -> Val:
            return self.fold(plain.word(number), self.run_scale(k, group, number // words))

        def pair(number: int) -> Val:
            return self.fold_pair(plain.pair(number).bits(vec(i16, 2 * self.lanes))).bits(k.vi)

        return plain._replace(word=word, pair=pair)
