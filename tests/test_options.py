"""One contract of all registered parts: an option that a part does not have, or a value that it does not accept."""

from __future__ import annotations

from typing import Any

import pytest

from hflray import registry
from hflray.errors import ConfigError
from tests.conftest import says

# `flwr:` needs a package, and a network of torchvision takes what its function takes.
PARTS = [(kind, name) for kind, names in registry.BUILTIN.items() for name in names if not name.endswith(":")]
# What a caller gives besides the options.
GIVEN = {"scheduler": {"num_devices": 12, "num_scheduled": 4, "clusters": [0, 1, 2] * 4}}


def refused(kind: str, name: str, options: dict[str, Any], *facts: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.build(kind, name, GIVEN.get(kind), **options)
    assert says(str(error.value), *facts), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind, name", PARTS)
def test_an_option_that_a_part_does_not_have_is_refused_in_one_line(kind: str, name: str) -> None:
    refused(kind, name, {"foo": 1}, "foo")


REFUSED: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    *(("scheduler", "importance", {"dropped": value}, ("options.dropped", "number from 0 to 1"))
      for value in (True, "much", None, 1.5, -0.1, float("nan"), float("inf"))),
    ("scheduler", "importance", {"uniform": 1.5}, ("options.uniform", "got 1.5")),
    ("scheduler", "oort", {"window": 2.5}, ("options.window", "got 2.5", "whole number of at least 1")),
    ("scheduler", "oort", {"window": 0}, ("options.window", "got 0")),
    ("scheduler", "oort", {"exploration": 1.5}, ("options.exploration", "got 1.5")),
    ("scheduler", "oort", {"penalty": -1.0}, ("options.penalty", "got -1.0")),
    ("scheduler", "oort", {"variant": "book"}, ("options.variant", "got 'book'", "paper, code")),
    ("scheduler", "oort", {"windows": 3}, ("unknown option 'windows'", "did you mean 'window'")),
    ("scheduler", "ucb", {"variant": "ucb1"}, ("options.variant", "got 'ucb1'", "cs_ucb, cs_ucb_q")),
    ("scheduler", "ucb", {"exploration": -1}, ("options.exploration", "got -1")),
    ("scheduler", "ucb", {"queue_weight": 1.5}, ("options.queue_weight", "got 1.5")),
    ("scheduler", "ucb", {"fairness": -0.1}, ("options.fairness", "got -0.1")),
    ("scheduler", "power_of_choice", {"candidates": 0}, ("options.candidates", "whole number of at least 1")),
    ("scheduler", "energy_aware", {"budget_j": -1}, ("options.budget_j", "got -1")),
    *(("scheduler", "joint_cost", {"max_wait": value}, ("options.max_wait", f"got {value}"))
      for value in (-1, 1.5, True)),
    *(("scheduler", "joint_cost", {"coupling": value}, ("options.coupling", "per_edge, joint"))
      for value in ("both", None, ["joint"])),
    ("assigner", "geographic", {"exchanges": 3}, ("assigner 'geographic'", "'exchanges' (got 3)", "accepted: none")),
    ("assigner", "geografic", {}, ("unknown assigner 'geografic'", "did you mean 'geographic'")),
    *(("assigner", name, {"coupling": "joint"}, ("coupling",)) for name in ("best_gain", "geographic", "random")),
    *(("assigner", name, {"coupling": "both"}, ("coupling: got 'both'", "per_edge, joint"))
      for name in ("hfel", "local_search", "d3qn")),
    ("assigner", "hfel", {"start": "nowhere"}, ("start", "nowhere", "geographic")),
    *(("assigner", "hfel", {key: value}, (f"assignment.{key}: got {value!r}", "a whole number of at least 0"))
      for key in ("transfers", "exchanges") for value in (True, False, -1, 2.0, "3", None)),
    *(("assigner", "local_search", {key: value}, (key,))
      for key, value in (("restarts", -1), ("kick", 0), ("budget_ms", 0))),
    ("assigner", "local_search", {"start": "here"}, ("start", "here", "best_gain")),
    ("assigner", "local_search", {"candidates": -1}, ("assignment.candidates: got -1",)),
    ("assigner", "d3qn", {"polish_ms": -1.0}, ("polish_ms", "-1")),
    ("assigner", "d3qn", {"polish_ms": "best"}, ("polish_ms", "best", "optimum")),
    *(("aggregator", name, {"learning_rate": 0}, ("learning_rate", "above 0"))
      for name in ("fedavgm", "fedadam", "fedyogi", "fedadagrad")),
    *(("aggregator", "fedavgm", {"momentum": value}, ("momentum", "0 to 1")) for value in (1.1, -0.1)),
    *(("aggregator", name, {"beta_1": 1.1}, ("beta_1", "0 to 1")) for name in ("fedadam", "fedyogi", "fedadagrad")),
    ("aggregator", "fedadam", {"beta_2": -1}, ("beta_2", "0 to 1")),
    ("aggregator", "fedyogi", {"tau": 0}, ("tau", "above 0")),
    *(("aggregator", name, {"f": f}, ("f", "at least 0")) for name in ("krum", "multi_krum") for f in (-1, 0.5, None)),
    ("aggregator", "multi_krum", {"f": 1, "keep": 0}, ("aggregation.edge.options.keep: got 0", "at least 1")),
    *(("aggregator", "trimmed_mean", {"share": share}, ("share", "0 to 0.5")) for share in (-0.1, 0.51, "0.2", None)),
    *(("compressor", "qsgd", {"levels": levels}, ("levels", "from 1 to 32767")) for levels in (0, 32768, 1.5)),
    *(("compressor", "top_k", {"share": share}, ("share", "above 0 and at most 1")) for share in (0, 1.1, "0.1")),
]  # fmt: skip


@pytest.mark.parametrize("kind, name, options, facts", REFUSED)
def test_a_value_that_a_part_does_not_accept_is_refused_in_one_line(kind, name, options, facts) -> None:
    refused(kind, name, options, *facts)
