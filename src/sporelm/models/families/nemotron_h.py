"""Nemotron-H and Nemotron 3: each layer is a state space, attention, a block of squared ReLU or a mixture of such."""

from dataclasses import dataclass, replace

from sporelm.checkpoints.experts import V3_CHOICE, expert_fields
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.blocks import MLP, Attention, Layer, Mamba2Mixer, Mixture, MLPOnlyMixer, RMSNorm
from sporelm.models.blocks.layer import Mixer
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families import nemotron_h_files as files
from sporelm.models.families.nemotron_h_files import ATTENTION, DENSE, MIXTURE, SPACE
from sporelm.models.families.space_fields import SpaceHeads, finished, space_fields, unsaid
from sporelm.models.registry import architecture


@dataclass(frozen=True)
class SingleLayers(SpaceHeads):
    """Numbers of state spaces, and what each layer is."""

    kinds: tuple[str, ...] = ()


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config, told = finished(config, values, kind), values.values.get("layers_block_type")
    if reason := unsaid(config):
        raise UnsupportedModel(f"{values.where}: {reason}, which is not supported")
    kinds = tuple(told[: config.layers]) if isinstance(told, list) else ()
    if len(kinds) < config.layers or any(each not in (SPACE, ATTENTION, MIXTURE, DENSE) for each in kinds):
        what = f"each of the {config.layers} layers must be {SPACE}, {ATTENTION}, {MIXTURE} or {DENSE}"
        raise UnsupportedModel(f"{values.where}: {what}; they are {shown(told)}")
    if MIXTURE in kinds and config.experts is None:
        raise ModelFileError(f"{values.where}: layer {kinds.index(MIXTURE)} has experts, and there are none of them")
    dense = frozenset(layer for layer, each in enumerate(kinds) if each != MIXTURE)
    experts = replace(config.experts, dense=dense) if config.experts and MIXTURE in kinds else None
    return replace(config, experts=experts, own=replace(config.own, kinds=kinds))


def _unsaid(config: ModelConfig) -> str:
    if config.own.bias:
        return "the products of its state spaces have biases"
    if config.experts and (DENSE in config.own.kinds or config.mlp_bias):
        return "beside experts it has dense layers, or biases"
    return ""


@architecture(
    Family(
        "nemotron_h",
        (HfClass("NemotronHForCausalLM", "nemotron_h", files.NUMBERS, files.FLAGS),),
        fields(
            *space_fields(
                *("conv_kernel", "mamba_num_heads", "n_groups", "ssm_state_size", "mamba_head_dim", ""),
                *("use_bias", "use_conv_bias"),
            ),
            *expert_fields(
                optional=True,
                count="n_routed_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="n_shared_experts",
                shared_ffn="moe_shared_expert_intermediate_size",
                scale="routed_scaling_factor",
                renormalize="norm_topk_prob",
                groups="n_group",
                top_groups="topk_group",
            ),
            Field("experts.latent", "moe_latent_size", "u32", "moe_latent_size", 0, MOST_WIDTH, OPTIONAL),
            Field("mlp_bias", "", "bool", "mlp_bias", weight="layers.{}.ffn_down.bias"),
            Field("eps", files.RMS_EPS, "f32", "layer_norm_epsilon"),
            without=("rotary", "window"),
        ),
        files.NAMES,
        others={HF: files.OTHERS},
        fixed={"rotary": 0, "experts.plain": "relu_squared", **V3_CHOICE},
        only=files.ONLY,
        finish=_finished,
        unsaid=_unsaid,
        said=files.said,
        words=lambda config: {"layers_block_type": list(config.own.kinds)},
        reworded=files.reworded,
        regrouped=files.regrouped,
        ignored=("mtp.*",),
        further_layers=True,
        paired_rows=True,  # though nothing is rotated
        own=SingleLayers,
        mixture="nemotron_h_moe",
    )
)
class NemotronH(Decoder):
    """x + mixer(norm(x)) (NVIDIA 2025).

    No time step is too short, as llama.cpp has it: transformers knows a least one in prompts, but not when it goes on
    token by token.
    """

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, kind = f"layers.{index}", config.own.kinds[index]
        mixer: Mixer
        if kind in (SPACE, ATTENTION):
            mixer = Mamba2Mixer(name, config, config.own) if kind == SPACE else Attention(name, config)
        else:
            mixer = MLPOnlyMixer(Mixture(name, config) if kind == MIXTURE else MLP(name, config, "relu_squared"))
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), mixer)
