"""Hugging Face models with our kernels in them: logits, tokens, what stays as it is, and the way back."""

import gc
import weakref
from typing import Any

import pytest

from sporelm.errors import OpError, UnsupportedModel

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

from sporelm.adaptors.transformers import SporelmConfig, accelerate  # noqa: E402

SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
MODELS = {
    "Llama": SIZES,
    "Qwen2": SIZES,
    "Mistral": SIZES | {"sliding_window": 8},
    "Mixtral": SIZES | {"num_local_experts": 4},
    "Qwen2Moe": SIZES | MOE,
    "Gemma2": SIZES | {"head_dim": 32},
}
COUNTS = {  # mlp, linear, norm, experts, attention, rope, layer
    "Llama": (2, 9, 5, 0, 1, 1, 2),
    "Qwen2": (2, 9, 5, 0, 1, 1, 2),
    "Mistral": (2, 9, 5, 0, 1, 1, 2),
    "Mixtral": (0, 9, 5, 2, 1, 1, 2),
    "Qwen2Moe": (2, 11, 5, 2, 1, 1, 2),
    "Gemma2": (2, 9, 9, 0, 0, 1, 0),
}


pytestmark = pytest.mark.usefixtures("quiet_transformers")


def build(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(MODELS[name] | changes))
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model


def divergence(expected: Any, found: Any) -> float:
    """Return the mean KL divergence in nat per token."""
    p, q = expected.log_softmax(-1), found.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_models_own_and_undo_brings_them_back(name: str) -> None:
    model = build(name)
    ids = torch.randint(0, 256, (2, 19))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # left padding
    with torch.no_grad():
        alone, padded = model(ids[:1]).logits, model(ids, attention_mask=mask).logits
        tokens = model.generate(ids[:1], max_new_tokens=8, do_sample=False)
        attention = model.config._attn_implementation
        threads = torch.get_num_threads()
        done = accelerate(model, "f32", keep_originals=True)
        kinds = ("mlp", "linear", "norm", "experts", "attention", "rope", "layer")
        assert tuple(done.count(kind) for kind in kinds) == COUNTS[name], str(done)
        assert torch.get_num_threads() == 1
        scale = alone.abs().max()
        assert (model(ids[:1]).logits - alone).abs().max() <= 1e-5 * scale
        seen = mask.bool()
        assert (model(ids, attention_mask=mask).logits - padded)[seen].abs().max() <= 1e-5 * scale
        assert torch.equal(model.generate(ids[:1], max_new_tokens=8, do_sample=False), tokens)
        done.undo()
        quantized = accelerate(model, "q8_0", keep_originals=True)
        # Routing of random weights is close to ties: some tokens go to other experts.
        assert divergence(alone, model(ids[:1]).logits) <= (2e-2 if quantized.count("experts") else 1e-3)
        quantized.undo()
        assert torch.equal(model(ids[:1]).logits, alone)
    assert model.config._attn_implementation == attention
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("how", [{"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 3}, {"num_beams": 3}])
def test_generation_of_every_kind_is_the_models_own(name: str, how: dict[str, Any]) -> None:
    model, ids = build(name), torch.randint(1, 256, (1, 12))
    more: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "disable_compile": True} | how
    with torch.no_grad():
        expected = model.generate(ids, **more)
        done = accelerate(model, "f32")
        assert torch.equal(model.generate(ids, **more), expected)
        done.close()


def test_the_parts_that_stay_are_named_with_the_reason() -> None:
    model = build("Gemma2")
    done = accelerate(model, "f32")
    assert [change.kind for change in done.skipped] == ["attention", "layer", "layer"]
    assert "attn_logit_softcapping" in str(done)
    assert done.skipped[1].reason == "its attention was not replaced"
    done.close()
    narrow = build("Llama", intermediate_size=144, hidden_size=128)
    done = accelerate(narrow, "q8_0")
    reasons = {change.name: change.reason for change in done.skipped}
    assert reasons["model.layers.0.mlp"] == "down_proj: rows of 144 numbers are not whole blocks of 32 (Q8_0)"
    assert "model.layers.0.mlp.down_proj" in reasons
    assert done.count("linear") == 4 * 2 + 2 * 2 + 1  # gate and up are packed one by one
    done.close()


def test_bad_input_is_refused() -> None:
    model = build("Llama")
    with pytest.raises(UnsupportedModel, match="training mode"):
        accelerate(model.train(), "q8_0")
    with pytest.raises(UnsupportedModel, match="not supported yet"):
        accelerate(model.eval(), "q9_9")
    with pytest.raises(OpError, match="read-only"):
        accelerate(model, "iq2_xxs")
    with pytest.raises(UnsupportedModel, match="not a torch module"):
        accelerate("model", "q8_0")
    with pytest.raises(UnsupportedModel, match="no part can be accelerated"):
        accelerate(torch.nn.Sequential(torch.nn.ReLU()).eval(), "q8_0")
    assert model.config._attn_implementation == "sdpa"


def test_two_models_of_one_architecture_share_the_rotary_function() -> None:
    module = transformers.models.llama.modeling_llama
    original = module.apply_rotary_pos_emb
    first, second = (accelerate(build("Llama"), "q8_0", keep_originals=kept) for kept in (True, False))
    first.undo()
    assert module.apply_rotary_pos_emb is not original
    second.close()
    second.close()
    assert module.apply_rotary_pos_emb is original


@pytest.mark.parametrize("name", ["Llama", "Mixtral"])
def test_compile_traces_an_accelerated_model(name: str) -> None:
    model = build(name)
    ids = torch.randint(0, 256, (1, 9))
    with torch.no_grad():
        done = accelerate(model, "q8_0")
        expected = model(ids, use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        found = compiled(ids, use_cache=False).logits  # traced with a mask, which another kernel reads
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        done.close()
    torch._dynamo.reset()


def test_export_traces_an_accelerated_model() -> None:
    model = build("Llama")
    ids = torch.randint(0, 256, (1, 9))
    with torch.no_grad():
        done = accelerate(model, "q8_0")
        expected = model(ids, use_cache=False).logits
        exported = torch.export.export(model, (ids,), {"use_cache": False}, strict=False)
        code = exported.graph_module.code
        for op in ("linear", "gated_mlp", "rms_norm", "rotary", "attention"):
            assert f"torch.ops.sporelm.{op}.default" in code
        found = exported.module()(ids, use_cache=False).logits
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        done.close()


@pytest.mark.parametrize("name", ["Llama", "Qwen2Moe"])
def test_the_models_own_weights_are_freed_unless_they_are_kept(name: str) -> None:
    model, threads = build(name, tie_word_embeddings=False), torch.get_num_threads()
    ids = torch.randint(0, 256, (1, 9))
    kept = ("embed_tokens.weight", "mlp.gate.weight")  # embeddings and routers stay as they are
    weights = [weakref.ref(each) for key, each in model.named_parameters() if each.dim() > 1 and not key.endswith(kept)]
    before = count_bytes(model)
    with torch.no_grad():
        expected = model(ids).logits
        done = accelerate(model, "q4_0")
        gc.collect()
        assert not [each for each in weights if each() is not None]
        assert count_bytes(model) < 0.4 * before
        assert divergence(expected, model(ids).logits) <= 0.5
        tokens = model.generate(ids, max_new_tokens=4, do_sample=False)
        with pytest.raises(OpError, match=r"were freed.*keep_originals=True"):
            done.undo()
        assert done.count("attention") == 1
        done.close()
        assert torch.get_num_threads() == threads
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), tokens)


def count_bytes(model: Any) -> int:
    held = [*model.parameters(), *model.buffers()]
    held += [each for module in model.modules() for each in vars(module).get("_sporelm_packed", ())[2:]]
    return sum(each.numel() * each.element_size() for each in held if each.device.type != "meta")


def test_saving_packed_weights_is_refused(tmp_path: Any) -> None:
    model = build("Llama")
    done = accelerate(model, "q8_0", keep_originals=True)
    with pytest.raises(ValueError, match="quantized with sporelm and is not serializable"):
        model.save_pretrained(tmp_path)
    done.undo()
    model.save_pretrained(tmp_path)
    assert list(tmp_path.glob("*.safetensors"))


def test_from_pretrained_takes_our_formats(tmp_path: Any) -> None:
    model = build("Llama")
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 256, (1, 9))
    with torch.no_grad():
        expected = model(ids).logits
        loaded = transformers.LlamaForCausalLM.from_pretrained(
            tmp_path, quantization_config=SporelmConfig("q8_0", keep_originals=True), dtype=torch.float32
        )
        assert loaded.acceleration.count("mlp") == 2
        assert divergence(expected, loaded(ids).logits) <= 1e-3
        loaded.acceleration.undo()
        assert torch.equal(loaded(ids).logits, expected)
