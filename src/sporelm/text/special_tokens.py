"""Tokens that are not text: which ones begin, end and stop."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Control tokens that end a turn, as the models' own chat formats name them.
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|eot|>",
    "<|EOT|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<|calls|>",
    "<|flush|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
)
# Where both of a pair are there (the harmony format, Solar), <|end|> only closes one channel of the turn.
_OTHER_ENDS = (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>"))


@dataclass(frozen=True)
class SpecialTokens:
    """What a tokenizer adds and stops at.

    control    ids of control tokens: recognised in text only if asked for, left out of text if asked for
    prefix     ids put before an encoded text: BOS, or nothing
    suffix     ids put after it: EOS, or nothing
    between    ids put between two texts that are read together, in front of which and behind which the others stand
    typed      the second of two such texts is of another token type than the first
    names      "bos_token", "eos_token", ... -> text, as chat templates know them
    gap        "prefix", "suffix", "middle" -> ids of the marks around a gap to be filled, where the file names them
    """

    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: frozenset[int] = frozenset()
    control: frozenset[int] = frozenset()
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    typed: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    gap: Mapping[str, int] = field(default_factory=dict)


def stop_ids(named: Iterable[int | None], control_texts: Mapping[str, int]) -> frozenset[int]:
    """The ids that end a turn: those the model names, and its control tokens that are known to.

    named            ids from the model's own files; None is left out
    control_texts    text -> id of every control token
    """
    ends = [text for text in TURN_ENDS if text in control_texts]
    if any(all(text in control_texts for text in pair) for pair in _OTHER_ENDS):
        ends = [text for text in ends if text != "<|end|>"]
    return frozenset(control_texts[text] for text in ends) | {token for token in named if token is not None}
