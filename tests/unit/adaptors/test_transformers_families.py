"""Families of Hugging Face models, accelerated without loss: their logits, their tokens, and what stays as it is."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

from sporelm.adaptors.transformers import accelerate  # noqa: E402

SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3": {},
    "Qwen3Moe": EXPERTS,
    "Gemma": {},
    "Gemma3": {"sliding_window": 8},
    "Phi": {},
    "Phi3": {},
    "GPT2": {"n_embd": 128, "n_head": 4, "n_layer": 4, "n_positions": 256},
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 256, "word_embed_proj_dim": 128},
    "Olmo": {},
    "Olmo2": {},
    "Olmoe": EXPERTS,
    "SmolLM3": {"no_rope_layer_interval": 2},
    "Granite": {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "GraniteMoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "StableLm": {},
    "Starcoder2": {"sliding_window": 8},
    "Cohere": {},
    "Cohere2": {"sliding_window": 8},
    "Glm": {},
    "Glm4": {},
    "Helium": {},
    "Nemotron": {},
    "Exaone4": {"sliding_window": 8},
    "Ernie4_5": {},
    "Mistral": {"sliding_window": 8},
    "Ministral": {"sliding_window": 8},
    "DeepseekV3": {
        **EXPERTS,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 32,
        "num_key_value_heads": 4,
        "head_dim": 16,
    },
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "Llama": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "HunYuanDenseV1": {},
    "SeedOss": {},
    "Arcee": {},
    "Lfm2": {},
}


pytestmark = pytest.mark.usefixtures("quiet_transformers")


def build(name: str) -> Any:
    torch.manual_seed(0)
    names = {"Gemma3": "Gemma3Text"}
    kind = getattr(transformers, f"{names.get(name, name)}Config", None)
    heads = [f"{name}ForCausalLM", f"{names.get(name, name)}ForCausalLM", f"{name}LMHeadModel"]
    model_class = next((getattr(transformers, each) for each in heads if hasattr(transformers, each)), None)
    if kind is None or model_class is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model = model_class(kind(**(SIZES | FAMILIES[name])))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model.eval()


@pytest.mark.all
@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_numbers_are_its_own(name: str) -> None:
    model = build(name)
    ids = torch.randint(3, 256, (2, 21))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        single, padded = model(ids[:1]).logits, model(ids, attention_mask=mask).logits
        tokens = model.generate(ids[:1], max_new_tokens=12, do_sample=False)
        done = accelerate(model, "f32")
        print(done)
        assert all(change.reason for change in done.skipped)
        assert (model(ids[:1]).logits - single).abs().max() <= 2e-5 * single.abs().max()
        seen = mask.bool()
        found = model(ids, attention_mask=mask).logits
        assert (found - padded)[seen].abs().max() <= 2e-5 * padded[seen].abs().max()
        assert torch.equal(model.generate(ids[:1], max_new_tokens=12, do_sample=False), tokens)
        done.close()
