"""Notes of `from-hf` on files that llama.cpp refuses or reads differently."""

import pytest

from sporelm.tools.hf.llama_cpp_support import llama_cpp_notes

PLAIN = ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.11.ffn_down.weight")


@pytest.mark.parametrize(
    ("architecture", "name", "reported"),
    [
        ("qwen3", "blk.3.attn_output.bias", "blk.N.attn_output.bias"),
        ("qwen3", "blk.3.attn_q.bias", None),
        ("qwen2", "rope_freqs.weight", "rope_freqs.weight"),
        ("llama", "rope_freqs.weight", None),
        ("llama", "blk.0.attn_q.scale", None),
        ("no-such-architecture", "blk.0.anything", None),
    ],
)
def test_tensors_that_llama_cpp_does_not_take_are_named(architecture: str, name: str, reported: str | None) -> None:
    notes = llama_cpp_notes(architecture, [*PLAIN, name])
    if reported is None:
        assert notes == []
    else:
        (note,) = notes
        assert note.endswith(f"refuses this file: files of {architecture!r} have no {reported} there")


@pytest.mark.parametrize(
    ("architecture", "bounds", "is_noted"),
    [
        ("llama", (16.0, 1.0), True),
        ("llama", (32.0, 2.0), True),
        ("llama", (32.0, 1.0), False),
        ("mistral3", (16.0, 1.0), False),
        ("llama", None, False),
    ],
)
def test_yarn_bounds_that_llama_cpp_does_not_read_are_named(
    architecture: str, bounds: tuple[float, float] | None, is_noted: bool
) -> None:
    notes = llama_cpp_notes(architecture, PLAIN, bounds)
    assert len(notes) == is_noted
    for note in notes:
        assert bounds is not None
        assert note.endswith(f"--yarn-beta-fast {bounds[0]:g} --yarn-beta-slow {bounds[1]:g}")
