"""hflray.config.options: numbers that a part accepts."""

from __future__ import annotations

import math

import pytest

from hflray.config.options import between, one_of, positive, whole
from hflray.errors import ConfigError


def test_numbers_are_taken() -> None:
    assert positive("a.b", 3) == 3.0
    assert positive("a.b", 1, 1.0) == 1.0
    assert between("a.b", 0, 0.0) == 0.0
    assert between("a.b", -3, -3.0, 3.0) == -3.0


@pytest.mark.parametrize("value", [0, -1, 2, math.nan, math.inf, True, "1", None])
def test_others_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"a\.b: got .*; accepted: a number above 0 and at most 1, because x; corr"):
        positive("a.b", value, 1.0, "x")


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a\.b: got -0.5; accepted: a number of at least 0; correct it"):
        between("a.b", -0.5, 0.0)


def test_whole_numbers_are_taken_and_others_refused() -> None:
    assert [whole("a.b", value, 1) for value in (1, 7)] == [1, 7]
    for value in (0, 1.0, True, "1", None):
        with pytest.raises(ConfigError, match=r"a\.b: got .*; accepted: a whole number of at least 1; correct it"):
            whole("a.b", value, 1)
    with pytest.raises(ConfigError, match=r"a\.b: got 9; accepted: a whole number from 1 to 8; correct it"):
        whole("a.b", 9, 1, 8)


def test_one_of_some_words() -> None:
    assert one_of("a.b", "x", ("x", "y")) == "x"
    for value in ("z", None, 1, ["x"]):
        with pytest.raises(ConfigError, match=r"a\.b: got .*; accepted: x, y; correct it"):
            one_of("a.b", value, ("x", "y"))
