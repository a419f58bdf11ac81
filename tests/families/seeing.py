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
