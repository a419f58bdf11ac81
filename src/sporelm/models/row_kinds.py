"""The two kinds of rows in models with a visual expert (CogVLM): text, and picture.

A tower's rows end with a score for each expert, since some rows of a picture use the text expert.
"""

from typing import Final

NUM_KINDS: Final = 2
WORD_ROW, VISUAL_ROW = (1.0, 0.0), (0.0, 1.0)  # the scores
