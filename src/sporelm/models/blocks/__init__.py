"""The blocks that models are built from, one file each. A block lists its parameters and its memory between steps."""

from sporelm.models.blocks.altup import AltUpLayer, AltUpStreams, Laurel
from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.attention_experts import AttentionExperts, expert_head_tables
from sporelm.models.blocks.block_memory import Memory, Paged, State
from sporelm.models.blocks.channel_mix import ChannelMix, GatedChannelMix
from sporelm.models.blocks.clamped_mlp import ClampedMixture, ClampedMLP
from sporelm.models.blocks.classifier import Classifier
from sporelm.models.blocks.delta_net import DeltaNet, DeltaNetShape
from sporelm.models.blocks.disentangled_self_attention import DisentangledSelfAttention
from sporelm.models.blocks.embedding import Embedding
from sporelm.models.blocks.encoder_layer import EncoderLayer
from sporelm.models.blocks.encoder_self_attention import EncoderSelfAttention
from sporelm.models.blocks.gated_latent_attention import GatedLatentAttention
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.gated_recurrence import GatedRecurrence
from sporelm.models.blocks.head_gated_attention import HeadGatedAttention
from sporelm.models.blocks.latent_attention import LatentAttention
from sporelm.models.blocks.layer import Layer, ParallelLayer, RowBlock
from sporelm.models.blocks.layer_norm import LayerNorm, layer_norm_without_bias, layer_norm_without_weights
from sporelm.models.blocks.lightning_attention import LightningAttention
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.mamba2_mixer import Mamba2Mixer, Mamba2Shape
from sporelm.models.blocks.mamba_mixer import MambaMixer, MambaShape
from sporelm.models.blocks.mixture import Mixture, feed_forward
from sporelm.models.blocks.mlp import MLP
from sporelm.models.blocks.mlp_only_mixer import MLPOnlyMixer
from sporelm.models.blocks.normed_linear import NormedLinear
from sporelm.models.blocks.normed_residual import NormedResidualLayer
from sporelm.models.blocks.parallel_mixers import ParallelMixers
from sporelm.models.blocks.per_head_norm_attention import PerHeadNormAttention
from sporelm.models.blocks.per_layer_inputs import PerLayerInput, PerLayerInputLayer, PerLayerInputs, SharedKVLayer
from sporelm.models.blocks.plamo2_mixer import Plamo2MambaMixer, Plamo2MambaShape
from sporelm.models.blocks.post_norm import IdentityNorm, PostNormLayer
from sporelm.models.blocks.pre_norm import NormKind, pre_norm
from sporelm.models.blocks.pre_weighted_mixture import PreWeightedMixture
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.blocks.rwkv_layer import RwkvLayer
from sporelm.models.blocks.shared_kv_attention import SharedKVAttention
from sporelm.models.blocks.shared_transformer import SharedThenMamba, SharedTransformer
from sporelm.models.blocks.short_conv import ShortConv
from sporelm.models.blocks.split_delta_net import SplitDeltaNet
from sporelm.models.blocks.time_mix6 import GroupedTimeMix, TimeMix6
from sporelm.models.blocks.time_mix7 import TimeMix7, TimeMix7Ranks

__all__ = [
    "MLP",
    "AltUpLayer",
    "AltUpStreams",
    "Attention",
    "AttentionExperts",
    "ChannelMix",
    "ClampedMLP",
    "ClampedMixture",
    "Classifier",
    "DeltaNet",
    "DeltaNetShape",
    "DisentangledSelfAttention",
    "Embedding",
    "EncoderLayer",
    "EncoderSelfAttention",
    "GatedChannelMix",
    "GatedLatentAttention",
    "GatedMLP",
    "GatedRecurrence",
    "GroupedTimeMix",
    "HeadGatedAttention",
    "IdentityNorm",
    "LatentAttention",
    "Laurel",
    "Layer",
    "LayerNorm",
    "LightningAttention",
    "Linear",
    "MLPOnlyMixer",
    "Mamba2Mixer",
    "Mamba2Shape",
    "MambaMixer",
    "MambaShape",
    "Memory",
    "Mixture",
    "NormKind",
    "NormedLinear",
    "NormedResidualLayer",
    "Paged",
    "ParallelLayer",
    "ParallelMixers",
    "PerHeadNormAttention",
    "PerLayerInput",
    "PerLayerInputLayer",
    "PerLayerInputs",
    "Plamo2MambaMixer",
    "Plamo2MambaShape",
    "PostNormLayer",
    "PreWeightedMixture",
    "RMSNorm",
    "RowBlock",
    "RwkvLayer",
    "SharedKVAttention",
    "SharedKVLayer",
    "SharedThenMamba",
    "SharedTransformer",
    "ShortConv",
    "SplitDeltaNet",
    "State",
    "TimeMix6",
    "TimeMix7",
    "TimeMix7Ranks",
    "expert_head_tables",
    "feed_forward",
    "layer_norm_without_bias",
    "layer_norm_without_weights",
    "pre_norm",
]
