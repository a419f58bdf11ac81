"""The parts that models are composed of, one file each; a block lists its weights and says what memory it keeps."""

from sporelm.models.blocks.alone import Alone
from sporelm.models.blocks.altup import AltUpLayer, Laurel, Spread
from sporelm.models.blocks.apart_attention import ApartAttention
from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.attention_experts import AttentionExperts, expert_head_tables
from sporelm.models.blocks.beside import Beside
from sporelm.models.blocks.channel_mix import ChannelMix, GatedChannelMix
from sporelm.models.blocks.classifier import Classifier
from sporelm.models.blocks.delta_net import DeltaHeads, DeltaNet
from sporelm.models.blocks.embedding import Embedding
from sporelm.models.blocks.gated_heads import HeadGatedAttention
from sporelm.models.blocks.gated_latent import GatedLatentAttention
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.gated_recurrence import GatedRecurrence, LruNumbers
from sporelm.models.blocks.head_space import HeadSpace, RankedHeads
from sporelm.models.blocks.latent_attention import LatentAttention
from sporelm.models.blocks.layer import Layer, ParallelLayer, Part
from sporelm.models.blocks.layer_inputs import FedLayer, LayerInput, LayerInputs, LentLayer
from sporelm.models.blocks.layer_norm import LayerNorm, bare, unbiased
from sporelm.models.blocks.lending import LendingAttention
from sporelm.models.blocks.lightning_attention import LightningAttention
from sporelm.models.blocks.limited_mlp import LimitedMixture, LimitedMLP
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.memory import Memory, Paged, State
from sporelm.models.blocks.mix_layer import MixLayer
from sporelm.models.blocks.mixture import Mixture, feed_forward
from sporelm.models.blocks.mlp import MLP
from sporelm.models.blocks.normed_linear import NormedLinear
from sporelm.models.blocks.normed_stream import NormedStreamLayer
from sporelm.models.blocks.own_head_norms import OwnHeadNorms
from sporelm.models.blocks.post_norm import PostNormLayer, Unchanged
from sporelm.models.blocks.pre_norm import NormKind, pre_norm
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.blocks.selective_space import SelectiveSpace, SpaceChannels
from sporelm.models.blocks.shared_transformer import SharedBlocks, SharedThenSpace, SharedTransformer
from sporelm.models.blocks.short_conv import ShortConv
from sporelm.models.blocks.split_delta_net import SplitDeltaNet
from sporelm.models.blocks.state_space import SpaceHeads, StateSpace
from sporelm.models.blocks.text_attention import TextAttention
from sporelm.models.blocks.text_layer import TextLayer
from sporelm.models.blocks.time_mix6 import FinchNumbers, GroupedTimeMix, TimeMix6
from sporelm.models.blocks.time_mix7 import MixRanks, TimeMix7
from sporelm.models.blocks.weighed_mixture import WeighedMixture

__all__ = [
    "MLP",
    "Alone",
    "AltUpLayer",
    "ApartAttention",
    "Attention",
    "AttentionExperts",
    "Beside",
    "ChannelMix",
    "Classifier",
    "DeltaHeads",
    "DeltaNet",
    "Embedding",
    "FedLayer",
    "FinchNumbers",
    "GatedChannelMix",
    "GatedLatentAttention",
    "GatedMLP",
    "GatedRecurrence",
    "GroupedTimeMix",
    "HeadGatedAttention",
    "HeadSpace",
    "LatentAttention",
    "Laurel",
    "Layer",
    "LayerInput",
    "LayerInputs",
    "LayerNorm",
    "LendingAttention",
    "LentLayer",
    "LightningAttention",
    "LimitedMLP",
    "LimitedMixture",
    "Linear",
    "LruNumbers",
    "Memory",
    "MixLayer",
    "MixRanks",
    "Mixture",
    "NormKind",
    "NormedLinear",
    "NormedStreamLayer",
    "OwnHeadNorms",
    "Paged",
    "ParallelLayer",
    "Part",
    "PostNormLayer",
    "RMSNorm",
    "RankedHeads",
    "SelectiveSpace",
    "SharedBlocks",
    "SharedThenSpace",
    "SharedTransformer",
    "ShortConv",
    "SpaceChannels",
    "SpaceHeads",
    "SplitDeltaNet",
    "Spread",
    "State",
    "StateSpace",
    "TextAttention",
    "TextLayer",
    "TimeMix6",
    "TimeMix7",
    "Unchanged",
    "WeighedMixture",
    "bare",
    "expert_head_tables",
    "feed_forward",
    "pre_norm",
    "unbiased",
]
