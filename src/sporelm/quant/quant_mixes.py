"""Quantization mixes such as Q4_K_M, and the number format that each tensor gets in a mix.

The rules are those of llama.cpp's quantizer, so that a name stands for the same formats as in llama.cpp. Value and down
projections of some layers get more bits than the rest, the output matrix gets the most, and tensors that gain nothing
from quantization are skipped (`skip_rules`). Source of all rules and file type numbers: src/llama-quant.cpp and
`enum llama_ftype` in llama.cpp. "Layer" in this file means the number that llama.cpp's rule uses.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.quant.skip_rules import is_skipped, match_name

BLOCK_VALUES = {known.name: known.values for known in GGML_TYPES.values()}

# The fallback for rows that are not whole blocks of a format: blocks of 32 values, or F16 where these do not fit.
SMALL_BLOCK_FALLBACKS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
FLOAT_FORMATS = ("F32", "F16", "BF16")
EMBEDDING_NAMES = ("token_embd.weight", "per_layer_token_embd.weight")
OUTPUT_NAME = "output.weight"
_LAYER_NAME = re.compile(r"blk\.(\d+)")


class Mix(NamedTuple):
    """A mix: its name, its number in `general.file_type`, and the format of most matrices."""

    name: str
    file_type: int
    main: str


# The mixes of llama.cpp. A mix can be made here if its main format has `can_quantize`.
MIXES: dict[str, Mix] = {
    name: Mix(name, number, main)
    for number, name, main in (
        (0, "F32", "F32"), (1, "F16", "F16"), (2, "Q4_0", "Q4_0"), (3, "Q4_1", "Q4_1"), (7, "Q8_0", "Q8_0"),
        (8, "Q5_0", "Q5_0"), (9, "Q5_1", "Q5_1"), (10, "Q2_K", "Q2_K"), (11, "Q3_K_S", "Q3_K"), (12, "Q3_K_M", "Q3_K"),
        (13, "Q3_K_L", "Q3_K"), (14, "Q4_K_S", "Q4_K"), (15, "Q4_K_M", "Q4_K"), (16, "Q5_K_S", "Q5_K"),
        (17, "Q5_K_M", "Q5_K"), (18, "Q6_K", "Q6_K"), (19, "IQ2_XXS", "IQ2_XXS"), (20, "IQ2_XS", "IQ2_XS"),
        (21, "Q2_K_S", "Q2_K"), (22, "IQ3_XS", "IQ3_S"), (23, "IQ3_XXS", "IQ3_XXS"), (24, "IQ1_S", "IQ1_S"),
        (25, "IQ4_NL", "IQ4_NL"), (26, "IQ3_S", "IQ3_S"), (27, "IQ3_M", "IQ3_S"), (28, "IQ2_S", "IQ2_XS"),
        (29, "IQ2_M", "IQ2_S"), (30, "IQ4_XS", "IQ4_XS"), (31, "IQ1_M", "IQ1_M"), (32, "BF16", "BF16"),
        (36, "TQ1_0", "TQ1_0"), (37, "TQ2_0", "TQ2_0"), (38, "MXFP4_MOE", "MXFP4"), (40, "Q1_0", "Q1_0"),
        (41, "Q2_0", "Q2_0"),
    )
}  # fmt: skip
# Other names of mixes.
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}


@dataclass(frozen=True)
class ModelTraits:
    """The model properties that the rules use: the architecture as GGUF names it, and numbers of the metadata."""

    architecture: str
    layers: int
    heads: int  # of the first layer
    kv_heads: int
    experts: int = 0

    @property
    def is_grouped(self) -> bool:
        """Whether four or more query heads share a key head: value matrices are then small and may use more bits."""
        return self.kv_heads > 0 and self.heads // self.kv_heads >= 4

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp takes the model for one of 70 billion weights, by its number of layers."""
        if self.architecture in ("llama", "llama-embed"):
            return self.layers == 80 and self.experts != 8 and self.heads != self.kv_heads
        return self.layers == {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(self.architecture, -1)


@dataclass(frozen=True)
class FormatRequest:
    """The user's options besides the mix.

    has_imatrix  whether there is an importance matrix, which lets some mixes use fewer bits
    is_pure      whether every matrix gets the main format
    output       the format of the output matrix
    embedding    the format of the embeddings
    override     tensor name -> the format it must have, or None
    """

    has_imatrix: bool = False
    is_pure: bool = False
    output: str | None = None
    embedding: str | None = None
    override: Callable[[str], str | None] = lambda name: None


class FormatChoice(NamedTuple):
    """The format of a tensor, and the preferred format, which its rows may not fit."""

    format_name: str
    preferred: str


class TensorPosition(NamedTuple):
    """The position of a tensor among those of its role: its layer, the number of layers, its index in the role."""

    traits: ModelTraits
    has_imatrix: bool
    layer: int
    layers: int
    role_index: int


Condition = Callable[[TensorPosition], bool]


def always(position: TensorPosition) -> bool:
    return True


def is_grouped_query(position: TensorPosition) -> bool:
    return position.traits.is_grouped


def has_eight_experts(position: TensorPosition) -> bool:
    return position.traits.experts == 8


def is_falcon(position: TensorPosition) -> bool:
    return position.traits.architecture == "falcon"


def has_imatrix(position: TensorPosition) -> bool:
    return position.has_imatrix


def is_in_first_eighth(position: TensorPosition) -> bool:
    return position.layer < position.layers // 8


def is_in_first_sixteenth(position: TensorPosition) -> bool:
    return position.layer < position.layers // 16


def is_in_middle(position: TensorPosition) -> bool:
    return position.layers // 8 <= position.layer < 7 * position.layers // 8


def uses_more_bits(position: TensorPosition) -> bool:
    """Return whether the layer is in the first or last eighth, or a third layer in between (`use_more_bits`)."""
    eighth = position.layers // 8
    return position.layer < eighth or position.layer >= 7 * position.layers // 8 or (position.layer - eighth) % 3 == 2


def all_of(*conditions: Condition) -> Condition:
    return lambda position: all(condition(position) for condition in conditions)


def any_of(*conditions: Condition) -> Condition:
    return lambda position: any(condition(position) for condition in conditions)


def negate(condition: Condition) -> Condition:
    return lambda position: not condition(position)


def is_before_layer(count: int) -> Condition:
    return lambda position: position.layer < count


class FormatRule(NamedTuple):
    """A rule: in these mixes (names separated by spaces), a tensor for which the condition holds gets this format."""

    mixes: str
    condition: Condition
    format_name: str


LOW_BIT_MIXES = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"  # mixes of fewer than three bits have separate rules
OTHER_MIXES = " ".join(name for name in MIXES if name not in (*LOW_BIT_MIXES.split(), *FLOAT_FORMATS))
MORE_BITS_FOR_EIGHT_EXPERTS = "Q2_K IQ3_XS IQ3_XXS Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ3_M IQ4_XS"

# Role -> rules. The first matching rule decides; without one a tensor gets the main format.
RULES: dict[str, tuple[FormatRule, ...]] = {
    "embedding": (
        FormatRule("IQ1_S IQ1_M IQ2_XXS IQ2_XS", always, "Q2_K"),
        FormatRule("IQ2_S IQ2_M IQ3_XXS", always, "IQ3_S"),
        FormatRule("TQ1_0 TQ2_0 Q2_0", always, "Q4_K"),
    ),
    "values": (
        FormatRule(LOW_BIT_MIXES, any_of(is_grouped_query, lambda position: position.traits.experts >= 4), "Q4_K"),
        FormatRule("IQ2_S IQ2_M", always, "IQ3_S"),
        FormatRule(LOW_BIT_MIXES, always, "Q2_K"),
        FormatRule(OTHER_MIXES, has_eight_experts, "Q8_0"),
        FormatRule("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", is_grouped_query, "Q4_K"),
        FormatRule("Q2_K", always, "Q3_K"),
        FormatRule("IQ3_XXS", negate(has_imatrix), "IQ3_S"),
        FormatRule("IQ3_M", always, "Q4_K"),
        FormatRule("Q3_K_M", is_before_layer(2), "Q5_K"),
        FormatRule("Q3_K_M", always, "Q4_K"),
        FormatRule("Q3_K_L", always, "Q5_K"),
        FormatRule("IQ4_NL IQ4_XS", is_grouped_query, "Q5_K"),
        FormatRule("Q4_K_M Q5_K_M", uses_more_bits, "Q6_K"),
        FormatRule("Q4_K_S", is_before_layer(4), "Q5_K"),
    ),
    "keys": (
        FormatRule(LOW_BIT_MIXES, has_eight_experts, "Q4_K"),
        FormatRule(OTHER_MIXES, has_eight_experts, "Q8_0"),
        FormatRule("IQ3_XS", always, "IQ3_XXS"),
        FormatRule("IQ3_XXS", always, "IQ2_S"),
    ),
    "queries": (
        FormatRule("IQ3_XS", always, "IQ3_XXS"),
        FormatRule("IQ3_XXS", always, "IQ2_S"),
    ),
    "attention output": (
        FormatRule(LOW_BIT_MIXES, has_eight_experts, "Q5_K"),
        FormatRule("IQ1_S IQ1_M", always, "IQ2_XXS"),
        FormatRule("IQ2_S IQ2_M", always, "IQ3_S"),
        FormatRule("Q3_K_L", is_falcon, "Q4_K"),
        FormatRule(MORE_BITS_FOR_EIGHT_EXPERTS, all_of(has_eight_experts, negate(is_falcon)), "Q5_K"),
        FormatRule("Q2_K", negate(any_of(is_falcon, has_eight_experts)), "Q3_K"),
        FormatRule("IQ3_XXS", negate(any_of(is_falcon, has_eight_experts)), "IQ3_S"),
        FormatRule("Q3_K_M IQ3_M", negate(any_of(is_falcon, has_eight_experts)), "Q4_K"),
        FormatRule("Q3_K_L", negate(any_of(is_falcon, has_eight_experts)), "Q5_K"),
    ),
    "down": (
        FormatRule("IQ2_S IQ2_M", lambda position: position.role_index < position.layers // 8, "IQ3_S"),
        FormatRule(LOW_BIT_MIXES, lambda position: position.role_index < position.layers // 8, "Q2_K"),
        FormatRule("Q2_K", always, "Q3_K"),
        FormatRule("Q2_K_S", is_in_first_eighth, "Q4_K"),
        FormatRule("IQ3_XXS", all_of(negate(has_imatrix), is_in_first_eighth), "Q4_K"),
        FormatRule("IQ3_XXS", negate(has_imatrix), "Q3_K"),
        FormatRule("IQ3_M", any_of(is_in_first_eighth, all_of(has_eight_experts, uses_more_bits)), "Q4_K"),
        FormatRule("Q3_K_M", is_in_first_sixteenth, "Q5_K"),
        FormatRule("Q3_K_M", any_of(negate(is_falcon), uses_more_bits), "Q4_K"),
        FormatRule("Q3_K_L", is_falcon, "Q4_K"),
        FormatRule("Q3_K_L", always, "Q5_K"),
        FormatRule("Q4_K_M", all_of(is_falcon, is_in_first_sixteenth), "Q6_K"),
        FormatRule("Q4_K_M", all_of(is_falcon, uses_more_bits), "Q5_K"),
        FormatRule("Q4_K_M", all_of(negate(is_falcon), uses_more_bits), "Q6_K"),
        FormatRule("Q4_K_S", all_of(negate(is_falcon), is_in_first_eighth), "Q5_K"),
        FormatRule("Q5_K_M", uses_more_bits, "Q6_K"),
        FormatRule("IQ4_NL IQ4_XS", all_of(negate(has_imatrix), is_in_first_eighth), "Q5_K"),
        # Blocks without a minimum lose quality in the first layers even with an importance matrix.
        FormatRule("Q4_0", all_of(has_imatrix, is_in_first_eighth), "Q4_1"),
        FormatRule("Q5_0", all_of(has_imatrix, is_in_first_eighth), "Q5_1"),
    ),
    "gate": (FormatRule("IQ3_XS", is_in_middle, "IQ3_XXS"),),
    "up": (FormatRule("IQ3_XS", is_in_middle, "IQ3_XXS"),),
}  # fmt: skip

# Part of a name -> role. The first matching part decides.
ROLE_NAME_PARTS = (
    ("attn_qkv.weight", "values"),
    ("attn_kv_b.weight", "values"),
    ("attn_v.weight", "values"),
    ("attn_k.weight", "keys"),
    ("attn_q.weight", "queries"),
    ("attn_output.weight", "attention output"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)


def find_role(name: str) -> str:
    """Return the role of a tensor as the rules distinguish it: a key of `RULES`, "output", or "" for others."""
    if name == OUTPUT_NAME:
        return "output"
    if name in EMBEDDING_NAMES:
        return "embedding"
    return next((role for part, role in ROLE_NAME_PARTS if part in name), "")


def sort_tensor_names(names: Sequence[str]) -> list[str]:
    """Sort tensor names in the order of the quantizer: by layer, then by name."""

    def key(name: str) -> tuple[int, bytes]:
        match = _LAYER_NAME.match(name)
        return int(match[1]) if match else -1, name.encode("utf-8", "surrogateescape")

    return sorted(names, key=key)


def choose_formats(
    mix: Mix, shapes: Mapping[str, tuple[int, ...]], traits: ModelTraits, request: FormatRequest | None = None
) -> dict[str, FormatChoice]:
    """Choose the format of each tensor that is not skipped, by name. `shapes` are the logical shapes of all tensors."""
    request = request or FormatRequest()
    chooser = _FormatChooser(mix, shapes, traits, request)
    chosen = {}
    for name in sort_tensor_names(list(shapes)):
        if not is_skipped(name, shapes[name], traits.architecture):
            preferred = _find_requested_format(name, request) or chooser.choose(name)
            chosen[name] = FormatChoice(fit_format_to_width(preferred, shapes[name][-1]), preferred)
    return chosen


def needs_imatrix(mix: Mix, name: str, format_name: str) -> bool:
    """Return whether a tensor in this format is unusable without an importance matrix."""
    if find_role(name) in ("embedding", "output"):
        return False
    if format_name == "Q2_K":
        return mix.name == "Q2_K_S"
    return format_name in ("IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S")


def fit_format_to_width(format_name: str, width: int) -> str:
    """Return the format itself, or its fallback for rows of `width` values that are not whole blocks."""
    if width % BLOCK_VALUES[format_name] == 0:
        return format_name
    smaller = SMALL_BLOCK_FALLBACKS.get(format_name, "F16")
    return smaller if width % BLOCK_VALUES[smaller] == 0 else "F16"


def _find_requested_format(name: str, request: FormatRequest) -> str | None:
    """Return the format that the user requested for this tensor, by its name or by its role."""
    override = request.override(name)
    role = find_role(name)
    if role == "embedding" and request.embedding and not (override and name != EMBEDDING_NAMES[0]):
        return request.embedding
    if role == "output" and request.output:
        return request.output
    return override


class _FormatChooser:
    """Applies the rules to tensors in their order, and counts the tensors of each role."""

    def __init__(
        self, mix: Mix, shapes: Mapping[str, tuple[int, ...]], traits: ModelTraits, request: FormatRequest
    ) -> None:
        self.mix = mix
        self.shapes = shapes
        self.traits = traits
        self.request = request
        self.is_tied = OUTPUT_NAME not in shapes
        self.num_values = sum(find_role(name) == "values" for name in shapes)
        self.counts: dict[str, int] = {}

    def choose(self, name: str) -> str:
        """Return the preferred format of a tensor, whatever its row width, and count the tensor."""
        mix = self.mix
        role = find_role(name)
        if mix.main in FLOAT_FORMATS or self.request.is_pure:
            return mix.main
        if match_name(name, self.traits.architecture) == "Q8_0":
            return "Q8_0"
        if role == "output" or (role == "embedding" and self.is_tied):
            return self._choose_output(self.shapes[name][-1])
        if mix.name == "MXFP4_MOE":
            return "MXFP4" if self._is_stack(name, role) else "Q8_0"
        position = self._find_position(name, role)
        chosen = mix.main
        for rule in RULES.get(role, ()):
            if mix.name in rule.mixes.split() and rule.condition(position):
                chosen = rule.format_name
                break
        is_raised = role == "values" and self.traits.is_70b and mix.name not in LOW_BIT_MIXES.split()
        return "Q5_K" if is_raised and chosen in ("Q3_K", "Q4_K") else chosen

    def _choose_output(self, width: int) -> str:
        """Return the format of the output matrix."""
        if self.request.output:
            return self.request.output
        main = self.mix.main
        fits = width % BLOCK_VALUES[main] == 0 and self.traits.architecture != "falcon"
        if self.mix.name == "MXFP4_MOE" or main == "Q8_0" or not fits:
            return "Q8_0"
        return "Q5_K" if self.mix.name in (*LOW_BIT_MIXES.split(), "IQ3_XXS") else "Q6_K"

    def _is_stack(self, name: str, role: str) -> bool:
        """Return whether a tensor holds the matrices of several experts."""
        shape = self.shapes[name]
        is_expert = self.traits.architecture != "bailingmoe3" or role in ("up", "gate", "down")
        return len(shape) > 2 and shape[-3] > 1 and is_expert

    def _find_position(self, name: str, role: str) -> TensorPosition:
        count = self.counts.get(role, 0)
        self.counts[role] = count + 1
        layer = count
        layers = self.num_values
        if role in ("down", "gate", "up"):
            layers = self.traits.layers
            # Old files have one tensor per expert: only the names give the layer.
            if self.traits.experts > 1 and (match := _LAYER_NAME.match(name)):
                layer = int(match[1])
        return TensorPosition(self.traits, self.request.has_imatrix, layer, layers, count)
