"""Everything that can be checked of a model file without running it; all findings, not only the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.backends.load_progress import Progress, count_progress
from sporelm.backends.memory_residency import drop_pages
from sporelm.errors import ModelError, ModelNotFound, UnsupportedModel
from sporelm.files.memory_map import map_file
from sporelm.tools.architecture_check import check_architecture, check_folder
from sporelm.tools.diagnostics import ERROR, NOTE, WARNING, Diagnostic
from sporelm.tools.hashes import compare_hashes, compute_hashes
from sporelm.tools.metadata_check import check_metadata
from sporelm.tools.model_files import SPLIT_NAME, ModelFiles, is_safetensors, open_model_files
from sporelm.tools.structure_check import check_structure
from sporelm.tools.tensor_values import TensorValues


@dataclass(frozen=True)
class VerifyReport:
    """The diagnostics of one model, and the hashes of its files and tensors, {} unless requested."""

    path: Path
    tensors: int
    findings: tuple[Diagnostic, ...]
    hashes: Mapping[str, str]

    def count(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The same as an object for `json.dumps`."""
        return {
            "path": str(self.path), "ok": not self.count(ERROR), "tensors": self.tensors,
            "findings": [finding._asdict() for finding in self.findings], "hashes": dict(self.hashes),
        }  # fmt: skip


def verify_model(
    path: Path,
    *,
    values: bool = True,
    hashes: bool = False,
    wanted: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a GGUF file (all its splits), a safetensors file or a Hugging Face folder.

    `values` reads every tensor for NaN and infinity; `hashes` computes SHA-256; `wanted` compares them with a list.
    Raises ModelNotFound only where there is no such file.
    """
    findings = [] if is_safetensors(path) else _check_structures(path)
    try:
        source = open_model_files(path)
    except ModelError as reason:
        if not any(finding.level == ERROR for finding in findings):
            findings.append(Diagnostic(ERROR, "structure", "", str(reason).removeprefix(f"{path}: ")))
        return VerifyReport(path, 0, tuple(findings), {})
    with source:
        size = sum(entry.nbytes for entry in source.tensors.values())
        report = count_progress(
            progress, "checking", size * values + (size + source.nbytes) * (hashes or wanted is not None)
        )
        if source.kind == "gguf":
            findings += check_metadata(source)
        findings += [*check_architecture(source), *check_folder(source)]
        if values:
            for name in source.tensors:
                findings += check_values(source, name)
                report(source.tensors[name].nbytes)
        found: dict[str, str] = {}
        if hashes or wanted is not None:
            found = compute_hashes(source, report)
        if wanted is not None:
            findings += compare_hashes(found, wanted, {path.name for path in source.files.paths})
        return VerifyReport(path, len(source.tensors), tuple(findings), found if hashes else {})


def _check_structures(path: Path) -> list[Diagnostic]:
    """The structure of a file and of the splits beside it; a later split's findings are marked with its name."""
    named = SPLIT_NAME.fullmatch(path.name)
    paths = [path]
    if named:
        count = named["count"]
        beside = (path.with_name(f"{named['stem']}-{i:05d}-of-{count}.gguf") for i in range(1, int(count) + 1))
        paths = [other for other in beside if other == path or other.is_file()]
    findings = []
    for each in paths:
        try:
            found = check_structure(each, map_file(each))
        except ModelNotFound:
            raise
        except ModelError as reason:
            found = [Diagnostic(ERROR, "structure", "", str(reason).removeprefix(f"{each}: "))]
        if each != path:
            found = [finding._replace(message=f"in {each.name}: {finding.message}") for finding in found]
        findings += found
    return findings


def check_values(source: ModelFiles, name: str) -> Iterator[Diagnostic]:
    """NaN, infinity and nothing but zeros in one tensor; quantized ones by their values, where bad scales show."""
    try:
        values = TensorValues(source, name)
    except UnsupportedModel:
        yield Diagnostic(NOTE, "values", name, f"values of type {source.tensors[name].type_name} cannot be read")
        return
    nan = infinite = 0
    is_zero = True
    for chunk in values.chunks():
        with np.errstate(all="ignore"):  # signalling NaNs speak up wherever they are looked at
            if chunk.dtype.kind == "f" and not np.isfinite(chunk.sum(dtype=np.float64)):  # one pass where all is well
                nan += int(np.isnan(chunk).sum())
                infinite += int(np.isinf(chunk).sum())
            is_zero = is_zero and not chunk.any()
    drop_pages(source.raw(name))
    if nan or infinite:
        what = f"{nan} values are NaN, {infinite} infinite, of {values.size}"
        scales = "; a block's scale is not finite" if source.tensors[name].type_name.startswith(("Q", "I", "T")) else ""
        yield Diagnostic(ERROR, "values", name, what + scales)
    elif is_zero and len(values.entry.shape) > 1 and values.size and not name.endswith("zero_point"):
        yield Diagnostic(WARNING, "values", name, f"all {values.size} values are zero")
