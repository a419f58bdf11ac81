"""The bars that SmolLM2-135M-Instruct must pass: what quantization costs, and how much memory a full context takes."""

import ast
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from available import open_available
from sporelm import LLM
from sporelm.evals import compute_kl
from sporelm.files import store
from system.processes import SOURCE

TOKENS = 17 * 512  # more than 8,000
MODULES = "argparse calendar difflib fractions heapq json/__init__ logging/__init__ random statistics textwrap typing"

# Fills a context of 2,048 positions, then says what the process held at most.
FULL_CONTEXT = """
import sys
from sporelm import LLM, SamplingParams
with LLM(sys.argv[1], max_context=2048) as llm:
    ids = llm.tokenizer.encode("The spores of ferns are carried by the wind. " * 300)[:2000]
    (done,) = llm.generate([ids], SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True))
print(len(ids) + len(done.token_ids))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""

pytestmark = pytest.mark.all


@pytest.fixture(scope="module")
def model() -> Path:
    """The default model, if it is in the store."""
    open_available("cpu").close()
    found = store.find(store.DEFAULT)
    if found is None:
        pytest.skip(f"{store.DEFAULT} is not in the model store: run 'spore pull {store.DEFAULT}'")
    return found


def docstrings(path: Path) -> Iterator[str]:
    """Every docstring of a source file, in the order of its lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    """Real text that is there wherever the tests are: our documents, and what Python's library says of itself."""
    pages = [path.read_text(encoding="utf-8") for path in (root / "README.md", *sorted((root / "docs").glob("*.md")))]
    library = Path(sysconfig.get_path("stdlib"))
    said = [text for name in MODULES.split() for text in docstrings(library / f"{name}.py")]
    return "\n\n".join([*said, *pages])


def test_what_quantized_weights_and_activations_cost(model: Path, text: str) -> None:
    with LLM(model, max_context=512) as llm, LLM(model, max_context=512, dequantize=True) as reference:
        found = compute_kl(llm, reference, text, TOKENS)
    assert found.windows * 512 >= 8000
    assert found.kl <= 0.01
    assert abs(found.perplexity_ratio - 1) <= 0.005
    assert found.top1_agreement >= 0.965


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory a process held is read from /proc")
def test_a_full_context_takes_little_more_than_the_file(model: Path) -> None:
    # Compiling takes memory too, once: the kernels are kept.
    with LLM(model, max_context=2048):
        pass
    command = [sys.executable, "-c", FULL_CONTEXT, str(model)]
    variables = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=True)
    positions, held = done.stdout.split("\n", 1)
    assert int(positions) == 2049, "the last token is known and not held"
    assert int(held.split()[1]) * 1024 <= 2.6 * model.stat().st_size
