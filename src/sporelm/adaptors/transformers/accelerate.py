"""Swaps the parts of a Hugging Face model for our kernels, and back.

Linear layers, gated MLPs and norms are modules of ours in the place of the model's; attention and experts go through
transformers' registries (`AttentionInterface`, `ExpertsInterface`); the rotary embedding is a function of the model's
module. Each candidate is first compared with its replacement on random inputs: a module whose output differs is left
alone, and the reason is recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from sporelm.adaptors.torch import PackedLinear, get_num_threads, set_num_threads
from sporelm.adaptors.transformers.attention_function import find_attention_obstacle, register_attention
from sporelm.adaptors.transformers.decoder_layers import PROGRAM, RotaryTables, looks_like_layer, swap_layer
from sporelm.adaptors.transformers.expert_function import find_expert_obstacle, pack_experts, register_experts
from sporelm.adaptors.transformers.quantization_config import PackedQuantizer, SporelmConfig
from sporelm.adaptors.transformers.rotary_function import swap_rotary
from sporelm.adaptors.transformers.swapped_modules import (
    PackedMlp,
    RmsNorm,
    find_linear_obstacle,
    find_mlp_kind,
    find_norm_offset,
    is_linear,
    looks_like_mlp,
    looks_like_norm,
    matrix_of,
)
from sporelm.errors import OpError, UnsupportedModel
from sporelm.quant import format_of
from sporelm.quant.format import check_can_quantize

IMPLEMENTATION = "sporelm"


@dataclass(frozen=True)
class ModuleChange:
    """A part of the model, and whether our kernels compute it now.

    name     of the module, or of the function
    kind     linear, mlp, norm, rope, attention, experts, or layer: a whole decoder layer as one program
    reason   why it stays as it is; "" where it is ours
    """

    name: str
    kind: str
    reason: str = ""

    @property
    def is_replaced(self) -> bool:
        return not self.reason


@dataclass
class Acceleration:
    """The record of what `accelerate` did to a model, and the way back.

    keep_originals   whether the model's own modules are kept in memory, so that `undo` can put them back
    """

    format: str
    keep_originals: bool = False
    changes: list[ModuleChange] = field(default_factory=list)
    _restore: list[Callable[[], Any]] = field(default_factory=list, repr=False)  # of the model
    _release: list[Callable[[], Any]] = field(default_factory=list, repr=False)  # of what other models share

    @property
    def skipped(self) -> list[ModuleChange]:
        """Return the parts that were not replaced, with the reasons."""
        return [change for change in self.changes if not change.is_replaced]

    def count(self, kind: str) -> int:
        """Return how many parts of this kind were replaced."""
        return sum(change.kind == kind and change.is_replaced for change in self.changes)

    def undo(self) -> None:
        """Put everything back: modules, implementations, functions, and torch's number of threads. Calling it
        again has no effect.

        Raises OpError, and changes nothing, where the original modules were not kept.
        """
        if not self.keep_originals:
            raise OpError(
                "undo: the original weights were freed. Call accelerate(model, keep_originals=True) next time, or load "
                "the model again; close() restores torch's number of threads."
            )
        self._put_back()

    def close(self) -> None:
        """Put back what lies outside the model: torch's number of threads and the rotary function of its architecture.

        Call it when you no longer need the model, which keeps working, but more slowly. Calling it again has no
        effect.
        """
        while self._release:
            self._release.pop()()

    def _put_back(self) -> None:
        while self._restore:
            self._restore.pop()()
        self.close()

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for change in self.changes:
            counts[change.kind] = counts.get(change.kind, 0) + change.is_replaced
        lines = [f"{self.format}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())]
        lines += [f"  {change.name} ({change.kind}) not replaced: {change.reason}" for change in self.skipped]
        return "\n".join(lines)


def accelerate(
    model: Any, format: str = "q8_0", *, threads: int | None = None, keep_originals: bool = False
) -> Acceleration:
    """Replace layers of a Hugging Face model with Sporelm's kernels, for inference. Changes the model.

    format           number format of linear layers and experts, one that `spore gguf quantize` writes; "f32" keeps
                     every digit
    threads          of our kernels; None: as many as torch has now. On the CPU torch itself goes on with one thread
                     until `undo()` or `close()`, so that no thread of OpenMP waits beside one of ours on the same core
    keep_originals   keep the model's own modules for `undo()`. Otherwise each is freed as soon as it is packed

    Returns a record of every part: replaced, or the reason why not. Raises UnsupportedModel where nothing of the model
    can be changed or it is in training mode, and OpError for a format that cannot be written. After another error a
    model whose originals are not kept must be loaded again.
    """
    form = format_of(format)
    check_can_quantize(form)
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"model: not a torch module (got {type(model).__name__}). Pass a Hugging Face model.")
    if model.training:
        raise UnsupportedModel(
            "model: in training mode, and Sporelm's kernels have no backward pass. Call model.eval() first."
        )
    done = Acceleration(form.name, keep_originals)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cpu":
        _choose_threads(done, threads)
    try:
        with torch.no_grad():
            _swap_modules(done, model, form)
            _swap_experts(done, model, form)
            _swap_attention(done, model)
            for name, reason, restore in swap_rotary(model):
                done.changes.append(ModuleChange(name, "rope", reason))
                done._release.append(restore)
            if device.type == "cpu":
                _swap_layers(done, model)
            _refuse_saving(done, model)
    except BaseException:
        done._put_back()
        raise
    if not any(change.is_replaced for change in done.changes):
        reasons = (
            "; ".join(f"{change.name}: {change.reason}" for change in done.skipped[:4]) or "no supported layers found"
        )
        done._put_back()
        raise UnsupportedModel(f"{type(model).__name__}: no part can be accelerated ({reasons})")
    return done


def _refuse_saving(done: Acceleration, model: Any) -> None:
    """Have `save_pretrained` refuse a model whose weights are packed, which it would leave out."""
    if getattr(model, "hf_quantizer", None) is None and any(done.count(kind) for kind in ("linear", "mlp", "experts")):
        model.hf_quantizer = PackedQuantizer(SporelmConfig(done.format))
        done._restore.append(lambda: delattr(model, "hf_quantizer"))


def _choose_threads(done: Acceleration, threads: int | None) -> None:
    before, ours = torch.get_num_threads(), get_num_threads()
    set_num_threads(threads or ours)
    torch.set_num_threads(1)
    done._release.append(lambda: torch.set_num_threads(before))


def _swap_modules(done: Acceleration, model: nn.Module, form: Any) -> None:
    """Swap gated MLPs as a whole, then the linear layers and norms outside of them."""
    swapped: set[str] = set()
    names = [name for name, _ in model.named_modules()]  # a list of modules would keep the swapped ones
    for name in names:
        if _is_inside(name, swapped) or not looks_like_mlp(model.get_submodule(name)):
            continue
        mlp = model.get_submodule(name)
        kind, reason = find_mlp_kind(mlp, form)
        done.changes.append(ModuleChange(name, "mlp", reason))
        if kind:
            _replace(done, model, name, PackedMlp(mlp, form.name, kind))
            swapped.add(name)
    for name in names:
        if _is_inside(name, swapped):
            continue
        module: Any = model.get_submodule(name)
        if is_linear(module):
            reason = find_linear_obstacle(module, form)
            done.changes.append(ModuleChange(name, "linear", reason))
            if not reason:
                _replace(done, model, name, PackedLinear(matrix_of(module), module.bias, form.name))
        elif looks_like_norm(module):
            offset, reason = find_norm_offset(module)
            done.changes.append(ModuleChange(name, "norm", reason))
            if offset is not None:
                _replace(done, model, name, RmsNorm(module, offset))


def _is_inside(name: str, swapped: set[str]) -> bool:
    """Return whether a module is one of the modules that were swapped, or was a part of one."""
    while name:
        if name in swapped:
            return True
        name = name.rpartition(".")[0]
    return False


def _replace(done: Acceleration, model: nn.Module, name: str, module: nn.Module) -> None:
    parent_name, _, attribute = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    before = getattr(parent, attribute)
    setattr(parent, attribute, module)
    if done.keep_originals:
        done._restore.append(lambda: setattr(parent, attribute, before))


def _swap_experts(done: Acceleration, model: Any, form: Any) -> None:
    found = [
        (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "gate_up_proj") and hasattr(module, "down_proj") and hasattr(module, "num_experts")
    ]
    obstacles = {name: find_expert_obstacle(module, form) for name, module in found}
    if not found:
        return
    blocked = next((reason for reason in obstacles.values() if reason), "")
    if not blocked and not hasattr(model, "set_experts_implementation"):
        blocked = "the model has no set_experts_implementation"
    if blocked:  # one implementation serves all experts of a model
        done.changes += [ModuleChange(name, "experts", obstacles[name] or blocked) for name, _ in found]
        return
    register_experts(IMPLEMENTATION)
    before = model.get_experts_implementation()
    model.set_experts_implementation(IMPLEMENTATION)
    done._restore.append(lambda: model.set_experts_implementation(before))
    for name, module in found:
        done._restore.append(pack_experts(module, form.name, done.keep_originals))
        done.changes.append(ModuleChange(name, "experts"))


def _swap_attention(done: Acceleration, model: Any) -> None:
    names = [name for name, module in model.named_modules() if type(module).__name__.endswith("Attention")]
    label = names[0] if names else type(model).__name__
    reason = find_attention_obstacle(model)
    done.changes.append(ModuleChange(label, "attention", reason))
    if reason:
        return
    register_attention(IMPLEMENTATION)
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        done.changes[-1] = ModuleChange(label, "attention", "the model ignores set_attn_implementation")
        return
    done._restore.append(lambda: model.set_attn_implementation(before))


def _swap_layers(done: Acceleration, model: nn.Module) -> None:
    """Have decoder layers whose parts are all ours run as one program each."""
    obstacle = next(
        (f"its {change.kind} was not replaced" for change in done.skipped if change.kind in ("attention", "rope")), ""
    )
    tables = RotaryTables()
    for name, layer in model.named_modules():
        if not looks_like_layer(layer):
            continue
        reason = obstacle or swap_layer(layer, tables)
        done.changes.append(ModuleChange(name, "layer", reason))
        if not reason:
            done._restore.append(partial(_restore_layer, layer))


def _restore_layer(layer: Any) -> None:
    delattr(layer, PROGRAM)
    del layer.forward
