"""The CPU targets that this run tests."""

from sporelm.backends.cpu import targets


def tested_targets() -> tuple[str, ...]:
    """Return the names of the targets to test, the best first: it gets every case, the others a sample.

    The first is the one that SPORE_CPU_TARGET forces, or else the best of this CPU; the narrower ones follow. So a
    forced target is tested as it would be on a CPU that has nothing better. AMX takes part only when forced.
    """
    names = list(targets.available_targets())
    forced = targets.select_target().name
    return tuple([forced] + [name for name in names[names.index(forced) + 1 :] if not name.startswith("amx")])


TARGETS = tested_targets()
