"""hflray.experiment.target: when a run stops, and a metric of the user's own, by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from hflray import metrics, registry
from hflray.config import ExperimentConfig
from hflray.data import Dataset
from hflray.errors import ConfigError, DivergedError
from hflray.experiment import Experiment, Scenario
from hflray.experiment.target import Target, UserMetric
from hflray.models import build
from hflray.models.vector import load_vector
from hflray.training.job import ModelEvaluation
from tests.conftest import own_module, refusal, refusals, small_config

OWN = own_module("metrics")


LINE = 2 + OWN.splitlines().index("    targets[:] = 0")  # the line of the file that fails


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """Work in a folder with the file ``own.py``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    return tmp_path / "own.py"


def classes(y_test: list[int]) -> Dataset:
    x = np.arange(6.0)[:, None]
    return Dataset.of(x, [0, 1, 2, 0, 1, 2], x[: len(y_test)], y_test, kind="classification")


def numbers() -> Dataset:
    x = np.arange(4.0)[:, None]
    return Dataset.of(x, [10.0, 20.0, 30.0, 40.0], x[:2], [10.0, 30.0], kind="regression")


def small(*overrides: str) -> ExperimentConfig:
    return small_config("scheduling.name=fedavg", "assignment.name=geographic", *overrides)


def ends(target: Target, **values: float) -> bool:
    """Return whether the target ends a run after a round with these metrics."""
    totals = {"objective": 1.0, "delay_s": 4.0, "energy_j": 2.0}
    target.after(cast("Any", SimpleNamespace(metrics=lambda: values, totals=totals, round=3)))
    return target.stops()


def test_the_target_is_that_of_the_kind() -> None:
    for override in ("target_accuracy=0.7", "target.value=0.7"):
        target = Target.of(small_config(override), classes([0, 1]))
        assert (target.metric, target.value, target.users) == (metrics.ACCURACY, 0.7, None)
    reached = Target.of(small_config("target={metric: r2, value: 0.7}"), numbers())
    assert ends(reached, r2=0.7)
    x = np.arange(6)[:, None]
    tokens = Dataset.of(x, x[:, 0], x, x[:, 0], kind="next_token")
    assert not ends(Target.of(small_config("target.value=0.7"), tokens), token_accuracy=0.69)
    loss = Target.of(small_config("target={metric: test_loss, value: 0.7}"), numbers())
    assert not ends(loss, test_loss=0.71)
    assert not ends(
        Target.of(small_config("target.value=0.7"), tokens), token_accuracy=0.9, validation_token_accuracy=0.6
    )
    assert ends(loss, test_loss=0.7)
    assert not ends(Target.of(small_config(), numbers()), r2=1.0)
    assert (reached.summary()["rounds_to_target"], reached.summary()["delay_s_to_target"]) == (3, 4)


@pytest.mark.parametrize(
    "override, text",
    [
        ("target_accuracy=0.5", "target_accuracy: got 0.5, but data of the kind regression have no accuracy"),
        ("target={metric: accuracy, value: 1}", "target.metric: got 'accuracy' for data of the kind regression; "
         "accepted: r2, test_loss, or a function"),
    ],
)  # fmt: skip
def test_a_target_that_the_data_do_not_have_is_refused(override: str, text: str) -> None:
    with refusal(ConfigError, text):
        Target.of(small_config(override), numbers())


def test_a_metric_of_classes_by_hand(own) -> None:
    dataset = classes([0, 1, 1, 2])
    answers = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]]
    # Class 0 is always right: 1. Of two samples of class 1 one is found, and never wrongly: 2·1/(1 + 2). Class 2 is
    # answered twice and right once: 2·1/(2 + 1).
    metric = UserMetric.of(small("target.metric=own.py:macro_f1"), dataset)
    assert metric is not None
    assert metric.value([answers[:1], answers[1:]]) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3, rel=1e-15)
    recall = UserMetric.of(small("target.metric=own.py:recall_of_class_1"), dataset)
    assert recall is not None
    assert recall.value([answers]) == 0.5


def test_a_metric_of_a_regression_is_in_the_users_unit(own) -> None:
    metric = UserMetric.of(small("target.metric=own.py:minus_mae"), numbers())
    assert metric is not None
    # The network answers in deviations from the mean: 25 and 25 + √125 are wrong by 15 and by 6.18.
    value = metric.value([np.array([[0.0], [1.0]], dtype=np.float32)])
    assert value == pytest.approx(-(15 + (np.sqrt(125) - 5)) / 2, rel=1e-6)


@pytest.mark.parametrize("name, facts", refusals("experiment/metrics_of_ones_own"))
def test_a_function_that_is_no_metric_is_one_line(own, name: str, facts: tuple[str, ...]) -> None:
    dataset = classes([0, 1, 1, 2])
    targets = dataset.y_test.copy()
    with refusal(ConfigError, *facts):
        UserMetric.of(small(f"target.metric=own.py:{name}"), dataset)
    np.testing.assert_array_equal(dataset.y_test, targets)  # whatever the function did with its arguments


def test_tensors_and_numpys_numbers_are_numbers(monkeypatch) -> None:
    for value in (torch.tensor(0.25), np.float32(0.25), np.array(0.25), 0.25):
        monkeypatch.setitem(registry._ADDED, ("metric", "mine"), lambda outputs, targets, value=value: value)
        metric = UserMetric.of(small("target.metric=mine"), classes([0, 1]))
        assert metric is not None
        assert metric.value([np.zeros((2, 3), dtype=np.float32)]) == 0.25


@pytest.mark.parametrize("override, facts", refusals("experiment/names_of_metrics"))
def test_a_name_that_cannot_be_logged_is_refused(own, override: str, facts: tuple[str, ...]) -> None:
    with refusal(ConfigError, *facts):
        small(f"target.metric={override}")


def outputs_of(experiment: Experiment) -> np.ndarray:
    """Return the outputs of the global model for the test set, computed without hflray's training."""
    data = experiment.scenario.device_data()
    module = build(experiment.problem)
    load_vector(module, experiment.global_model)
    pixels = torch.from_numpy(data.x_test).float() / 255
    mean, std = (torch.from_numpy(each).view(1, -1, 1, 1) for each in (data.channel_mean, data.channel_std))
    with torch.no_grad():
        return module.eval()((pixels - mean) / std).numpy()


def test_a_run_stops_at_the_target_of_a_metric_of_ones_own(own) -> None:
    config = small("target={metric: 'own.py:macro_f1', value: 0.3}", "max_rounds=20", "training.learning_rate=0.1")
    scope: dict[str, object] = {}
    exec(OWN, scope)
    values = []
    with Experiment(config) as experiment:
        for record in experiment:
            y = experiment.scenario.dataset.y_test
            expected = scope["macro_f1"](outputs_of(experiment), y)  # type: ignore[operator]
            values.append(record.metrics()["macro_f1"])
            assert values[-1] == pytest.approx(expected, abs=0.02)  # another kernel may answer a few samples otherwise
            assert record.metrics()[metrics.ACCURACY] == record.accuracy
        assert experiment.summary()[metrics.ROUNDS_TO_TARGET] == len(values)
    assert values[-1] >= 0.3 > max(values[:-1])
    assert len(values) < 20


def test_a_metric_without_a_value_is_logged_and_changes_nothing_else(own) -> None:
    with (
        Experiment(small("max_rounds=2")) as plain,
        Experiment(small("max_rounds=2", "target.metric=own.py:macro_f1")) as one,
    ):
        for usual, record in zip(plain, one, strict=True):
            logged = record.metrics()
            assert 0 <= logged.pop("macro_f1") <= 1
            assert record.model_hash == usual.model_hash
            usually = usual.metrics()
            assert {k: v for k, v in logged.items() if not k.startswith("wall/")} == {
                k: v for k, v in usually.items() if not k.startswith("wall/")
            }
        assert one.summary() == plain.summary()


def test_a_run_goes_on_with_the_same_function_only(own) -> None:
    def config(*more: str) -> ExperimentConfig:
        return small("target={metric: 'own.py:macro_f1', value: 0.9}", "max_rounds=3", *more)

    whole = [record.metrics()["macro_f1"] for record in Experiment(config())]
    first = Experiment(config())
    first.run_round()
    state = first.state_dict()
    later = Experiment(config())
    later.load_state_dict(state)
    assert [record.metrics()["macro_f1"] for record in later] == whole[1:]
    Experiment(small("max_rounds=3")).load_state_dict(state)  # a target may change, and so may another metric come
    Experiment(small("max_rounds=3", "target.metric=own.py:recall_of_class_1")).load_state_dict(state)
    reached = Experiment(small("target_accuracy=0.01", "max_rounds=3"))
    reached.run_round()
    assert reached.ended_by
    higher = Experiment(small("target_accuracy=0.99", "max_rounds=3"))
    higher.load_state_dict(reached.state_dict())  # it ended at once, at a target that was no longer its own
    assert [record.round for record in higher] == [2, 3]
    own.write_text(OWN.replace("np.mean(scores)", "np.max(scores)"))
    with pytest.raises(ConfigError, match=r"^target.metric: the saved state was made with 'own.py:macro_f1@sha256:"):
        Experiment(config()).load_state_dict(state)


def test_a_run_goes_on_with_the_same_option_only_also_where_one_is_null() -> None:
    """A null was taken for an absent option, and the run went on with the default of 2."""
    scheduler = "scheduling={name: joint_cost, num_scheduled: 4, options: OPTIONS}"
    first = Experiment(small_config(scheduler.replace("OPTIONS", "{}"), "max_rounds=2"))
    first.run_round()
    other = Experiment(small_config(scheduler.replace("OPTIONS", "{max_wait: null}"), "max_rounds=2"))
    with pytest.raises(ConfigError, match=r"^scheduling\.options\.max_wait: the saved state was made with "):
        other.load_state_dict(first.state_dict())


def test_a_model_that_diverges_is_said_to_and_not_the_metric_that_it_breaks(own) -> None:
    own.write_text("def f(outputs, targets):\n    assert abs(outputs).max() < 1e6\n    return 0.5\n")
    experiment = Experiment(small("target.metric=own.py:f"))
    diverged = ModelEvaluation(0.1, float("nan"), [])
    experiment.hierarchy.evaluate = lambda model, keeps_outputs, part: diverged  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match="round 1: the test loss is nan"):
        experiment.run_round()


def odd_test_labels() -> Dataset:
    """Two classes apart in one feature; the labels of the test set are the other way round."""
    x = np.random.default_rng(0).normal(0, 0.3, (400, 2))
    y = np.arange(400) % 2
    x[:, 0] += 2 * y
    return Dataset.of(x[:300], y[:300], x[300:], 1 - y[300:])


def validated(*overrides: str) -> Experiment:
    config = small("model.name=logistic", "data.samples_per_device=[10, 15]", "data.validation=60", *overrides)
    return Experiment(config, Scenario.build(config, dataset=odd_test_labels()))


@pytest.mark.parametrize("target", ["target_accuracy=0.9", "target={metric: test_loss, value: 0.5}"])
def test_a_target_is_judged_on_the_validation_part_and_the_test_set_is_reported(target) -> None:
    experiment = validated("training.learning_rate=0.5", target)
    records = list(experiment)
    values = records[-1].metrics()
    assert experiment.summary()[metrics.ROUNDS_TO_TARGET] == len(records) < 3
    assert values["validation_accuracy"] > 0.9 > 0.1 > values["accuracy"] == records[-1].accuracy
    assert values["validation_loss"] < 0.5 < values["test_loss"]
    config = experiment.config.model_copy(update={"data": experiment.config.data.model_copy(update={"validation": 0})})
    without = Experiment(config, Scenario.build(config, dataset=odd_test_labels()))
    assert len(list(without)) == 3
    assert not without.summary()


def test_the_validation_part_has_the_scores_of_its_own_samples() -> None:
    experiment = validated()
    record, dataset, rows = experiment.run_round(), experiment.scenario.dataset, experiment.scenario.validation
    network = build(experiment.problem, 0)
    load_vector(network, experiment.global_model)
    with torch.no_grad():
        outputs = network(torch.from_numpy(dataset.x_train[rows]))
    hits = outputs.argmax(1).numpy() == dataset.y_train[rows]
    assert record.conditions["validation_accuracy"] == hits.mean()
    loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(dataset.y_train[rows]))
    assert record.conditions["validation_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_a_scheduler_that_looks_at_the_accuracy_sees_that_of_the_validation_part() -> None:
    experiment = validated("training.learning_rate=0.5")
    observed = []
    scheduler = experiment.scheduler
    scheduler.needs = frozenset({metrics.ACCURACY})  # type: ignore[misc]
    scheduler.observe = observed.append  # type: ignore[method-assign]
    record = experiment.run_round()
    assert observed[0].accuracy == record.conditions["validation_accuracy"] != record.accuracy


def test_a_run_goes_on_with_the_same_validation_part_only() -> None:
    with pytest.raises(ConfigError, match=r"data\.validation: the saved state was made with 60"):
        validated("data.validation=50").load_state_dict(validated().state_dict())
