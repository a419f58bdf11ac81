"""Special tokens: what is added around a text, and what ends a generation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Control tokens that end a turn in the models' own chat formats.
END_OF_TURN_TEXTS = (
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
# Where both tokens of a pair exist (the harmony format, Solar), <|end|> only closes one channel of the turn.
_END_OF_ANSWER_PAIRS = (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>"))


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of one tokenizer.

    control               ids of control tokens: parsed in text, or skipped in decoded text, on request only
    prefix                ids put before an encoded text: BOS, or nothing
    suffix                ids put after it: EOS, or nothing
    separator             ids put between the two texts of a pair; prefix and suffix go around both
    has_pair_token_types  the second text of a pair has another token type than the first
    names                 "bos_token", "eos_token", ... -> text, as chat templates know them
    fim                   "prefix", "suffix", "middle" -> ids of the FIM tokens, where the file names them
    """

    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: frozenset[int] = frozenset()
    control: frozenset[int] = frozenset()
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    has_pair_token_types: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    fim: Mapping[str, int] = field(default_factory=dict)


def find_stop_ids(model_ids: Iterable[int | None], control_texts: Mapping[str, int]) -> frozenset[int]:
    """Return the ids that end a turn: those of the model's files, and control tokens that are known to end one.

    model_ids        ids from the model's files; None is skipped
    control_texts    text -> id of every control token
    """
    ends = [text for text in END_OF_TURN_TEXTS if text in control_texts]
    if any(all(text in control_texts for text in pair) for pair in _END_OF_ANSWER_PAIRS):
        ends = [text for text in ends if text != "<|end|>"]
    return frozenset(control_texts[text] for text in ends) | {token for token in model_ids if token is not None}
