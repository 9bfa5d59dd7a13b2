"""hflray.config.clock: the limits of an edge iteration."""

from __future__ import annotations

import pytest

from hflray.config import EdgeClockConfig, load_config
from hflray.errors import ConfigError


def test_edges_wait_for_all_by_default() -> None:
    assert load_config(None, []).clock.edge == EdgeClockConfig(deadline_s=None, deadline=None, first=None)
    assert load_config(None, ["clock.edge=all"]).clock.edge == EdgeClockConfig()


def test_an_integer_is_a_number_of_arrivals_and_a_fraction_a_share() -> None:
    assert load_config(None, ["clock.edge.first=1"]).clock.edge.first == 1
    assert type(load_config(None, ["clock.edge.first=1"]).clock.edge.first) is int
    assert type(load_config(None, ["clock.edge.first=1.0"]).clock.edge.first) is float
    edge = load_config(None, ["clock.edge={first: 0.8, deadline_s: 20}"]).clock.edge
    assert (edge.first, edge.deadline_s, edge.deadline) == (0.8, 20, None)


@pytest.mark.parametrize(
    "override, named",
    [
        ("clock.edge.deadline_s=0", "clock.edge.deadline_s"),
        ("clock.edge.deadline=-1", "clock.edge.deadline"),
        ("clock.edge.first=0", "clock.edge.first"),
        ("clock.edge.first=1.5", "clock.edge.first"),
        ("clock.edge=some", "clock.edge"),
        ("clock.edges=all", "clock.edge"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(override: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, [override])
    lines = str(error.value).splitlines()
    assert all(named in line for line in lines), lines
    assert len(lines) <= 2, lines


def test_an_asynchronous_edge_may_be_a_word() -> None:
    made = load_config(None, ["clock.edge=asynchronous"]).clock
    assert made.edge.asynchronous is not None
    assert made == load_config(None, ["clock.edge={asynchronous: {}}"]).clock
    assert type(made).model_validate(made.model_dump(mode="json")) == made
    assert "asynchronous" not in EdgeClockConfig().model_dump()


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["clock.edge={asynchronous: {}, first: 2}"], "first: got 2 with clock.edge.asynchronous"),
        (
            ["clock.edge=asynchronous", "clock.cloud={semi_synchronous: {period_s: 3}}"],
            "period_s: got 3 with clock.edge",
        ),
        (["clock.edge.asynchronous.mixing=0"], "clock.edge.asynchronous.mixing"),
    ],
)
def test_what_does_not_go_with_an_asynchronous_edge_is_refused(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, overrides)
    assert line in str(error.value)
