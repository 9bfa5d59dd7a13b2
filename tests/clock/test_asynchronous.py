"""hflray.clock.asynchronous: the shares of updates, with the numbers of design-next.md, example 1."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.clock.asynchronous import MIXING, STEP, Asynchrony, fedat_shares
from hflray.config.clock import AsynchronousConfig
from tests.conftest import small_config


def of(**settings: object) -> Asynchrony:
    return Asynchrony.of(AsynchronousConfig.model_validate(settings), num_edges=4)


def test_the_defaults_are_those_of_the_design() -> None:
    assert of() == Asynchrony(4, MIXING, 0.5, None, True, 1, False)
    assert (of(updates=7).updates, of(buffer=3).mixing, of(buffer=3, mixing=0.5).mixing) == (7, STEP, 0.5)


def test_a_fresh_update_is_not_damped_as_if_stale() -> None:
    assert of().damping(0) == of(staleness=3).damping(0) == 1.0
    assert of().share(200, 200, 0) == MIXING


@pytest.mark.parametrize(("staleness", "damping"), [(0, 1.0), (1, 1.0), (2, 1 / 3), (3, 1 / 5)])
def test_the_hinge_is_flat_until_b(staleness: int, damping: float) -> None:
    assert of(staleness={"hinge": [2, 1]}).damping(staleness) == pytest.approx(damping)


def test_the_shares_of_the_worked_example() -> None:
    shares = [of().share(weight, 200, staleness) for weight, staleness in ((300, 0), (100, 1), (300, 1), (100, 2))]
    assert shares == pytest.approx([0.9, 0.2121, 0.6364, 0.1732], abs=5e-5)
    assert of(mixing=0.8).share(300, 200, 0) == 1.0  # and not 1.2
    assert of(weight="none").share(300, 200, 0) == MIXING


def test_a_buffer_divides_its_step_among_the_updates() -> None:
    assert of(buffer=3, mixing=0.6).share(300, 200, 3) == pytest.approx(0.2 / 2)


def test_slow_edges_weigh_more_with_fedat() -> None:
    assert fedat_shares({0: 3, 1: 1, 2: 2}) == {1: 0.5, 2: 2 / 6, 0: 1 / 6}
    assert fedat_shares({0: 2, 1: 2, 2: 1}) == {2: 0.4, 0: 0.4, 1: 0.2}  # the lower edge wins the tie
    assert np.isclose(sum(fedat_shares({0: 5, 3: 2, 7: 2}).values()), 1.0)


@pytest.mark.parametrize("cloud", ["synchronous", "asynchronous", "{asynchronous: {staleness: {hinge: [2, 1]}}}"])
def test_a_clock_survives_json(cloud: str) -> None:
    config = small_config(f"clock.cloud={cloud}")
    assert type(config).model_validate(config.model_dump(mode="json")) == config
    assert config.clock.is_on == (cloud != "synchronous")
