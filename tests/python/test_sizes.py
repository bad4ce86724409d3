"""Sizes follow the rules of include/tenure/core/units.hpp."""

import pytest

from tenure import format_bytes, parse_bytes


@pytest.mark.parametrize(
    "text, size",
    [
        (0, 0), (4096, 4096), (2**64 - 1, 2**64 - 1), ("0", 0), ("17", 17), ("17B", 17), ("512MiB", 512 << 20),
        ("512M", 512 << 20), ("20GiB", 20 << 30), ("20 GiB", 20 << 30), ("3  KiB", 3 << 10), ("1TiB", 1 << 40),
        ("15EiB", 15 << 60), ("18446744073709551615", 2**64 - 1),
    ],
)  # fmt: skip
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "no number"), ("GiB", "no number"), ("-1", "no number"), (" 1", "no number"), ("1.5GiB", "unknown unit"),
        ("20GB", "unknown unit"), ("1 ", "unknown unit"), ("1gib", "unknown unit"), ("1\n", "unknown unit"),
        ("1GiB ", "unknown unit"), ("16EiB", "more than 64 bits"), ("99999999999999999999", "does not fit"),
        ("\u0661", "no number"), (-1, "between 0"), (2**64, "between 0"),
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused_with_the_text_and_the_reason(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        parse_bytes(text)
    assert str(text) in str(caught.value)


@pytest.mark.parametrize("value", [1.5, None, True, b"1", []])
def test_other_types_are_refused(value):
    with pytest.raises(TypeError, match="a size is"):
        parse_bytes(value)


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 B"), (512, "512 B"), (1024, "1 KiB"), (1536, "1.50 KiB"), (20 << 20, "20 MiB"),
        ((1 << 30) - 1, "1023.99 MiB"), (2**64 - 1, "15.99 EiB"),
    ],
)  # fmt: skip
def test_sizes_are_printed(size, text):
    assert format_bytes(size) == text
