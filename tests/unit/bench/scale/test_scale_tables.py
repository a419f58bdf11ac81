"""Tables of figures."""

from sporelm.bench.scale.scale_tables import format_percent, format_table


def test_figures_have_three_digits() -> None:
    row = {"a": 1234.5, "b": 0.012345, "c": None, "d": 7, "e": float("inf"), "f": "x", "g": float("nan")}
    assert format_table([row]).splitlines() == [
        "| a | b | c | d | e | f | g |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 1,234 | 0.0123 | - | 7 | unbounded | x | - |",
    ]
    assert format_table([]) == ""


def test_shares_have_a_sign() -> None:
    assert format_percent(-0.125) == "-12%"
    assert format_percent(0.2) == "+20%"
