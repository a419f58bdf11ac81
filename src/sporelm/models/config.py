"""The shape of a model: what every family has, and the parts that some have."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.dense_layers import Dense
from sporelm.models.rope_scaling import UNSCALED, RopeScaling

# Far above any model, and small enough that no product of two of them is a surprise.
MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM = 4096, 4096, 4096
MAX_WIDTH, MAX_VOCAB = 1 << 20, 1 << 24
MAX_CONV_KERNEL = 64  # rows that a causal convolution sees
MAX_MATRICES = 1 << 16  # experts of all layers: each is three names to look for; Kimi K2 has 23,424


@dataclass(frozen=True)
class Scales:
    """Numbers by which some families multiply or divide what others leave alone (MiniCPM, Granite, Gemma, Cohere)."""

    embedding: float = 1.0  # the rows of the embedding
    residual: float = 1.0  # what attention and the feed-forward block add to the rows
    attention: float | None = None  # scores, in place of head_dim ** -0.5
    logits: float = 1.0  # by which they are divided
    output: float = 1.0  # by which they are multiplied


@dataclass(frozen=True)
class Experts:
    """Feed-forward blocks of which each token goes through a few (Shazeer et al. 2017), and which layers have them.

    How experts are chosen, and what their weights are, is that of `ops.route`.
    """

    count: int
    used: int  # by a token
    ffn: int = 0  # width of each; 0: that of the model
    # What every token goes through besides: a block as wide as `shared` experts, or of a width of its own.
    shared: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False  # it counts as much as a sigmoid of its own says
    averaged: bool = False  # it and the experts count by half each
    scores: str = "softmax"
    choice_bias: bool = False  # a learned one is added when experts are chosen
    groups: int = 0  # in which experts stand; 0, as 1: there are none
    top_groups: int = 0
    group_score: str = "max"
    renormalize: bool = False  # the weights of those that were chosen sum to one
    epsilon: float = 0.0
    scale: float = 1.0  # of the weights; 0 stands for 1
    bias: bool = False  # of the router and of each expert's matrices
    added: bool = False  # one bias is added to what the chosen experts make together
    plain: str = ""  # the activation function of blocks without gates, as `ops.activate` has it; "": they have gates
    latent: int | None = None  # numbers of a row that experts read and make, by two matrices that all share
    near: float = 0.0  # of `ops.route`
    clamp: tuple[float, float] | None = None  # alpha and limit of `ops.clamped_swiglu`, in place of SiLU
    # Layers that have a dense block in place of experts:
    leading: int = 0  # the first ones
    step: int = 1  # all but every so many
    dense: frozenset[int] = frozenset()  # these

    @property
    def shared_width(self) -> int:
        """Of the block that every token goes through; 0: there is none."""
        return self.shared_ffn or self.shared * self.ffn

    def at(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer >= self.leading and (layer + 1) % self.step == 0 and layer not in self.dense


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model. `dtype` names the number format of most of its weights."""

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
    context_length: int  # positions, those gained by rope scaling included
    rope_scaling: RopeScaling = UNSCALED
    rotary: int = 0  # numbers of each head that are rotated, its first ones; 0 for models without rotary positions
    window: int | None = None  # positions that a windowed layer sees, the row's own included
    full_layers: frozenset[int] = frozenset()  # layers without the window
    nope_layers: frozenset[int] = frozenset()  # layers whose queries and keys are not rotated
    rope_style: str = "half"  # which numbers of a head make pairs, as `ops.rope` has it
    alibi: float = 0.0  # how many octaves the slopes of linear biases span (Press et al. 2022); 0: there are none
    local_theta: float = 0.0  # rotary base of the layers with a window, unscaled; 0: as the others
    score_cap: float | None = None  # attention's scores and the logits lie between -cap and cap
    logit_cap: float | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False  # of query, key and value
    attention_out_bias: bool = False
    mlp_bias: bool = False
    output_bias: bool = False  # of the scores of tokens
    qkv_limit: float | None = None  # queries, keys and values lie between -limit and limit
    activation: str = ""  # of the feed-forward block, as config.json names it, in families where models differ
    parallel: bool = False  # attention and the feed-forward block read the same rows
    labels: int = 0  # rows of a head that has the place of the output: the file is a reranker
    is_headless: bool = False  # files hold a decoder without its head: it makes vectors, and continues no text
    pooling: str = ""  # how its makers make one vector of a text: "mean", "cls", "last"; "": its files do not say
    dense: tuple[Dense, ...] = ()  # what that vector goes through then
    dtype: str = "F32"
    scales: Scales = Scales()
    experts: Experts | None = None
    # Positions that a config.json gives, before rotary scaling adds any; 0: it gives none.
    declared_positions: int = field(default=0, compare=False, repr=False)
    model: str = ""  # the name of its architecture in `models.architectures`; `architecture` is what its files call it

    def window_of(self, layer: int) -> int | None:
        """How many positions a layer's attention sees; None for all."""
        return None if layer in self.full_layers else self.window

    @property
    def attention_scale(self) -> float:
        """By which attention's scores are multiplied."""
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
