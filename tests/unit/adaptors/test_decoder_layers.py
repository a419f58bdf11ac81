"""Decoder layers as one program each: numbers, caches, and the cases that go part by part."""

import copy
from inspect import signature
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

from sporelm.adaptors.torch import PackedLinear  # noqa: E402
from sporelm.adaptors.torch.decoder_layer import KeyValuePages  # noqa: E402
from sporelm.adaptors.transformers import accelerate, decoder_layers  # noqa: E402
from sporelm.adaptors.transformers.paged_cache_layer import PagedLayer  # noqa: E402

CACHE = "cache" if "cache" in signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"
SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
MODELS = {
    "Llama": SIZES,
    "Qwen2": SIZES,
    "Qwen3": SIZES,
    "Gemma": SIZES,
    "Mixtral": SIZES | {"num_local_experts": 4},
}


def build(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**(MODELS[name] | changes))
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.08)
    return model.eval()


def step(model: Any, ids: Any, cache: Any = None, **more: Any) -> tuple[Any, Any]:
    """Return the logits and the cache after some rows."""
    out = model(ids, use_cache=True, **({} if cache is None else {CACHE: cache}), **more)
    return out.logits, out[CACHE]


def is_near(found: Any, expected: Any, bound: float = 1e-5) -> bool:
    return bool((found - expected).abs().max() <= bound * expected.abs().max())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the rows of each layer that runs as one program."""
    rows: list[int] = []
    run = decoder_layers.LayerProgram.run

    def counting(self: Any, x: Any, *args: Any) -> Any:
        found = run(self, x, *args)
        if found is not None:
            rows.append(x.shape[1])
        return found

    monkeypatch.setattr(decoder_layers.LayerProgram, "run", counting)
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_in_steps_is_that_of_the_model(name: str, counted: list[int]) -> None:
    model, ids = build(name), torch.randint(1, 256, (1, 600))
    parts = (ids[:, :530], ids[:, 530:531], ids[:, 531:534], ids[:, 534:])  # more rows than a run, pages that grow
    with torch.no_grad():
        expected = model(ids).logits
        done = accelerate(model, "f32")
        assert done.count("layer") == 2, str(done)
        counted.clear()
        cache, found = None, []
        for part in parts:
            logits, cache = step(model, part, cache)
            found.append(logits)
        assert is_near(torch.cat(found, dim=1), expected)
        assert counted.count(530) == 2
        assert all(type(layer) is PagedLayer for layer in cache.layers)
        counted.clear()
        assert is_near(model(ids, use_cache=False).logits, expected)
        assert counted == [600, 600]
    done.close()


def test_caches_can_be_cropped_reordered_and_copied(counted: list[int]) -> None:
    model, ids = build("Llama"), torch.randint(1, 256, (1, 90))
    with torch.no_grad():
        expected, plain = step(model, ids)
        done = accelerate(model, "f32")
        _, cache = step(model, ids)
        for ours, theirs in zip(cache.layers, plain.layers, strict=True):
            assert ours.get_seq_length() == 90
            assert is_near(ours.keys, theirs.keys)
            assert is_near(ours.values, theirs.values)
        cache.crop(-20)
        counted.clear()
        other = copy.deepcopy(cache)
        assert is_near(step(model, ids[:, 70:], cache)[0], expected[:, 70:])
        assert counted.count(20) == 2
        assert other.get_seq_length() == 70
        other.batch_repeat_interleave(2)
        counted.clear()
        twice = step(model, ids[:, 70:].expand(2, -1), other)[0]
        assert is_near(twice, expected[:, 70:].expand(2, -1, -1))
        assert counted == []
        cache.reset()
        assert is_near(step(model, ids, cache)[0], expected)
    done.close()


def test_steps_with_masks_go_on_from_pages(counted: list[int]) -> None:
    model, ids = build("Llama"), torch.randint(1, 256, (1, 30))
    mask = torch.ones_like(ids)
    mask[0, 3:6] = 0
    with torch.no_grad():
        _, plain = step(model, ids[:, :20])
        expected, _ = step(model, ids[:, 20:], plain, attention_mask=mask)
        done = accelerate(model, "f32")
        _, cache = step(model, ids[:, :20])
        counted.clear()
        found, cache = step(model, ids[:, 20:], cache, attention_mask=mask)
        assert counted == []
        assert is_near(found, expected)
        assert cache.get_seq_length() == 30
    done.close()


def test_hooks_and_replaced_parts_are_heeded(counted: list[int]) -> None:
    model, ids = build("Llama"), torch.randint(1, 256, (1, 9))
    with torch.no_grad():
        done = accelerate(model, "f32")
        expected = model(ids).logits
        states = model(ids, output_hidden_states=True).hidden_states
        assert len(states) == 3
        counted.clear()
        assert torch.equal(model(ids).logits, expected)
        assert counted == [9, 9]  # transformers' own hooks on attention do not count
        seen: list[Any] = []
        hook = model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda *given: seen.append(given))
        counted.clear()
        assert is_near(model(ids).logits, expected)
        assert (len(seen), counted) == (1, [9])
        hook.remove()
        model.model.layers[1].self_attn.v_proj = PackedLinear(torch.zeros(64, 128), None, "f32")
        assert not is_near(model(ids).logits, expected, 1e-2)
    done.close()


def test_attention_in_both_directions_goes_part_by_part(counted: list[int]) -> None:
    model, ids = build("Llama"), torch.randint(1, 256, (1, 9))
    with torch.no_grad():
        expected = model(ids, use_cache=False, is_causal=False).logits
        assert not is_near(model(ids, use_cache=False).logits, expected, 1e-2)
        done = accelerate(model, "f32")
        counted.clear()
        assert is_near(model(ids, use_cache=False, is_causal=False).logits, expected)
        for layer in model.model.layers:
            layer.self_attn.is_causal = False
        assert is_near(model(ids, use_cache=False).logits, expected)
        assert counted == []
    done.close()


def test_a_copy_of_a_model_has_weights_of_its_own() -> None:
    model, ids = build("Llama"), torch.randint(1, 256, (1, 9))
    with torch.no_grad():
        done = accelerate(model, "f32")
        expected = model(ids).logits
        other = copy.deepcopy(model)
        for layer in model.model.layers:
            for name in ("gate_proj", "up_proj", "down_proj"):
                getattr(layer.mlp, name).zero_()
        assert torch.equal(other(ids).logits, expected)
        assert not is_near(model(ids).logits, expected, 1e-2)
    done.close()


def test_sixteen_bit_models_keep_their_type() -> None:
    model, ids = build("Llama"), torch.randint(1, 256, (1, 70))
    with torch.no_grad():
        expected = model(ids).logits
        model = model.to(torch.bfloat16)
        done = accelerate(model, "f32")
        found, cache = step(model, ids)
        assert found.dtype is cache.layers[0].keys.dtype is torch.bfloat16
        assert is_near(found.float(), expected, 3e-2)
    done.close()


def test_layers_that_compute_something_else_are_named() -> None:
    model = build("Llama")
    layer = model.model.layers[1]
    layer.post_attention_layernorm.forward = lambda x: -x  # of another model, under the same name
    done = accelerate(model, "f32", keep_originals=True)
    assert {each.name: each.kind for each in done.skipped} == {
        "model.layers.1.post_attention_layernorm": "norm",
        "model.layers.1": "layer",
    }
    done.undo()
    assert "forward" not in vars(model.model.layers[0])


def test_pages_hold_what_is_written() -> None:
    keys, values = torch.randn(1, 2, 130, 40), torch.randn(1, 2, 130, 40)
    pages = KeyValuePages(2, 40)
    pages.write(keys, values)
    assert all(map(torch.equal, pages.read(), (keys, values)))
    memory = len(pages.memory)
    pages.reserve(257)
    assert len(pages.memory) > memory
    assert all(map(torch.equal, pages.read(), (keys, values)))
