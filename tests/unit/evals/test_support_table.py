"""docs/support.md is what the table says, and the table says nothing of devices and models that do not exist."""

from pathlib import Path

from sporelm.backends.backend_registry import OWN, VENDORS
from sporelm.evals.support_table import (
    DEVICES,
    INTERPRETER,
    META,
    NOT_RUN,
    REAL,
    ROWS,
    STUB,
    find_references,
    support_page,
)


def test_the_page_is_current(root: Path) -> None:
    page = (root / "docs" / "support.md").read_text("utf-8")
    assert page == support_page(), "docs/support.md is out of date: ./run docs writes it"


def test_devices_are_back_ends_and_every_vendor_is_among_them() -> None:
    names = {device.backend for device in DEVICES}
    assert names <= OWN.keys() | VENDORS.keys()
    assert VENDORS.keys() <= names


def test_no_vendor_claims_to_have_run() -> None:
    for device in DEVICES:
        if device.backend in VENDORS:
            words = {word for pair in device.by_kind.values() for word in pair}
            assert words <= {META, STUB, NOT_RUN, "-"}
    assert REAL not in {word for device in DEVICES if device.backend == "cuda" for word in device.by_kind[""]}
    assert {word for device in DEVICES if device.backend == "cuda" for word in device.by_kind[""]} == {INTERPRETER}


def test_rows_are_dlinfers_and_all_but_the_unsupported_ones_have_references() -> None:
    assert len(ROWS) == 20
    assert all(len(row.theirs) == 8 for row in ROWS)
    unsupported = [row.title for row in ROWS if find_references(row.classes) is None]
    assert unsupported == ["GLM-4V"]
