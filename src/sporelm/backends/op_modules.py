"""The modules in which a back-end implements ops: one file for each file of `sporelm.ops`, under the same name."""

from importlib import import_module
from importlib.util import find_spec

from sporelm.ops import ALL


def import_op_modules(package: str) -> None:
    """Import what `package` has for the ops. Each module registers its functions when it is imported."""
    for name in sorted({op.__module__.rpartition(".")[2] for op in ALL.values()}):
        if find_spec(f"{package}.{name}") is not None:
            import_module(f"{package}.{name}")
