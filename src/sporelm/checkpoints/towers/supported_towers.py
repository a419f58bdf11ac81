"""The supported vision towers: one entry for each pair of schemas, and the references that verify it."""

from typing import NamedTuple


class SupportedTower(NamedTuple):
    """One family of models that see.

    module            of its tower in `models.towers`, its schemas in `checkpoints.towers`, and its processor in
                      `vision.processors`
    title             common names of the models
    projectors        values of `clip.projector_type` in its mmproj files
    classes           its classes in transformers, or in the code of its authors
    verified_against  references for its logits: "transformers", "mtmd" (llama.cpp), "lmdeploy", or "numpy" (a plain
                      forward pass in the tests)
    """

    module: str
    title: str
    projectors: tuple[str, ...]
    classes: tuple[str, ...]
    verified_against: tuple[str, ...]


TOWERS: tuple[SupportedTower, ...] = (
    SupportedTower("llava", "LLaVA 1.5", ("mlp",), ("LlavaForConditionalGeneration",), ("transformers",)),
)
