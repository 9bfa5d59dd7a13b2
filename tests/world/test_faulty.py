"""hflray.world.faulty: who is faulty, what it sends, and what this does to rounds."""

from __future__ import annotations

import numpy as np
import pytest

from hflray import metrics
from hflray.world.faulty import Faulty
from tests.world.living import living, results

RECEIVED, MODEL = np.float32([1, 2, 3, 8]), np.float32([1.5, 2, 2, 9])  # the last number is a statistic


def sent(kind: str, strength: float = 1.0) -> np.ndarray:
    return Faulty(0.2, kind, strength).sent(MODEL, RECEIVED, 3, np.random.default_rng(3))


def test_a_flipped_update_goes_backwards_by_hand() -> None:
    np.testing.assert_array_equal(sent("sign_flip"), [0.5, 2, 4, 9])
    np.testing.assert_array_equal(sent("sign_flip", 4.0), [-1, 2, 7, 9])


def test_a_device_that_sends_nothing_new_sends_what_it_received() -> None:
    np.testing.assert_array_equal(sent("zero", 4.0), [1, 2, 3, 9])


def test_noise_has_the_length_of_the_update_and_another_direction_in_each_draw() -> None:
    noise = sent("noise", 2.0)[:3] - RECEIVED[:3]
    assert np.linalg.norm(noise) == pytest.approx(2 * np.linalg.norm((MODEL - RECEIVED)[:3]), rel=1e-6)
    other = Faulty(0.2, "noise", 2.0).sent(MODEL, RECEIVED, 3, np.random.default_rng(4))[:3] - RECEIVED[:3]
    assert not np.allclose(noise, other)


def test_the_devices_are_drawn_once_by_seed_and_more_of_them_include_the_fewer() -> None:
    masks = [Faulty(share, "zero", 1.0).devices(0, 50) for share in (0.2, 0.5, 1.0)]
    assert [int(mask.sum()) for mask in masks] == [10, 25, 50]
    assert (masks[1] | ~masks[0]).all()
    assert not np.array_equal(masks[0], Faulty(0.2, "zero", 1.0).devices(1, 50))


def test_a_world_without_faulty_devices_is_off() -> None:
    plain = results(living("max_rounds=1"))
    assert results(living("max_rounds=1", "world.faulty={share: 0}")) == plain


@pytest.mark.parametrize("kind", ["noise", "sign_flip", "zero"])
def test_faulty_devices_change_the_model_and_no_bill(kind: str) -> None:
    plain = living("max_rounds=1").run_round()
    faulty = living("max_rounds=1", f"world.faulty={{share: 0.5, kind: {kind}}}").run_round()
    assert faulty.model_hash != plain.model_hash
    assert faulty.cost.objective == pytest.approx(plain.cost.objective, rel=1e-12)
    assert set(metrics.WITH_A_WORLD) <= set(faulty.metrics())


def test_if_nobody_sends_anything_new_the_global_model_stays() -> None:
    experiment = living("max_rounds=1", "world.faulty={share: 1, kind: zero}")
    before = experiment.global_model.copy()
    experiment.run_round()
    np.testing.assert_allclose(experiment.global_model, before, rtol=1e-6)  # the mean of equal models is rounded
