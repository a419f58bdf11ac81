"""Super-blocks whose scales are so small that bytes can hold them: many tokens are multiplied without."""

from sporelm.backends.cpu.formats.codes import CodePanels
from sporelm.backends.cpu.formats.panels import SuperBlock
from sporelm.backends.cpu.jit import Builder, Val, i16, vec
from sporelm.backends.cpu.targets import Target


class FoldedPanels(CodePanels):
    """A code times the greatest scale is `folded_largest`, which a byte holds.

    A target that adds products in 32 bits multiplies many tokens with bytes that have their scales already. The sums
    are the same integers.
    """

    folded_largest = 0

    def __init__(self, target: Target, folded: bool = False) -> None:
        super().__init__(target)
        self.folded = folded
        if folded:
            self.scaled, self.largest = False, self.folded_largest

    def for_many(self) -> "FoldedPanels":
        return type(self)(self.target, True) if self.folded_largest <= self.target.folds_to else self

    def fold(self, word: Val, scale: Val) -> Val:
        """Four bytes a lane times their run's scale; none carries into its neighbour."""
        return word * scale

    def fold_pair(self, pair: Val) -> Val:
        """What sums of activations are multiplied by, i16, beside folded bytes."""
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
