"""Text models of families that see, whose three rotary positions are one in a text."""

from typing import Any

from families.case import ODD, TIED, WIDE, Case, named

# The tower that sees has no weights here; transformers makes one as small as this.
TOWER = {"depth": 1, "num_heads": 2, "hidden_size": 16, "intermediate_size": 16}
QWEN2 = named("Qwen2VLForConditionalGeneration", "qwen2_vl")
QWEN2 |= {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
QWEN2 |= {"vision_config": {"depth": 1, "num_heads": 2, "embed_dim": 16, "hidden_size": 48}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
TURNS = {"rope_type": "default", "rope_theta": 1e4, "mrope_interleaved": True}


def seeing(name: str, model_type: str, sections: list[int], *layers: int, **text: Any) -> dict[str, Any]:
    """A config.json with the text model's part in it; `layers` of the tower give more than their rows."""
    inner = named(name, f"{model_type}_text", rope_parameters=TURNS | {"mrope_section": sections}) | text
    outer = {key: inner.pop(key) for key in ("architectures", "tie_word_embeddings")} | {"model_type": model_type}
    tower = TOWER | {"out_hidden_size": inner["hidden_size"], "num_position_embeddings": 16}
    return {**outer, "text_config": inner, "vision_config": tower | {"deepstack_visual_indexes": list(layers)}}


QWEN25: dict[str, Any] = named("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl") | ODD | TIED
QWEN25 |= {"rope_parameters": YARN | {"mrope_section": [1, 2, 2]}, "vision_config": TOWER | {"out_hidden_size": 70}}
QWEN3 = ("Qwen3VLForConditionalGeneration", "qwen3_vl")
MIXTURE = ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe")
EXPERTS: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
WIDE_TURNS = {"head_dim": 64, "rope_parameters": TURNS | {"mrope_section": [12, 10, 10]}}

CASES = (
    Case("qwen2vl", QWEN2, WIDE | {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}),
    Case("qwen25vl-odd-tied", QWEN25, None),
    Case("qwen3vl", seeing(*QWEN3, [4, 2, 2], 0, head_dim=16), WIDE | WIDE_TURNS),
    Case("qwen3vl-odd-tied-biases", seeing(*QWEN3, [2, 2, 1], **ODD, **TIED, attention_bias=True, head_dim=10), None),
    Case("qwen3vlmoe", seeing(*MIXTURE, [2, 1, 1], 0, **EXPERTS), WIDE | WIDE_TURNS | {"moe_intermediate_size": 256}),
    Case(
        "qwen3vlmoe-odd-tied",
        seeing(*MIXTURE, [3, 2, 1], **ODD, **TIED, head_dim=12, **EXPERTS | {"num_experts_per_tok": 3}),
        None,
    ),
)

# Models around a text model of a family that there is: their text is compared, their other tests are the family's.
CLIP = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
CLIP |= {"patch_size": 14}
EARS = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
WHISPER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VOXTRAL_EARS = WHISPER | {"model_type": "voxtral_encoder"}
UNSCALED = {"logit_scale": 1.0}  # transformers leaves it aside in Aya Vision, as it does not in Aya
NO_IDS = {"pad_token_id": None}


def whole(name: str, model_type: str, text: dict[str, Any], tied: bool = False, **more: Any) -> dict[str, Any]:
    """A config.json of a class around a text model."""
    text = {key: value for key, value in text.items() if key not in ("architectures", "tie_word_embeddings")}
    outer = {"architectures": [f"{name}ForConditionalGeneration"], "model_type": model_type}
    return {**outer, "tie_word_embeddings": tied, "text_config": text, **more}


def text(model_type: str, **values: Any) -> dict[str, Any]:
    return named("", model_type, **values)


SIGHT: dict[str, Any] = {"vision_config": {**CLIP, "model_type": "clip_vision_model"}, "image_token_index": 130}
SIGLIP: dict[str, Any] = {"vision_config": {**CLIP, "model_type": "siglip_vision_model"}, "image_token_index": 130}
GLM_TURNS = {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}}
GLM_TOWER = {"depth": 1, "num_heads": 2, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 48}
GLM_TOWER46 = GLM_TOWER | {"model_type": "glm4v_vision"}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"n_group": 1, "topk_group": 1, "num_key_value_heads": 6, "first_k_dense_replace": 1, "head_dim": 8}
ROUTED = {"n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
SMALL_LFM = {"block_multiple_of": 1, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False, "norm_eps": 1e-5}

WHOLE = (
    Case("llava", whole("Llava", "llava", text("llama"), **SIGHT), None),
    Case("llava-next-mistral", whole("LlavaNext", "llava_next", text("mistral", sliding_window=9), **SIGHT), None),
    Case("llava-onevision", whole("LlavaOnevision", "llava_onevision", text("qwen2"), tied=True, **SIGLIP), None),
    Case(
        "internvl-qwen3",
        whole("InternVL", "internvl", text("qwen3", head_dim=16), vision_config=CLIP | {"image_size": [28, 28]}),
        None,
    ),
    Case("idefics3", whole("Idefics3", "idefics3", text("llama"), vision_config=CLIP), None),
    Case("smolvlm-tied", whole("SmolVLM", "smolvlm", text("llama", **NO_IDS), tied=True, vision_config=CLIP), None),
    Case(
        "aya-vision",
        whole(
            "AyaVision",
            "aya_vision",
            text("cohere2", head_dim=8, sliding_window=9, **UNSCALED, **NO_IDS),
            tied=True,
            **SIGLIP,
        ),
        None,
    ),
    Case(
        "lfm2-vl",
        whole(
            "Lfm2Vl",
            "lfm2_vl",
            text("lfm2", **SMALL_LFM, layer_types=["conv", "full_attention"], **NO_IDS),
            tied=True,
            vision_config=CLIP | {"model_type": "siglip2_vision_model"},
        ),
        None,
    ),
    Case(
        "lfm3-vl",
        whole(
            "Lfm3Vl",
            "lfm3_vl",
            text("lfm3", layer_types=["conv", "full_attention"], norm_eps=1e-5, head_dim=8, **NO_IDS),
            tied=True,
            vision_config=CLIP,
            projector_hidden_size=16,
        ),
        None,
    ),
    Case(
        "hyperclovax-vision",
        whole(
            "HyperCLOVAXVisionV2",
            "hyperclovax_vision_v2",
            text("hyperclovax", head_dim=8, logits_scaling=0.7, residual_multiplier=0.8),
            vision_config=GLM_TOWER | {"model_type": "qwen2_5_vl_vision"},
        ),
        None,
    ),
    Case(
        "glm4v",
        whole("Glm4v", "glm4v", text("glm4v_text", **GLM_TURNS, **NO_IDS), vision_config=GLM_TOWER),
        None,
    ),
    Case(
        "glm4v-moe",
        whole(
            "Glm4vMoe",
            "glm4v_moe",
            text("glm4v_moe_text", **GLM_TURNS, **ROUTED, **NO_IDS),
            vision_config=GLM_TOWER,
        ),
        None,
    ),
    Case(
        "qwen2-audio",
        whole("Qwen2Audio", "qwen2_audio", text("qwen2"), audio_config=EARS | {"model_type": "qwen2_audio_encoder"}),
        None,
    ),
    Case(
        "voxtral",
        whole("Voxtral", "voxtral", text("llama", head_dim=8), audio_config=VOXTRAL_EARS),
        None,
    ),
    Case("vip-llava", whole("VipLlava", "vipllava", text("llama"), vision_feature_layer=[-1], **SIGHT), None),
    Case("video-llava", whole("VideoLlava", "video_llava", text("llama"), **SIGHT), None),
    Case("llava-next-video", whole("LlavaNextVideo", "llava_next_video", text("llama"), **SIGHT), None),
    Case(
        "cohere2-vision",
        whole(
            "Cohere2Vision",
            "cohere2_vision",
            text("cohere2", head_dim=8, sliding_window=9, **UNSCALED, **NO_IDS),
            tied=True,
            vision_config={**CLIP, "model_type": "siglip_vision_model"},
            alignment_intermediate_size=16,
        ),
        None,
    ),
    Case(
        "deepseek-vl",
        whole(
            "DeepseekVL",
            "deepseek_vl",
            text("llama"),
            tied=True,
            vision_config={**CLIP, "model_type": "siglip_vision_model"},
        ),
        None,
    ),
    Case(
        "exaone4.5",
        whole(
            "Exaone4_5_",
            "exaone4_5",
            text("exaone4", sliding_window=None, sliding_window_pattern=None, layer_types=["full_attention"] * 2),
            vision_config=GLM_TOWER | {"num_key_value_heads": 2, "fullatt_block_indexes": [0]},
        ),
        None,
    ),
    Case(
        "glm46v", whole("Glm46V", "glm46v", text("glm4v_text", **GLM_TURNS, **NO_IDS), vision_config=GLM_TOWER46), None
    ),
    Case(
        "got-ocr2",
        whole(
            "GotOcr2",
            "got_ocr2",
            text("qwen2"),
            tied=True,
            vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 16}
            | {"image_size": 64, "output_channels": 16, "global_attn_indexes": [0]},
        ),
        None,
    ),
    Case(
        "idefics2",
        whole(
            "Idefics2",
            "idefics2",
            text("mistral", sliding_window=9, **NO_IDS),
            vision_config=CLIP,
            perceiver_config={"hidden_size": 48, "resampler_n_latents": 2, "resampler_depth": 1}
            | {"resampler_n_heads": 4, "resampler_head_dim": 8},
        ),
        None,
    ),
    Case(
        "lighton-ocr",
        whole(
            "LightOnOcr",
            "lighton_ocr",
            text("qwen3", head_dim=16),
            tied=True,
            vision_config={**CLIP, "model_type": "pixtral", "head_dim": 8},
        ),
        None,
    ),
    Case(
        "ovis2",
        whole("Ovis2", "ovis2", text("qwen2"), tied=True, vision_config=CLIP | {"vocab_size": 32}, hidden_size=48),
        None,
    ),
    Case(
        "qwen3-asr",
        whole(
            "Qwen3ASR",
            "qwen3_asr",
            text("qwen3", head_dim=16),
            tied=True,
            audio_config=EARS | {"output_dim": 48, "downsample_hidden_size": 16, "model_type": "qwen3_asr_encoder"},
        ),
        None,
    ),
    Case(
        "video-llama-3",
        whole(
            "VideoLlama3",
            "video_llama_3",
            text("qwen2"),
            vision_config={key: CLIP[key] for key in WHISPER},
        ),
        None,
    ),
    Case(
        "audio-flamingo-3",
        whole(
            "AudioFlamingo3",
            "audioflamingo3",
            text("qwen2"),
            audio_config=WHISPER | {"model_type": "audioflamingo3_encoder"},
        ),
        None,
    ),
    Case(
        "kimi-k2.5",
        whole(
            "Kimi_K25",
            "kimi_k25",
            text("deepseek_v3", **LATENT, **ROUTED),
            tied=True,
            vision_config={key: CLIP[key] for key in WHISPER} | {"pos_emb_height": 2, "pos_emb_width": 2},
            projection_hidden_size=16,
        ),
        None,
    ),
)
