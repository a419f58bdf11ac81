"""Random prompts of about a given number of tokens, which share as much of their beginning as requested."""

import random

# Short and common: nearly every vocabulary has a token for each of them.
WORDS = (  # noqa: SIM905
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name president team minute idea body back parent face others level "
    "office door health person art war history party result change morning reason research girl guy moment air teacher "
    "force education foot boy age policy music market sense nation plan college interest death experience effect use "
    "class control field tree road form river table fire light paper space ground summer winter price value action"
).split()

# For a server that ends an answer where the model does: with this most models go on for long.
LONG_ANSWER_SUFFIX = " Write a very long story in which all of these words are used."


class RandomPrompts:
    """Made from a seed: the prompt of a number is always the same one.

    words          of a prompt
    shared         share of them, from the beginning, that is the same in all prompts, 0 to 1
    ending         what every prompt ends with
    """

    def __init__(self, seed: int, words: int, shared: float = 0.0, ending: str = "") -> None:
        self.seed = seed
        self.words = max(1, words)
        self.ending = ending
        self.num_shared = round(self.words * shared)
        self._beginning = random.Random(f"{seed} shared").choices(WORDS, k=self.num_shared)

    def text(self, number: int | str) -> str:
        """The prompt of a number."""
        own = random.Random(f"{self.seed} prompt {number}").choices(WORDS, k=self.words - self.num_shared)
        return " ".join([*self._beginning, *own]) + self.ending
