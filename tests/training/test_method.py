"""hflray.training.method: the bits that are sent, what is kept, and what does not go together."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hflray import registry
from hflray.compression import Compressor, Whole
from hflray.compression.lossy import Sign
from hflray.errors import ConfigError
from hflray.training.method import Method, RateDecay, Spec
from hflray.training.privacy import Mechanism
from hflray.training.rules.fednova import effective_steps
from tests.conftest import refusal

SIZES, STATISTICS = (60, 40), 5
WHOLE = 32.0 * 105


def compressor(name: str, **options: Any) -> Spec:
    return Spec("compressor", name, json.dumps(options))


def test_a_plain_method_sends_whole_models_on_both_hops() -> None:
    assert Method().sent_bits("device", SIZES, STATISTICS) == Method().sent_bits("edge", SIZES, STATISTICS) == WHOLE


@pytest.mark.parametrize(
    "name, options, bits",
    [("qsgd", {"levels": 7}, 4 * 100 + 64), ("top_k", {"share": 0.1}, 10 * 39), ("sign", {}, 100 + 64)],
)
def test_each_hop_has_its_own_size_and_statistics_travel_whole(name: str, options: dict[str, Any], bits: int) -> None:
    spec = compressor(name, **options)
    device, edge = Method(device_compressor=spec), Method(edge_compressor=spec)
    assert (
        device.sent_bits("device", SIZES, STATISTICS)
        == edge.sent_bits("edge", SIZES, STATISTICS)
        == bits + 32 * STATISTICS
    )
    assert device.sent_bits("edge", SIZES, STATISTICS) == edge.sent_bits("device", SIZES, STATISTICS) == WHOLE
    assert device.parts().adds_totals
    assert not edge.parts().adds_totals


@pytest.mark.parametrize(
    "rule, vectors",
    [
        ("sgd", (0, 0)),
        ("fedprox", (0, 0)),
        ("scaffold", (1, 1)),
        ("fednova", (0, 0)),
        ("mtgc", (0, 0)),
        ("feddyn", (0, 1)),
    ],
)
def test_vectors_of_a_rule_travel_whole(rule: str, vectors: tuple[int, int]) -> None:
    method = Method(rule=Spec("local_rule", rule), uniform=True, edge_compressor=compressor("sign"))
    assert method.sent_bits("device", SIZES, STATISTICS) == WHOLE + 3200 * vectors[0]
    assert method.sent_bits("edge", SIZES, STATISTICS) == 164 + 3200 * vectors[1] + 32 * STATISTICS
    in_five = method.sent_bits("device", SIZES, STATISTICS, edge_iterations=5)  # SCAFFOLD sends its vector once a round
    assert in_five == WHOLE + (3200 / 5 if rule == "scaffold" else 0)


@pytest.mark.parametrize("rule", ["scaffold", "feddyn"])
def test_an_edge_sends_its_vector_once_a_round_however_often_its_region_combines(rule: str) -> None:
    """Its sum is known after the last edge iteration; a region's, which is the cloud's, is one a round too."""
    method = Method(rule=Spec("local_rule", rule), uniform=True, region_iterations=4)
    assert 4 * method.sent_bits("edge", SIZES, STATISTICS, edge_iterations=20) == 4 * WHOLE + 3200
    assert method.sent_bits("region", SIZES, STATISTICS, edge_iterations=20) == WHOLE + 3200


def test_a_compressor_that_sends_more_than_the_model_is_refused() -> None:
    method = Method(edge_compressor=compressor("top_k", share=0.9))
    message = r"compression\.edge\.name: top_k sends 3,510 bits for an update of 3,200; accepted: .* set it to none"
    with pytest.raises(ConfigError, match=message):
        method.sent_bits("edge", SIZES, STATISTICS)


def test_what_is_kept_between_rounds_in_bytes() -> None:
    def kept(rule: str, **more: Any) -> int:
        return Method(rule=Spec("local_rule", rule), uniform=True, **more).kept_bytes(100, 50, 5)

    assert [kept(rule) for rule in ("sgd", "scaffold", "feddyn", "mtgc")] == [0, 50 * 400, 50 * 400, 0]
    assert kept("scaffold", device_compressor=compressor("top_k")) == 2 * 50 * 400
    assert kept("sgd", edge_compressor=compressor("sign")) == 5 * 400
    assert kept("sgd", edge_compressor=compressor("qsgd")) == 0


def test_a_part_that_is_no_compressor_is_refused(monkeypatch) -> None:
    class Other:
        pass

    monkeypatch.setitem(registry._ADDED, ("compressor", "other"), Other)
    with pytest.raises(ConfigError, match=f"other is not a {Compressor.__name__}, which every compressor is"):
        Method(device_compressor=compressor("other")).parts()


def test_a_name_that_is_registered_again_builds_the_new_class(monkeypatch) -> None:
    for made in (Whole, Sign):
        monkeypatch.setitem(registry._ADDED, ("compressor", "mine"), None)
        registry.register("compressor", "mine", made)
        assert type(Method(device_compressor=compressor("mine")).parts().device_compressor) is made


PRIVATE = {"uniform": True, "privacy": Mechanism(1.0, 2.0)}


def rule(name: str, **options: Any) -> dict[str, Spec]:
    return {"rule": Spec("local_rule", name, json.dumps(options))}


def aggregator(place: str, name: str, **options: Any) -> dict[str, Spec]:
    return {place: Spec("aggregator", name, json.dumps(options))}


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({**PRIVATE, "uniform": False}, ("aggregation.weights: got samples", "privacy.clip = 1", "uniform")),
    (PRIVATE | aggregator("edge", "median"), ("aggregation.edge.name: got median", "privacy.clip = 1", "mean")),
    (PRIVATE | rule("scaffold"), ("training.rule.name: got scaffold", "privacy.clip = 1", "fedprox")),
    (PRIVATE | rule("feddyn"), ("training.rule.name: got feddyn", "privacy.clip = 1", "fedprox")),
    (
        {"hides": True} | aggregator("edge", "krum", f=1),
        ("aggregation.edge.name: got krum", "cost.secure_aggregation.shares", "mean"),
    ),
    (
        {"hides": True, "device_compressor": compressor("top_k")},
        ("compression.device.name: got top_k", "cost.secure_aggregation.shares", "none"),
    ),
    (rule("feddyn"), ("training.rule.name", "feddyn", "aggregation.weights = uniform")),
    (
        {"uniform": True} | rule("feddyn") | aggregator("cloud", "fedadam"),
        ("aggregation.cloud.name: got fedadam", "feddyn", "mean"),
    ),
    (
        {"uniform": True, "device_compressor": compressor("sign")} | rule("feddyn"),
        ("compression.device.name: got sign", "feddyn", "whole models", "none"),
    ),
    *(
        ({"decay": RateDecay(0.5, every)} | rule("fednova"), ("learning_rate_decay.every", every, "fednova", "round"))
        for every in ("step", "iteration")
    ),
    ({"momentum": 0.3} | rule("of your own"), ("training.momentum: got 0.3", "a function of your own", "the default")),
    (rule("of your own", foo=1), ("training.rule.name", "of your own cannot be called with", "'foo'")),
]


@pytest.mark.parametrize("changes, facts", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(monkeypatch, changes, facts: tuple[str, ...]) -> None:
    monkeypatch.setitem(registry._ADDED, ("local_rule", "of your own"), lambda module, batches, loss, rate, rng: None)
    with refusal(ConfigError, *facts):
        Method(**changes).parts()


def test_fednova_goes_with_a_rate_that_falls_after_rounds() -> None:
    assert all(
        Method(**rule("fednova"), decay=RateDecay(*decay)).parts().scales for decay in ((0.5, "round"), (1.0, "step"))
    )


def test_privacy_refuses_statistics_that_would_be_sent_without_noise() -> None:
    method = Method(**PRIVATE)
    with pytest.raises(ConfigError, match=r"training\.buffers: got average with privacy.* the 5 statistics .*: local"):
        method.sent_bits("device", SIZES, STATISTICS)
    assert method.sent_bits("device", SIZES, 0) == 3200


@pytest.mark.parametrize("rule_name", ["sgd", "fedprox", "fednova", "mtgc"])
@pytest.mark.parametrize("name", ["none", "qsgd", "top_k", "sign"])
def test_privacy_goes_with_what_acts_before_the_clipping_or_after_the_noise(rule_name: str, name: str) -> None:
    method = Method(
        rule=Spec("local_rule", rule_name),
        momentum=0.5,
        device_compressor=compressor(name),
        edge_compressor=compressor(name),
        cloud=Spec("aggregator", "fedadam") if rule_name == "sgd" else Spec("aggregator", "mean"),
        **PRIVATE,
    )
    assert method.parts().edge.linear


def test_the_rate_of_a_constant_gradient_by_hand() -> None:
    """ρ = 0.5, β = 0.1, K = 3: the moves are 0.1, 0.15 and 0.175 times the gradient, 0.425 together."""
    assert Method(momentum=0.5).total_rate(np.full(3, 0.1)) == pytest.approx(0.425, rel=1e-12)
    # With a falling rate: v = 0.1, then 0.05 + 0.05.
    assert Method(momentum=0.5).total_rate(np.array([0.1, 0.05])) == pytest.approx(0.2, rel=1e-12)
    assert Method().total_rate(np.full(3, 0.1)) == np.full(3, 0.1).sum()
    assert Method(momentum=0.9).total_rate(np.zeros(0)) == 0.0


def test_it_is_the_effective_number_of_steps_of_fednova() -> None:
    for steps in (1, 2, 7):
        expected = 0.1 * effective_steps(np.array([float(steps)]), 0.9)[0]
        assert Method(momentum=0.9).total_rate(np.full(steps, 0.1)) == pytest.approx(expected, rel=1e-12)
