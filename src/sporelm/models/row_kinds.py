"""The kinds of rows of models with a visual expert (CogVLM): words, and pictures.

A tower's rows end with the scores of both experts, so that the rows of a picture may be of either kind.
"""

from typing import Final

NUM_KINDS: Final = 2
WORD_ROW, VISUAL_ROW = (1.0, 0.0), (0.0, 1.0)  # the scores
