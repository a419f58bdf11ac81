"""Decoder layers as one program each: eager steps of one sequence without a mask, which are most steps.

A layer's `forward` becomes ours. It calls the class's own one, and so our kernels part by part, in every other case:
batches, masks, caches that are not `DynamicCache`, traces of `torch.compile` and `torch.export`, and hooks on a part.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from sporelm.adaptors.torch import PackedLinear
from sporelm.adaptors.torch.decoder_layer import LayerShape, PackedLayer
from sporelm.adaptors.torch.host_kernels import to_vector
from sporelm.adaptors.torch.thread_choice import host_kernels
from sporelm.adaptors.transformers.paged_cache_layer import find_pages
from sporelm.adaptors.transformers.swapped_modules import PROBE_ROWS, PackedMlp, RmsNorm, is_close

PROGRAM = "_sporelm_layer"  # attribute of a layer
PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
HEAD_NORMS = ("q_norm", "k_norm")
# Arguments of a layer that change nothing for one sequence without a mask.
IGNORED_ARGUMENTS = frozenset(
    {"past_key_values", "cache_position", "output_attentions", "output_router_logits"}
)  # hooks record outputs
OWN_HOOKS = "transformers.utils.output_capturing"  # they record attention's weights, which our kernels do not have


class RotaryTables:
    """The rotary table of the step that runs: its cosines and sines next to each other, once for all layers."""

    def __init__(self) -> None:
        self._last: tuple[Tensor | None, Tensor] = (None, torch.empty(0))  # one object: threads may share a model

    def of(self, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the table float32 [rows, head_dim] of cosines and sines [1, rows, head_dim] whose halves are equal."""
        last = self._last
        if last[0] is not cos:
            half = cos.shape[-1] // 2
            last = cos, torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1).float()
            self._last = last
        return last[1]


class LayerProgram:
    """A decoder layer of a model as one program."""

    def __init__(self, layer: Any, tables: RotaryTables) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.tables, self.number = tables, attention.layer_idx
        self.is_whole = isinstance(mlp, PackedMlp)
        self.mlp = mlp
        self.parts = parts_of(layer)
        named = dict(zip(("q", "k", "v", "o"), (getattr(attention, name) for name in PROJECTIONS), strict=True))
        matrices = {name: each.weight for name, each in named.items()}
        norms = {"norm": layer.input_layernorm, "second_norm": layer.post_attention_layernorm}
        norms |= {name: getattr(attention, name) for name in HEAD_NORMS if name in attention._modules}
        vectors = {name: to_vector(norm.weight) for name, norm in norms.items()}
        vectors |= {f"{name}_bias": to_vector(each.bias) for name, each in named.items() if each.bias is not None}
        if self.is_whole:
            matrices |= {"gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}
        head_dim = attention.head_dim
        shape = LayerShape(
            width=named["q"].in_features,
            heads=named["q"].out_features // head_dim,
            kv_heads=named["k"].out_features // head_dim,
            head_dim=head_dim,
            inner=mlp.inner if self.is_whole else 0,
            kind=mlp.kind if self.is_whole else "",
            format=named["q"].format,
            scale=float(attention.scaling),
            eps=norms["norm"].variance_epsilon,
            second_eps=norms["second_norm"].variance_epsilon,
            head_eps=norms["q_norm"].variance_epsilon if "q_norm" in norms else 0.0,
        )
        self.packed = PackedLayer(shape, matrices, vectors)

    def is_changed(self, layer: Any) -> bool:
        """Return whether a part was replaced, has a hook, or attends in both directions since."""
        parts = parts_of(layer)
        if len(parts) != len(self.parts) or not getattr(layer.self_attn, "is_causal", True):
            return True
        for part, known in zip(parts, self.parts, strict=True):
            if part is not known or ((part._forward_hooks or part._forward_pre_hooks) and _has_foreign_hook(part)):
                return True
        return False

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Any) -> Tensor | None:
        """Return the layer's results for rows [1, tokens, width]; None where the cache is not one that we can use."""
        shape, pages = self.packed.shape, None
        if cache is not None:
            pages = find_pages(cache, self.number, shape.kv_heads, shape.head_dim, x)
            if pages is None:
                return None
        y, *normed = host_kernels().decoder_layer(self.packed, x[0], self.tables.of(cos, sin), pages)
        result = y.unsqueeze(0).to(x.dtype)
        return result if not normed else result + self.mlp(normed[0].unsqueeze(0).to(x.dtype))


def parts_of(layer: Any) -> list[Any]:
    """Return the modules that a program stands for."""
    found = [layer._modules[name] for name in PARTS]
    return [*found, *found[1]._modules.values()]


def _has_foreign_hook(part: nn.Module) -> bool:
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    return any(getattr(hook, "__module__", "") != OWN_HOOKS for hook in hooks)


def forward(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    cache: Any = None,
    use_cache: bool | None = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Any:
    """Run a decoder layer as one program where that applies, else as its class does."""
    if not torch.compiler.is_compiling():
        held = cache if cache is not None else options.get("past_key_values")
        found = _run_program(self, hidden_states, attention_mask, held, position_embeddings, options)
        if found is not None:
            return found
    given = {"attention_mask": attention_mask, "position_ids": position_ids, "use_cache": use_cache}
    if cache is not None:
        options["cache"] = cache
    return type(self).forward(self, hidden_states, position_embeddings=position_embeddings, **given, **options)


def _run_program(layer: Any, x: Tensor, mask: Any, cache: Any, tables: Any, options: dict[str, Any]) -> Tensor | None:
    program: LayerProgram = getattr(layer, PROGRAM)
    if mask is not None or tables is None or type(x) is not Tensor or x.device.type != "cpu" or x.shape[0] != 1:
        return None
    cos, sin = tables
    if cos.dim() != 3 or cos.shape[0] != 1 or cos.shape[-1] != program.packed.shape.head_dim or x.dim() != 3:
        return None
    if layer.training or program.is_changed(layer):
        return None
    if any(value is not None and name not in IGNORED_ARGUMENTS for name, value in options.items()):
        return None
    return program.run(x, cos, sin, cache)


def looks_like_layer(module: nn.Module) -> bool:
    """Return whether a module has the parts of a decoder layer."""
    attention = module._modules.get("self_attn")
    return all(module._modules.get(name) for name in PARTS) and isinstance(attention, nn.Module)


def find_layer_obstacle(layer: Any) -> str:
    """Return why the parts of a layer, which are ours already, cannot be one program; "" if they can."""
    if others := [name for name in layer._modules if name not in PARTS]:
        return f"it has other parts: {', '.join(others)}"
    attention = layer.self_attn
    if others := [name for name in attention._modules if name not in PROJECTIONS + HEAD_NORMS]:
        return f"its attention has other parts: {', '.join(others)}"
    for name in PROJECTIONS:
        if type(getattr(attention, name, None)) is not PackedLinear:
            return f"self_attn.{name} is not packed"
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        if type(norm) is not RmsNorm:
            return "its norms were not replaced"
    heads: list[Any] = [attention._modules[name] for name in HEAD_NORMS if name in attention._modules]
    if len(heads) == 1 or any(type(norm) is not RmsNorm for norm in heads):
        return "the norms of its queries and keys were not replaced"
    if len({norm.variance_epsilon for norm in heads}) > 1:
        return "the norms of its queries and keys have different epsilons"
    for name in ("head_dim", "scaling", "layer_idx"):
        if not isinstance(getattr(attention, name, None), int | float):
            return f"its attention has no {name}"
    return ""


def swap_layer(layer: Any, tables: RotaryTables) -> str:
    """Replace a layer with one program. Return the reason if it is not replaced, else "".

    Both are compared on random rows first.
    """
    if reason := find_layer_obstacle(layer):
        return reason
    program = LayerProgram(layer, tables)
    shape = program.packed.shape
    weight = layer.input_layernorm.weight
    x = torch.randn(1, PROBE_ROWS, shape.width, dtype=weight.dtype, device=weight.device)
    angles = torch.randn(1, PROBE_ROWS, shape.head_dim // 2)
    cos, sin = (torch.cat((each, each), dim=-1).to(weight.dtype) for each in (angles.cos(), angles.sin()))
    try:
        expected = layer(x, position_embeddings=(cos, sin))
        found = program.run(x, cos, sin, None)
    except Exception as error:  # other arguments
        return f"it takes other arguments ({type(error).__name__})"
    if not isinstance(expected, Tensor) or found is None or not is_close(found, expected):
        return "its output differs from that of two norms, attention and a gated MLP"
    setattr(layer, PROGRAM, program)
    layer.forward = MethodType(forward, layer)
    return ""
