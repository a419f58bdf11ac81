"""The mixes of number formats that files are known by, such as Q4_K_M, and the format each tensor gets in one.

The choices are those of llama.cpp's quantizer, so that a name stands for the same formats here as there: some layers'
values and down projections get more bits than the rest, the output matrix gets most, and what gains nothing from
rounding is left alone (`untouched`). Source of all rules and of the numbers of the file types: src/llama-quant.cpp and
`enum llama_ftype` in llama.cpp. Where this file says "layer", it means the number that the rule there goes by.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.quant.untouched import is_untouched, named_weight

BLOCK_VALUES = {known.name: known.values for known in GGML_TYPES.values()}

# What is stored instead where a row is not whole blocks: blocks of 32 values. F16 where they do not fit either.
SMALLER_BLOCKS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
UNROUNDED = ("F32", "F16", "BF16")
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
OUTPUT = "output.weight"
_LAYER = re.compile(r"blk\.(\d+)")


class Mix(NamedTuple):
    """A mix by its name, its number in `general.file_type`, and the format that most matrices get."""

    name: str
    file_type: int
    main: str


# llama.cpp makes all of these; which of them can be made here follows from the formats that can be quantized to.
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
# Other words for mixes.
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}


@dataclass(frozen=True)
class Traits:
    """What the rules ask of a model: its architecture as GGUF names it, and numbers of its metadata."""

    architecture: str
    layers: int
    heads: int  # of the first layer
    kv_heads: int
    experts: int = 0

    @property
    def is_grouped(self) -> bool:
        """Whether four or more query heads share a key head: values are small then, and may cost more bits."""
        return self.kv_heads > 0 and self.heads // self.kv_heads >= 4

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp takes it for a model of 70 billion weights: by its number of layers."""
        if self.architecture in ("llama", "llama-embed"):
            return self.layers == 80 and self.experts != 8 and self.heads != self.kv_heads
        return self.layers == {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(self.architecture, -1)


@dataclass(frozen=True)
class Wishes:
    """What a user asks for besides the mix.

    imatrix    whether there is an importance matrix, which lets some mixes spend less
    pure       the main format for every matrix
    output     the format of the output matrix, and `embedding` that of the embeddings
    override   a tensor's name -> the format it must have, or None
    """

    imatrix: bool = False
    pure: bool = False
    output: str | None = None
    embedding: str | None = None
    override: Callable[[str], str | None] = lambda name: None


class Choice(NamedTuple):
    """The format of a tensor, and the one it would have if its rows were whole blocks of that."""

    format_name: str
    wanted: str


class Place(NamedTuple):
    """Where a tensor stands among those of its role: its layer of so many, and how many came before it."""

    traits: Traits
    imatrix: bool
    layer: int
    layers: int
    before: int


Condition = Callable[[Place], bool]


def always(place: Place) -> bool:
    return True


def grouped(place: Place) -> bool:
    return place.traits.is_grouped


def eight_experts(place: Place) -> bool:
    return place.traits.experts == 8


def is_falcon(place: Place) -> bool:
    return place.traits.architecture == "falcon"


def unweighted(place: Place) -> bool:
    return not place.imatrix


def first_eighth(place: Place) -> bool:
    return place.layer < place.layers // 8


def first_sixteenth(place: Place) -> bool:
    return place.layer < place.layers // 16


def middle(place: Place) -> bool:
    return place.layers // 8 <= place.layer < 7 * place.layers // 8


def eighths(place: Place) -> bool:
    """The first eighth of the layers, the last, and every third between them."""
    eighth = place.layers // 8
    return place.layer < eighth or place.layer >= 7 * place.layers // 8 or (place.layer - eighth) % 3 == 2


def both(*conditions: Condition) -> Condition:
    return lambda place: all(condition(place) for condition in conditions)


def either(*conditions: Condition) -> Condition:
    return lambda place: any(condition(place) for condition in conditions)


def no(condition: Condition) -> Condition:
    return lambda place: not condition(place)


def first(count: int) -> Condition:
    return lambda place: place.layer < count


class Rule(NamedTuple):
    """In these mixes (names with spaces between), where the condition holds, a tensor gets this format."""

    mixes: str
    when: Condition
    format_name: str


LOW = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"  # mixes of less than three bits have rules of their own
OTHERS = " ".join(name for name in MIXES if name not in (*LOW.split(), *UNROUNDED))
WITH_MORE_FOR_EIGHT = "Q2_K IQ3_XS IQ3_XXS Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ3_M IQ4_XS"

# Role -> rules, of which the first that fits decides; the main format without one.
RULES: dict[str, tuple[Rule, ...]] = {
    "embedding": (
        Rule("IQ1_S IQ1_M IQ2_XXS IQ2_XS", always, "Q2_K"),
        Rule("IQ2_S IQ2_M IQ3_XXS", always, "IQ3_S"),
        Rule("TQ1_0 TQ2_0 Q2_0", always, "Q4_K"),
    ),
    "values": (
        Rule(LOW, either(grouped, lambda place: place.traits.experts >= 4), "Q4_K"),
        Rule("IQ2_S IQ2_M", always, "IQ3_S"),
        Rule(LOW, always, "Q2_K"),
        Rule(OTHERS, eight_experts, "Q8_0"),
        Rule("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", grouped, "Q4_K"),
        Rule("Q2_K", always, "Q3_K"),
        Rule("IQ3_XXS", unweighted, "IQ3_S"),
        Rule("IQ3_M", always, "Q4_K"),
        Rule("Q3_K_M", first(2), "Q5_K"),
        Rule("Q3_K_M", always, "Q4_K"),
        Rule("Q3_K_L", always, "Q5_K"),
        Rule("IQ4_NL IQ4_XS", grouped, "Q5_K"),
        Rule("Q4_K_M Q5_K_M", eighths, "Q6_K"),
        Rule("Q4_K_S", first(4), "Q5_K"),
    ),
    "keys": (
        Rule(LOW, eight_experts, "Q4_K"),
        Rule(OTHERS, eight_experts, "Q8_0"),
        Rule("IQ3_XS", always, "IQ3_XXS"),
        Rule("IQ3_XXS", always, "IQ2_S"),
    ),
    "queries": (
        Rule("IQ3_XS", always, "IQ3_XXS"),
        Rule("IQ3_XXS", always, "IQ2_S"),
    ),
    "attention output": (
        Rule(LOW, eight_experts, "Q5_K"),
        Rule("IQ1_S IQ1_M", always, "IQ2_XXS"),
        Rule("IQ2_S IQ2_M", always, "IQ3_S"),
        Rule("Q3_K_L", is_falcon, "Q4_K"),
        Rule(WITH_MORE_FOR_EIGHT, both(eight_experts, no(is_falcon)), "Q5_K"),
        Rule("Q2_K", no(either(is_falcon, eight_experts)), "Q3_K"),
        Rule("IQ3_XXS", no(either(is_falcon, eight_experts)), "IQ3_S"),
        Rule("Q3_K_M IQ3_M", no(either(is_falcon, eight_experts)), "Q4_K"),
        Rule("Q3_K_L", no(either(is_falcon, eight_experts)), "Q5_K"),
    ),
    "down": (
        Rule("IQ2_S IQ2_M", lambda place: place.before < place.layers // 8, "IQ3_S"),
        Rule(LOW, lambda place: place.before < place.layers // 8, "Q2_K"),
        Rule("Q2_K", always, "Q3_K"),
        Rule("Q2_K_S", first_eighth, "Q4_K"),
        Rule("IQ3_XXS", both(unweighted, first_eighth), "Q4_K"),
        Rule("IQ3_XXS", unweighted, "Q3_K"),
        Rule("IQ3_M", either(first_eighth, both(eight_experts, eighths)), "Q4_K"),
        Rule("Q3_K_M", first_sixteenth, "Q5_K"),
        Rule("Q3_K_M", either(no(is_falcon), eighths), "Q4_K"),
        Rule("Q3_K_L", is_falcon, "Q4_K"),
        Rule("Q3_K_L", always, "Q5_K"),
        Rule("Q4_K_M", both(is_falcon, first_sixteenth), "Q6_K"),
        Rule("Q4_K_M", both(is_falcon, eighths), "Q5_K"),
        Rule("Q4_K_M", both(no(is_falcon), eighths), "Q6_K"),
        Rule("Q4_K_S", both(no(is_falcon), first_eighth), "Q5_K"),
        Rule("Q5_K_M", eighths, "Q6_K"),
        Rule("IQ4_NL IQ4_XS", both(unweighted, first_eighth), "Q5_K"),
        # Blocks without a minimum go astray in the first layers even with an importance matrix.
        Rule("Q4_0", both(no(unweighted), first_eighth), "Q4_1"),
        Rule("Q5_0", both(no(unweighted), first_eighth), "Q5_1"),
    ),
    "gate": (Rule("IQ3_XS", middle, "IQ3_XXS"),),
    "up": (Rule("IQ3_XS", middle, "IQ3_XXS"),),
}  # fmt: skip

# Part of a name -> role; the first that is found decides.
PARTS = (
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


def role_of(name: str) -> str:
    """What a tensor is for, as far as rules tell apart: a key of `RULES`, "output", or "" for others."""
    if name == OUTPUT:
        return "output"
    if name in EMBEDDINGS:
        return "embedding"
    return next((role for part, role in PARTS if part in name), "")


def in_order(names: Sequence[str]) -> list[str]:
    """Tensors as the quantizer goes through them: by layer, then by name."""

    def key(name: str) -> tuple[int, bytes]:
        found = _LAYER.match(name)
        return int(found[1]) if found else -1, name.encode("utf-8", "surrogateescape")

    return sorted(names, key=key)


def choose(
    mix: Mix, shapes: Mapping[str, tuple[int, ...]], traits: Traits, wishes: Wishes | None = None
) -> dict[str, Choice]:
    """The format of each tensor that the mix touches, by name; `shapes` are the logical ones of all tensors."""
    asked, chooser = wishes or Wishes(), _Chooser(mix, shapes, traits, wishes or Wishes())
    found = {}
    for name in in_order(list(shapes)):
        if not is_untouched(name, shapes[name], traits.architecture):
            wanted = _wished(name, asked) or chooser.format_name(name)
            found[name] = Choice(fitting(wanted, shapes[name][-1]), wanted)
    return found


def needs_imatrix(mix: Mix, name: str, format_name: str) -> bool:
    """Whether a tensor in this format is of no use without an importance matrix."""
    if role_of(name) in ("embedding", "output"):
        return False
    if format_name == "Q2_K":
        return mix.name == "Q2_K_S"
    return format_name in ("IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S")


def fitting(format_name: str, width: int) -> str:
    """The format itself, or the one that takes its place in rows of `width` values."""
    if width % BLOCK_VALUES[format_name] == 0:
        return format_name
    smaller = SMALLER_BLOCKS.get(format_name, "F16")
    return smaller if width % BLOCK_VALUES[smaller] == 0 else "F16"


def _wished(name: str, wishes: Wishes) -> str | None:
    """The format that a user wants for this tensor, by its name or by its role."""
    named, role = wishes.override(name), role_of(name)
    if role == "embedding" and wishes.embedding and not (named and name != EMBEDDINGS[0]):
        return wishes.embedding
    if role == "output" and wishes.output:
        return wishes.output
    return named


class _Chooser:
    """Goes by the rules, tensor by tensor in their order, counting those of each role."""

    def __init__(self, mix: Mix, shapes: Mapping[str, tuple[int, ...]], traits: Traits, wishes: Wishes) -> None:
        self.mix, self.shapes, self.traits, self.wishes = mix, shapes, traits, wishes
        self.is_tied = OUTPUT not in shapes
        self.values = sum(role_of(name) == "values" for name in shapes)
        self.counts: dict[str, int] = {}

    def format_name(self, name: str) -> str:
        """The format of a tensor before its rows are looked at. Counts it."""
        mix, role = self.mix, role_of(name)
        if mix.main in UNROUNDED or self.wishes.pure:
            return mix.main
        if named_weight(name, self.traits.architecture) == "kept at Q8_0":
            return "Q8_0"
        if role == "output" or (role == "embedding" and self.is_tied):
            return self._output(self.shapes[name][-1])
        if mix.name == "MXFP4_MOE":
            return "MXFP4" if self._is_stack(name, role) else "Q8_0"
        place = self._place(name, role)
        found = mix.main
        for rule in RULES.get(role, ()):
            if mix.name in rule.mixes.split() and rule.when(place):
                found = rule.format_name
                break
        is_lifted = role == "values" and self.traits.is_70b and mix.name not in LOW.split()
        return "Q5_K" if is_lifted and found in ("Q3_K", "Q4_K") else found

    def _output(self, width: int) -> str:
        """The format of the matrix that gives the scores."""
        if self.wishes.output:
            return self.wishes.output
        main = self.mix.main
        whole = width % BLOCK_VALUES[main] == 0 and self.traits.architecture != "falcon"
        if self.mix.name == "MXFP4_MOE" or main == "Q8_0" or not whole:
            return "Q8_0"
        return "Q5_K" if self.mix.name in (*LOW.split(), "IQ3_XXS") else "Q6_K"

    def _is_stack(self, name: str, role: str) -> bool:
        """Whether a tensor holds several experts' matrices."""
        shape = self.shapes[name]
        is_expert = self.traits.architecture != "bailingmoe3" or role in ("up", "gate", "down")
        return len(shape) > 2 and shape[-3] > 1 and is_expert

    def _place(self, name: str, role: str) -> Place:
        count = self.counts.get(role, 0)
        self.counts[role] = count + 1
        layer, layers = count, self.values
        if role in ("down", "gate", "up"):
            layers = self.traits.layers
            # The experts of old files have tensors of their own: only their names tell the layer.
            if self.traits.experts > 1 and (found := _LAYER.match(name)):
                layer = int(found[1])
        return Place(self.traits, self.wishes.imatrix, layer, layers, count)
