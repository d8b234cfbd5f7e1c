import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcustody.config.values import parse_bytes, parse_duration, parse_fraction

pytestmark = pytest.mark.unit

# A busy machine is no finding.
unhurried = settings(deadline=None, max_examples=50)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("60s", 60.0),
        ("1.5h", 5400.0),
        ("5 m", 300.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
        ("3650d", 315360000.0),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        "s",
        "5 years",
        "5S",
        "5M",
        "-5s",
        "+5s",
        "1e3s",
        "5s ",
        " 5s",
        "5s\n",
        "1,5h",
        "1.h",
    ],
)
def test_a_duration_without_a_known_unit_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="with its unit, such as 200ms"):
        parse_duration(value)


@pytest.mark.parametrize("value", [5, 5.0, None, True, ["5s"], b"5s"])
def test_a_duration_is_text(value: object) -> None:
    with pytest.raises(ValueError, match="with its unit, such as 200ms"):
        parse_duration(value)


@pytest.mark.parametrize("text", ["0s", "0.0h", "3651d", "522w", "9" * 400 + "s"])
def test_a_duration_is_longer_than_zero_and_at_most_ten_years(text: str) -> None:
    with pytest.raises(ValueError, match="longer than zero and at most ten years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("1", 1),
        (1, 1),
        (4096, 4096),
        ("512B", 512),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("500MB", 500_000_000),
        ("8GiB", 8 * 2**30),
        ("8 GiB", 8 * 2**30),
        ("1.5TiB", 3 * 2**39),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size_is_read_as_people_write_it(value: object, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize(
    "value", ["", "GiB", "8gib", "8 gigabytes", "-1", -1, "8GiB\n", 1.5, True, None, [8], "1e9"]
)
def test_a_size_without_a_known_unit_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="with its unit, such as 512MiB"):
        parse_bytes(value)


@pytest.mark.parametrize("value", ["0", 0, "0GiB", "0.4B", "0.0001KB"])
def test_a_size_is_larger_than_zero(value: object) -> None:
    with pytest.raises(ValueError, match="larger than zero"):
        parse_bytes(value)


@pytest.mark.parametrize(
    "value", ["9" * 400, "9" * 400 + "GiB", 10**400], ids=["digits", "unit", "number"]
)
def test_a_size_beyond_all_measure_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("text", "fraction"), [("0%", 0.0), ("5%", 0.05), ("12.5 %", 0.125), ("99%", 0.99)]
)
def test_a_fraction_is_a_percentage(text: str, fraction: float) -> None:
    assert parse_fraction(text) == pytest.approx(fraction)


@pytest.mark.parametrize(
    "value", ["", "5", "0.05", 0.05, 5, "100%", "-5%", "5%%", "%", "5 percent", "5%\n", None, True]
)
def test_what_is_no_percentage_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="percentage from 0% to 99%"):
        parse_fraction(value)


@unhurried
@given(st.text(max_size=20) | st.integers() | st.floats() | st.none() | st.booleans())
def test_no_value_makes_a_parser_fail_otherwise(value: object) -> None:
    for parse in (parse_duration, parse_bytes, parse_fraction):
        try:
            parsed = parse(value)
        except ValueError:
            continue
        assert math.isfinite(parsed)
        assert parsed >= 0


@unhurried
@given(st.integers(min_value=1, max_value=10**9), st.sampled_from(["ms", "s", "m", "h"]))
def test_a_longer_duration_stays_longer(number: int, unit: str) -> None:
    for more in (1, number):
        try:
            longer = parse_duration(f"{number + more}{unit}")
        except ValueError:
            return  # more than ten years
        assert parse_duration(f"{number}{unit}") < longer
