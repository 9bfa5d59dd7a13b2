"""hflray.config.clock: the limits of an edge iteration."""

from __future__ import annotations

import pytest

from hflray.config import EdgeClockConfig, load_config
from hflray.errors import ConfigError
from hflray.report.runs import RunRecord


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


@pytest.mark.parametrize(
    ("cloud", "label"),
    [
        ("synchronous", "synchronous"),
        ("asynchronous", "FedAsync"),
        ("{asynchronous: {buffer: 3, updates: 7}}", "FedBuff, updates 7, buffer 3"),
        ("{asynchronous: {rule: fedat}}", "FedAT"),
        ("{asynchronous: {staleness: {hinge: [10, 4]}}}", "FedAsync, staleness {'hinge': (10.0, 4.0)}"),
        ("{semi_synchronous: {period_s: 2.5}}", "semi-synchronous, P = 2.5 s"),
        ("{semi_synchronous: {period_s: 3, max_iterations: 9}}", "semi-synchronous, P = 3 s, at most 9 iterations"),
    ],
)
def test_a_clouds_label_has_each_setting_that_is_not_a_default(cloud: str, label: str) -> None:
    config = load_config(None, [f"clock.cloud={cloud}"])
    assert config.clock.cloud.label == label
    assert RunRecord.settings_of(config)["clock.cloud"] == label


def test_an_edges_label_has_each_setting_that_is_not_a_default() -> None:
    config = load_config(None, ["clock.edge={asynchronous: {updates: 4, mixing: 0.3}}"])
    assert RunRecord.settings_of(config)["clock.edge.asynchronous"] == "asynchronous edges, updates 4, mixing 0.3"
    assert "clock.edge.asynchronous" not in RunRecord.settings_of(load_config(None, []))


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


@pytest.mark.parametrize("level, word", [("edge", "all"), ("cloud", "synchronous")])
def test_an_empty_level_is_neither_on_nor_off(level: str, word: str) -> None:
    """`asynchronous: null` once turned the clock on, although null means off everywhere else."""
    for setting in (f"clock.{level}.asynchronous=null", f"clock.{level}={{asynchronous: }}"):
        with pytest.raises(ConfigError, match=rf"asynchronous: got nothing; accepted: {{}} for on, and '{word}'"):
            load_config(None, [setting])
