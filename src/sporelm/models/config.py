"""The configuration of a model: the fields of all architectures, and records that only some have."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.dense_layers import Dense
from sporelm.models.rope_scaling import UNSCALED, RopeScaling

# Far above any model, and small enough that a product of two of them is still a usable size.
MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM = 4096, 4096, 4096
MAX_WIDTH, MAX_VOCAB = 1 << 20, 1 << 24
MAX_CONV_KERNEL = 64  # rows that a causal convolution reads
MAX_MATRICES = 1 << 16  # experts of all layers, each looked up under three names; Kimi K2 has 23,424


@dataclass(frozen=True)
class Scales:
    """Multipliers of MiniCPM, Granite, Gemma, Cohere and others; the defaults change nothing."""

    embedding: float = 1.0  # of embeddings
    residual: float = 1.0  # of the outputs of attention and the feed-forward block, before they are added
    attention: float | None = None  # of attention scores; None: head_dim ** -0.5
    logits: float = 1.0  # logits are divided by it
    output: float = 1.0  # logits are multiplied by it


@dataclass(frozen=True)
class Experts:
    """A mixture of experts (Shazeer et al. 2017), and the layers that have one.

    `ops.route` defines how experts are selected and weighted.
    """

    count: int
    used: int  # experts per token
    ffn: int = 0  # width of an expert; 0: the width of the model's feed-forward blocks
    # The shared expert, which every token passes: as wide as `shared` experts, or `shared_ffn` wide.
    shared: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False  # its output is multiplied by a sigmoid gate
    averaged: bool = False  # the output is the mean of its output and that of the experts
    scores: str = "softmax"
    choice_bias: bool = False  # a learned bias is added to scores when experts are selected
    groups: int = 0  # groups of experts; 0 or 1: no groups
    top_groups: int = 0
    group_score: str = "max"
    renormalize: bool = False  # the weights of the selected experts sum to one
    epsilon: float = 0.0
    scale: float = 1.0  # factor of the weights; 0 stands for 1
    bias: bool = False  # the router and the matrices of experts have biases
    added: bool = False  # one bias is added to the sum of the selected experts
    plain: str = ""  # activation of experts without gates, a kind of `ops.activate`; "": they have gates
    latent: int | None = None  # width of the rows that experts read and return, by two projections that all share
    near: float = 0.0  # of `ops.route`
    clamp: tuple[float, float] | None = None  # alpha and limit of `ops.clamped_swiglu`, in place of SiLU
    # Layers with a dense block in place of experts:
    leading: int = 0  # the first layers
    step: int = 1  # all layers but every `step`-th
    dense: frozenset[int] = frozenset()  # these layers

    @property
    def shared_width(self) -> int:
        """The width of the shared expert; 0 if there is none."""
        return self.shared_ffn or self.shared * self.ffn

    def at(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return layer >= self.leading and (layer + 1) % self.step == 0 and layer not in self.dense


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model. `dtype` names the number format of most of its weights."""

    name: str
    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    rope_theta: float
    context_length: int  # positions, including those gained by RoPE scaling
    rope_scaling: RopeScaling = UNSCALED
    rotary: int = 0  # the number of leading channels of a head that are rotated; 0: no rotary positions
    window: int | None = None  # positions that a layer with a window attends to, including the row's own
    full_layers: frozenset[int] = frozenset()  # layers without the window
    nope_layers: frozenset[int] = frozenset()  # layers whose queries and keys are not rotated
    rope_style: str = "half"  # which channels of a head form pairs, see `ops.rope`
    alibi: float = 0.0  # max_bias of linear biases (ALiBi, Press et al. 2022); 0: none
    local_theta: float = 0.0  # RoPE base of layers with a window, without scaling; 0: the same as in others
    score_cap: float | None = None  # soft caps: attention scores and logits lie between -cap and cap
    logit_cap: float | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False  # of queries, keys and values
    attention_out_bias: bool = False
    mlp_bias: bool = False
    output_bias: bool = False  # the logits have a bias
    qkv_limit: float | None = None  # queries, keys and values are clipped to -limit .. limit
    activation: str = ""  # of the feed-forward block, as in config.json, in architectures with several
    parallel: bool = False  # attention and the feed-forward block read the same rows
    labels: int = 0  # rows of a classification head in place of the output: the file is a reranker
    is_headless: bool = False  # the files have no output head: the model makes embeddings and generates no text
    pooling: str = ""  # how the rows of a text become one vector: "mean", "cls", "last"; "": its files do not say
    dense: tuple[Dense, ...] = ()  # layers that the pooled vector passes
    dtype: str = "F32"
    scales: Scales = Scales()
    experts: Experts | None = None
    # Positions that a config.json gives, before RoPE scaling adds any; 0: none given.
    declared_positions: int = field(default=0, compare=False, repr=False)
    model: str = ""  # the name of its architecture in `models.architectures`; `architecture` is what its files call it

    def window_of(self, layer: int) -> int | None:
        """Return the number of positions that a layer attends to; None for all."""
        return None if layer in self.full_layers else self.window

    @property
    def attention_scale(self) -> float:
        """The factor of attention scores."""
        return self.head_dim**-0.5 if self.scales.attention is None else self.scales.attention


def checked(config: ModelConfig, where: str, key: Callable[[str], str] = str) -> ModelConfig:
    """Return the configuration if its values are consistent; `key` maps an attribute to the file's key.

    Raises ModelFileError or UnsupportedModel, which name the keys.
    """

    def keys(*ours: str) -> str:
        return f" ({', '.join(dict.fromkeys(key(each) or each for each in ours))})"

    if config.heads % config.kv_heads:
        what = f"{config.heads} query heads are not a multiple of {config.kv_heads} key heads"
        raise ModelFileError(f"{where}: {what}{keys('heads', 'kv_heads')}")
    if config.head_dim % 2:
        what = f"head dimension {config.head_dim} is odd; attention needs an even one"
        raise UnsupportedModel(f"{where}: {what}{keys('head_dim', 'heads', 'width')}")
    if config.heads * config.head_dim > MAX_WIDTH or not 1 <= config.vocab <= MAX_VOCAB:
        what = f"{config.heads} heads of {config.head_dim}, vocabulary {config.vocab}: too large"
        raise ModelFileError(f"{where}: {what}{keys('heads', 'head_dim', 'vocab')}")
    experts = config.experts
    if experts is not None and not 1 <= experts.used <= experts.count:
        what = f"a token uses {experts.used} of {experts.count} experts"
        raise ModelFileError(f"{where}: {what}{keys('experts.used', 'experts.count')}")
    if experts is not None and config.layers * experts.count > MAX_MATRICES:
        what = f"{config.layers} layers of {experts.count} experts"
        raise ModelFileError(f"{where}: {what}: too many; at most {MAX_MATRICES} experts in all layers are read")
    groups = keys("experts.groups", "experts.top_groups")
    if experts is not None and experts.groups <= 1 < experts.top_groups:
        what = f"experts are chosen from {experts.top_groups} groups, but there is only one"
        raise ModelFileError(f"{where}: {what}{groups}")
    if experts is not None and experts.groups > 1:
        most = experts.count // experts.groups * experts.top_groups
        if experts.count % experts.groups or not experts.used <= most <= experts.count:
            what = f"{experts.used} experts of {experts.top_groups} of {experts.groups} groups"
            what = f"a token uses {what}, into which {experts.count} experts cannot be cut"
            raise ModelFileError(f"{where}: {what}{groups}")
    return config
