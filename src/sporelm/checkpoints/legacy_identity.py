"""The configuration of a model as version 0.1.0 printed it: a frozen text, part of that version's model identity.

Session files and recordings of that version name their model by a hash that begins with `repr(config)`. Our classes
have changed since, so the text is written here from explicit names of records and fields. Never add a name for a new
architecture: no file of version 0.1.0 can belong to it. When a field moves or is renamed, change how it is read
(`_read`), never what is written; a test compares the text of every architecture with that version's output.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass
from operator import attrgetter
from typing import Any

from sporelm.models.config import ModelConfig

NO_LAYERS = "-"

# Each record by its old name, and its fields in the order in which they were printed.
_RECORDS = """
ModelConfig: name architecture layers width heads kv_heads head_dim ffn vocab eps rope_theta context_length
    rope_scaling rotary window full_layers nope_layers rope_style alibi local_theta score_cap logit_cap
    tie_embeddings attention_bias attention_out_bias mlp_bias output_bias qkv_limit activation parallel labels alone
    pooling dense dtype scales experts own
RopeScaling: attention divisors
Scales: embedding residual attention logits output
Experts: count used ffn shared shared_ffn shared_gate averaged scores choice_bias groups top_groups group_score
    renormalize epsilon scale bias added plain latent near clamp leading step dense
LatentShape: rank rotary value q_rank log_multiplier
AxShape: rank rotary value q_rank log_multiplier index_heads index_dim chosen sharing norm_rank
BaichuanParts: unit_head
BailingParts: unit_head
LingShape: rank rotary value q_rank log_multiplier taps delta_heads delta_dim attention least limits shared_limits
CohereParts: head_norms
Cohere2MoeParts: rms_eps
LayerShapes: heads kv_heads ffn
SparseShape: rank rotary value q_rank log_multiplier index_heads index_dim chosen sharing
FalconParts: two_norms
FalconHeads: taps heads groups size inner head_dim expand bias taps_bias low high attention normed norm_first
    attention_in attention_out key space_in space_out gate down parts
Gemma4Parts: local_dim inputs borrowing local_heads tied wide
Gemma3nParts: inputs streams borrowing rank vocab thinned
Glm4MoeParts: head_norms
SpaceHeads: taps heads groups size inner head_dim expand bias taps_bias low high attention
ClovaParts: behind
SpaceChannels: taps size rank inner expand bias taps_bias norms eps attention
KimiShape: rank rotary value q_rank log_multiplier taps delta_heads delta_dim attention
LagunaParts: local_heads local_rotary each
ConvLayers: taps attention
Lfm3Parts: taps attention gated behind
Llama4Parts: normed floor growth
LongcatShape: rank rotary value q_rank log_multiplier idle
Mimo2Parts: value value_scale
LightningLayers: full linear mlp interval attention
Tempered: beta
TemperedLatent: rank rotary value q_rank log_multiplier beta
Head: biased
Loops: count unnormed
SingleLayers: taps heads groups size inner head_dim expand bias taps_bias low high attention kinds
OlmoDelta: taps key_heads heads key_dim value_dim inner interval attention order turns
OptParts: embedded before unnormed learned
Normed: heads
RankedHeads: taps heads groups size inner head_dim expand bias taps_bias low high attention rank
Seeing: sections deepstack
DeltaHeads: taps key_heads heads key_dim value_dim inner interval attention order
LruNumbers: taps width attention
FinchNumbers: mix decay eps halved
MixRanks: decay rate share gate eps
StableLMParts: head_norms second_norm
Step35Parts: local_heads local_rotary limits shared_limits
SharedBlocks: taps heads groups size inner head_dim expand bias taps_bias low high attention blocks rank adapts
Linear: attention divisors factor original
DynamicNtk: attention divisors factor original
Yarn: attention divisors factor original beta_fast beta_slow extrapolation truncate
Llama3: attention divisors factor original low high
LongRope: attention divisors short long original
Dense: name width out bias activation unit place
"""
# Today's names of renamed records -> their old names.
_RENAMED = {
    "LinearScaling": "Linear",
    "DynamicNtkScaling": "DynamicNtk",
    "YarnScaling": "Yarn",
    "Llama3Scaling": "Llama3",
    "LongRopeScaling": "LongRope",
}
# Old names of renamed fields -> today's names.
_RENAMED_FIELDS = {"alone": "is_headless", "place": "folder"}
# Configurations of architectures that had a separate record in the field `own`: today's class, the old record, and
# today's names of its fields. "@mamba": fields that are not listed are those of the configuration's record `mamba`.
# "-": an empty set of layers, in place of a field.
_MAMBA = (
    "@mamba taps=mamba.conv_kernel size=mamba.state_size rank=mamba.time_step_rank inner=mamba.inner_size"
    " bias=mamba.has_bias taps_bias=mamba.has_conv_bias eps=mamba.norm_eps"
)
_MAMBA2 = (
    "@mamba taps=mamba.conv_kernel heads=mamba.num_heads groups=mamba.num_groups size=mamba.state_size"
    " inner=mamba.inner_size bias=mamba.has_bias taps_bias=mamba.has_conv_bias low=mamba.min_time_step"
    " high=mamba.max_time_step"
)
_LATENT = (
    "rank=latent.kv_lora_rank rotary=latent.qk_rope_head_dim value=latent.v_head_dim q_rank=latent.q_lora_rank"
    " log_multiplier=latent.yarn_log_multiplier"
)
_INDEXER = "index_heads=indexer.num_heads index_dim=indexer.head_dim chosen=indexer.topk sharing=indexer.shared_layers"
_KDA = (
    "taps=delta_net.conv_kernel delta_heads=delta_net.num_value_heads delta_dim=delta_net.key_head_dim"
    " attention=attention_layers"
)
_DELTA = (
    "taps=delta_net.conv_kernel key_heads=delta_net.num_key_heads heads=delta_net.num_value_heads"
    " key_dim=delta_net.key_head_dim value_dim=delta_net.value_head_dim inner=delta_net.inner_size"
    " interval=full_attention_interval attention=attention_layers order=delta_net.head_order"
)
_TYPED = f"""
AXK2Config: AxShape {_LATENT} {_INDEXER} norm_rank=gated_norm_rank
BaichuanConfig: BaichuanParts unit_head=has_normalized_head
BailingMoe3Config: LingShape {_LATENT} {_KDA} least=kda_lower_bound limits=swiglu_limits
    shared_limits=shared_swiglu_limits
BailingMoeConfig: BailingParts unit_head=has_normalized_head
Cohere2MoeConfig: Cohere2MoeParts rms_eps=rms_eps
CohereConfig: CohereParts head_norms=has_head_norms
FalconConfig: FalconParts two_norms=has_two_norms
FalconH1Config: FalconHeads {_MAMBA2} attention=- normed=has_mixer_norm
    norm_first=is_norm_before_gate attention_in=attention_in_multiplier attention_out=attention_out_multiplier
    key=key_multiplier space_in=ssm_in_multiplier space_out=ssm_out_multiplier gate=mlp_gate_multiplier
    down=mlp_down_multiplier parts=ssm_multipliers
Gemma3nConfig: Gemma3nParts inputs=per_layer_input_size streams=altup_num_inputs borrowing=num_kv_shared_layers
    rank=laurel_rank vocab=per_layer_vocab thinned=activation_thresholds
Gemma4Config: Gemma4Parts local_dim=local_head_dim inputs=per_layer_input_size borrowing=num_kv_shared_layers
    local_heads=local_kv_heads tied=has_tied_values wide=has_double_wide_mlp
Glm4MoeConfig: Glm4MoeParts head_norms=has_head_norms
GraniteHybridConfig: SpaceHeads {_MAMBA2} attention=attention_layers
HyperClovaXConfig: ClovaParts behind=has_post_norms
JambaConfig: SpaceChannels {_MAMBA} attention=attention_layers
KimiLinearConfig: KimiShape {_LATENT} {_KDA}
LagunaConfig: LagunaParts each=has_elementwise_gates
LatentConfig: LatentShape {_LATENT}
LayerShapesConfig: LayerShapes heads=layer_heads kv_heads=layer_kv_heads ffn=layer_ffn
Lfm2Config: ConvLayers taps=conv_kernel attention=attention_layers
Lfm3Config: Lfm3Parts taps=conv_kernel attention=attention_layers gated=has_attention_gate behind=has_post_norms
Llama4Config: Llama4Parts normed=has_qk_norm floor=temperature_floor growth=temperature_scale
LongcatFlashConfig: LongcatShape {_LATENT} idle=num_zero_experts
Mamba2Config: SpaceHeads {_MAMBA2} attention=-
MambaConfig: SpaceChannels {_MAMBA} attention=-
Mimo2Config: Mimo2Parts value=value_head_dim
MiniMax01Config: LightningLayers full=attention_residual_scale linear=lightning_residual_scale mlp=mlp_residual_scale
    interval=full_attention_interval attention=attention_layers
Mistral3Config: Tempered beta=temperature_scale
Mistral4Config: TemperedLatent {_LATENT} beta=temperature_scale
ModernBertDecoderConfig: Head biased=has_decoder_bias
NanbeigeConfig: Loops count=num_loops unnormed=skips_loop_norm
NemotronHConfig: SingleLayers {_MAMBA2} attention=- kinds=layer_types
OlmoHybridConfig: OlmoDelta {_DELTA} turns=has_negative_eigenvalues
OptConfig: OptParts embedded=embedding_width before=is_pre_norm unnormed=skips_last_norm learned=has_norm_weights
PersimmonConfig: Normed heads=has_head_norms
Plamo2Config: RankedHeads {_MAMBA2} attention=attention_layers rank=mamba.time_step_rank
Qwen2VLConfig: Seeing sections=mrope_section deepstack=deepstack_layers
Qwen3NextConfig: DeltaHeads {_DELTA}
RecurrentGemmaConfig: LruNumbers taps=conv_kernel width=lru_width attention=attention_layers
Rwkv6Config: FinchNumbers mix=token_shift_lora_rank decay=decay_lora_rank eps=group_norm_eps halved=rescale_every
Rwkv7Config: MixRanks decay=lora_ranks.decay rate=lora_ranks.iclr share=lora_ranks.value_residual gate=lora_ranks.gate
    eps=group_norm_eps
SparseConfig: SparseShape {_LATENT} {_INDEXER}
StableLMConfig: StableLMParts head_norms=has_head_norms second_norm=has_ffn_norm
Step35Config: Step35Parts limits=swiglu_limits shared_limits=shared_swiglu_limits
Zamba2Config: SharedBlocks {_MAMBA2} attention=hybrid_layers blocks=num_mem_blocks
    rank=adapter_rank adapts=has_attention_adapters
"""
_FIELDS: Mapping[str, list[str]] = {
    name: fields.split()
    for name, fields in (line.split(":") for line in _RECORDS.strip().replace("\n    ", " ").split("\n"))
}
_RECORD_OF: dict[str, tuple[str, dict[str, str]]] = {
    name: (fields.split()[0], dict(word.split("=") for word in fields.replace("@", "@=").split()[1:]))
    for name, fields in (line.split(":") for line in _TYPED.strip().replace("\n    ", " ").split("\n"))
}


def legacy_config_text(config: ModelConfig) -> str:
    """Return `repr(config)` of version 0.1.0."""
    return _format(config)


def _format(value: Any) -> str:
    record = _RENAMED.get(type(value).__name__, type(value).__name__)
    if record in _RECORD_OF:
        old_name, names = _RECORD_OF[record]
        part = f"{names['@']}." if "@" in names else ""
        sources = {field: names.get(field, part + field) for field in _FIELDS[old_name]}
        fields = {
            field: frozenset() if source == NO_LAYERS else attrgetter(source)(value)
            for field, source in sources.items()
        }
        texts = [f"{field}={_format(_read(value, field))}" for field in _FIELDS["ModelConfig"] if field != "own"]
        texts.append(f"own={old_name}({', '.join(f'{field}={_format(each)}' for field, each in fields.items())})")
        return f"ModelConfig({', '.join(texts)})"
    if record in _FIELDS:
        return f"{record}({', '.join(f'{field}={_format(_read(value, field))}' for field in _FIELDS[record])})"
    if is_dataclass(value):
        return f"{record}()"  # an architecture that version did not have, or an encoder without sessions
    if type(value) is tuple:
        return f"({', '.join(map(_format, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _read(record: Any, field: str) -> Any:
    """Return the value of a field by its name in version 0.1.0."""
    return None if field == "own" else getattr(record, _RENAMED_FIELDS.get(field, field))
