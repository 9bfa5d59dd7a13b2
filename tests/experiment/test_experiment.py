"""hflray.experiment: Algorithm 6, its records, its state, and equal bits from every backend."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from hflray import errors, metrics
from hflray.config import load_config
from hflray.cost import round_cost
from hflray.errors import ConfigError, DivergedError
from hflray.experiment import Experiment
from hflray.experiment.parts_check import check_parts
from hflray.experiment.record import RoundRecord
from hflray.support import checkpoint
from hflray.training import kernels
from hflray.training.privacy import epsilon_of
from tests.conftest import refusal, refusals, small_config

LATE = ("allocation.method=equal", "clock.edge.deadline=0.9", "training.edge_iterations=3", "scheduling.name=fedavg")

INSIDE = (
    "training.rule.name=scaffold", "compression.device={name: top_k, options: {share: 0.1}}",
    "compression.edge.name=sign", "aggregation.cloud.name=fedadam", "max_rounds=4", "scheduling.name=round_robin",
)  # fmt: skip

PRIVATE = ("privacy={clip: 1e-3, noise_multiplier: 2.0}", "aggregation.weights=uniform", "scheduling.name=fedavg")


def hashes(*overrides: str) -> list[str]:
    with Experiment(small_config(*overrides), cpus=2) as experiment:
        return [record.model_hash for record in experiment]


def test_actors_give_the_bits_of_one_process(ray_session) -> None:
    settings = (*LATE, "data.partition=resampled")
    expected = hashes(*settings)
    assert len(set(expected)) == 3
    assert hashes(*settings, "training.backend=ray", "training.num_actors=2") == expected
    assert set(hashes(*settings, "seed=1")).isdisjoint(expected)


def test_a_record_holds_the_results_of_its_round() -> None:
    experiment = Experiment(small_config("fleet.num_edges=2"))
    first, second = experiment.run_round(), experiment.run_round()
    assert (first.round, second.round) == (1, 2)
    assert len(first.devices) == len(first.assignment) == 6
    assert hashlib.sha256(experiment.global_model.tobytes()).hexdigest() == second.model_hash != first.model_hash
    fleet = experiment.scenario.fleet
    assert first.samples_trained == fleet.samples[first.devices].sum() * 2  # L = 1, Q = 2
    again = round_cost(fleet, experiment.work, first.devices, first.assignment, first.allocation)
    assert again.objective == pytest.approx(first.cost.objective, rel=1e-12)  # this one multiplies by Q
    assert second.totals["energy_j"] == first.cost.energy_j + second.cost.energy_j
    assert second.totals["message_bits"] == 2 * (6 * 2 + 2) * experiment.work.model_bits

    values = second.metrics()
    assert set(metrics.PER_ROUND) <= set(values)
    assert set(second.schedule()) < metrics.COLUMNS
    edges = {metrics.edge_metric(m, quantity) for m in (0, 1) for quantity in ("delay_s", "energy_j", "devices")}
    assert set(values) == set(metrics.PER_ROUND) | edges
    assert values[metrics.ROUND_DELAY_S] == max(values["edge/0/delay_s"], values["edge/1/delay_s"])
    assert values["edge/0/devices"] + values["edge/1/devices"] == 6
    assert all(isinstance(value, float) for value in values.values())


def test_what_the_target_took_is_the_sum_over_the_rounds_up_to_it() -> None:
    """Discarded uploads are part of the bill."""
    limits = ("clock.edge.deadline=0.9", "allocation.method=equal", "max_rounds=20", "target_accuracy=0.4")
    experiment = Experiment(small_config("scheduling.name=fedavg", *limits))
    records = list(experiment)
    assert [record.accuracy >= 0.4 for record in records] == [False] * (len(records) - 1) + [True]
    assert len(records) > 1
    assert sum(record.timeline.wasted_j for record in records) > 0
    values = experiment.summary()
    assert values[metrics.ROUNDS_TO_TARGET] == len(records)
    assert values[metrics.DELAY_TO_TARGET_S] == pytest.approx(sum(record.cost.delay_s for record in records))
    assert values[metrics.ENERGY_TO_TARGET_J] == pytest.approx(sum(record.cost.energy_j for record in records))


def test_the_mini_model_makes_clustering_cheaper() -> None:
    """Uploading 447.9 KB instead of 9.7 KB takes 42.4 times the delay and 28.7 times the energy on this fleet.

    The paper's Table II has 41 and 29. tests/scheduling/test_clustering.py tests our runs of that table.
    """
    bills = {}
    for scheduler in ("ikc", "vkc"):
        experiment = Experiment(small_config(f"scheduling.name={scheduler}"))
        experiment.cluster()
        bills[scheduler] = experiment.clustering
    assert bills["vkc"]["delay_s"] / bills["ikc"]["delay_s"] == pytest.approx(42.4, rel=0.25)
    assert bills["vkc"]["energy_j"] / bills["ikc"]["energy_j"] == pytest.approx(28.7, rel=0.25)


@pytest.mark.parametrize(
    "scheduler, training",
    [
        ("ikc", ("training.local_iterations=5",)),
        ("vkc", ("training.local_iterations=10", "data.majority_fraction=0.9")),
    ],
)
def test_trained_weights_reveal_the_majority_classes(scheduler: str, training: tuple[str, ...]) -> None:
    """With two devices for each of ten classes, the ARI is 1.0 on seeds 0, 1 and 2 for both models."""
    size = ("scheduling.num_clusters=10", "fleet.num_devices=20", "data.samples_per_device=[50, 70]")
    experiment = Experiment(small_config(f"scheduling.name={scheduler}", *size, *training))
    experiment.cluster()
    assert experiment.clustering["ari"] > 0.8


def test_the_configuration_decides_the_bill_of_clustering() -> None:
    def bill(*settings: str) -> dict[str, float]:
        overrides = [f"scheduling.clustering_bill.{setting}" for setting in settings]
        experiment = Experiment(small_config("scheduling.name=ikc", "training.edge_iterations=3", *overrides))
        experiment.cluster()
        return experiment.clustering

    default, three, fast = bill(), bill("edge_iterations=Q"), bill("cpu=max")
    for name in ("delay_s", "energy_j"):
        assert three[name] == pytest.approx(3 * default[name], rel=1e-9)
    assert fast["delay_s"] < default["delay_s"]
    assert fast["energy_j"] > default["energy_j"]
    assert default["ari"] == three["ari"] == fast["ari"]


SAVED = {  # the settings of a run, and the round after which it is saved
    "before clustering": (("scheduling.name=ikc", "assignment.name=hfel", "scheduling.num_scheduled=5"), 0),
    "ikc": (("scheduling.name=ikc", "assignment.name=hfel", "scheduling.num_scheduled=5"), 1),
    "vkc": (("scheduling.name=vkc", "assignment.name=hfel", "scheduling.num_scheduled=5"), 2),
    "a deadline": (LATE, 1),
    "mlp": (("model={name: mlp, options: {hidden: [32], dropout: 0.2}}", "scheduling.name=ikc", "max_rounds=2"), 1),
    "all that varies inside a round": (INSIDE, 2),
    "privacy": (PRIVATE, 2),
    "a validation part": (("data.validation=60", "scheduling.name=fedavg"), 1),
    **{name: (("model.name=logistic", "scheduling.name=fedavg", *settings), 1) for name, settings in {
        "tdma": ("cost.access.name=tdma", "scheduling.name=ikc"),
        "tdma that fades": ("cost.access.name=tdma", "world.fading={name: rayleigh, coherence_s: 0.5}"),
        "ofdma": ("cost.access.name=ofdma", "scheduling.name=power_of_choice"),
        "broadcast": ("cost.download.name=broadcast", "clock.cloud={semi_synchronous: {period_s: 3}}"),
        "unicast to edges": ("cost.download.name=unicast", "clock.edge={asynchronous: {}}"),
        "unicast": ("cost.download.name=unicast", "clock.cloud={asynchronous: {}}", "scheduling.name=oort"),
        "regions": ("cost.download.name=unicast", "tree={region: {count: 2, iterations: 2}}",
                    "allocation.coupling=joint"),
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize("settings, at", SAVED.values(), ids=SAVED)
def test_a_saved_run_goes_on_bit_for_bit(settings: tuple[str, ...], at: int, tmp_path) -> None:
    config = small_config(*settings)
    whole, first, resumed = (Experiment(config) for _ in range(3))
    check_parts(whole)
    expected = [facts(record) for record in whole]
    for _ in range(at):
        first.run_round()
    checkpoint.save(tmp_path / "state", first.state_dict())
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    assert [facts(record) for record in resumed] == expected[at:]
    ours, theirs = resumed.training.arrays(), whole.training.arrays()
    assert sorted(ours) == sorted(theirs)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def facts(record: RoundRecord) -> tuple[object, ...]:
    """Return hash, metrics and schedule of a round, all but its measured seconds."""
    values = {name: value for name, value in record.metrics().items() if not name.startswith("wall/")}
    return record.model_hash, values, record.totals, record.schedule()


def test_a_state_of_another_run_is_refused() -> None:
    state = Experiment(small_config()).state_dict()
    with pytest.raises(ConfigError, match=r"training.learning_rate: .*0.01.*0.02"):
        Experiment(small_config("training.learning_rate=0.02")).load_state_dict(state)
    with pytest.raises(ConfigError, match="version 99"):
        Experiment(small_config()).load_state_dict(state | {"version": 99})
    Experiment(small_config("max_rounds=9", "training.num_actors=2")).load_state_dict(state)


@pytest.mark.parametrize(
    ("every", "key", "refused"),
    [("iteration", "edge_iterations", True), ("iteration", "batch_size", False), ("step", "batch_size", True),
     ("step", "local_iterations", True), ("step", "learning_rate", False), ("round", "edge_iterations", False)],
)  # fmt: skip
def test_a_decay_does_not_count_past_rounds_anew(every: str, key: str, refused: bool) -> None:
    """One setting counts all rounds, so that it cannot change between two of them."""
    decay = f"training.learning_rate_decay={{factor: 0.9, every: {every}}}"
    with Experiment(small_config(decay, "max_rounds=2")) as experiment:
        experiment.run_round()
        state = experiment.state_dict()
    changed, setting = Experiment(small_config(decay, "max_rounds=2", f"training.{key}=3")), f"training.{key}"
    if not refused:
        changed.load_state_dict(state, may_change=[setting])
        return
    with refusal(ConfigError, f"{setting}: got 3", "learning_rate_decay", every, "accepted"):
        changed.load_state_dict(state, may_change=[setting])


def test_a_state_continues_with_other_settings_that_may_change() -> None:
    state = Experiment(small_config("scheduling.name=fedavg"))
    state.run_round()
    state = state.state_dict()
    changed = small_config("scheduling.name=fedavg", "training.learning_rate=0.02", "training.local_iterations=2")
    allowed = ("training.learning_rate", "training.local_iterations", "training.batch_size")
    experiment = Experiment(changed)
    experiment.load_state_dict(state, may_change=allowed)
    changes = {"training.local_iterations": [1, 2], "training.learning_rate": [0.01, 0.02]}
    assert experiment.changes == [{"after_round": 1, "changed": changes}]
    second, third = experiment
    assert (second.round, second.changed, third.changed) == (2, changes, {})
    assert second.samples_trained == experiment.scenario.fleet.samples[second.devices].sum() * 2 * 2  # L = 2, Q = 2
    # The change is part of the state, and loading that state makes no further change.
    again = Experiment(changed)
    again.load_state_dict(experiment.state_dict(), may_change=allowed)
    assert again.changes == experiment.changes
    # The bits differ from those of the saved run, because the settings do.
    first = Experiment(small_config("scheduling.name=fedavg"))
    first.load_state_dict(state)
    assert first.run_round().model_hash != second.model_hash

    with pytest.raises(ConfigError, match=r"training.local_iterations: .*made with 1"):
        Experiment(changed).load_state_dict(state, may_change=("training.learning_rate",))
    with pytest.raises(ConfigError, match=r"seed: cannot change between rounds; accepted: training.learning_rate"):
        Experiment(changed).load_state_dict(state, may_change=("seed",))


def test_divergence_stops_the_run_and_keeps_the_state() -> None:
    experiment = Experiment(small_config("training.learning_rate=1e20", "scheduling.name=fedavg"))
    before = experiment.state_dict()
    with pytest.raises(DivergedError, match="round 1, edge iteration 0, device"):
        experiment.run_round()
    np.testing.assert_array_equal(experiment.state_dict()["global_model"], before["global_model"])
    assert experiment.round == 0


def test_measured_settings_are_settled_before_a_state_is_saved(monkeypatch) -> None:
    """The kernel is part of the state, so a run that is resumed on another machine uses the same kernel."""
    config = small_config("scheduling.name=fedavg")
    first = Experiment(config)
    state, fixed = first.state_dict(), kernels.fixed_kernel(first.problem)
    assert (state["config"]["training"]["kernel"], state["config"]["training"]["threads"]) == (fixed, 1)
    assert first.config.training.kernel == fixed

    # Elsewhere another kernel is the fastest, but the state decides ...
    monkeypatch.setattr(kernels, "fixed_kernel", lambda problem=None, precision="float32": "eager")
    assert Experiment(config).resolve().training.kernel == "eager"
    resumed = Experiment(config)
    resumed.load_state_dict(state)
    assert resumed.resolve().training.kernel == fixed
    # ... unless a kernel was asked for by name: then it is another run.
    with pytest.raises(ConfigError, match=rf"training.kernel: .*{fixed}.*eager"):
        Experiment(small_config("scheduling.name=fedavg", "training.kernel=eager")).load_state_dict(state)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_bf16_is_as_accurate_as_float32_over_ten_rounds_and_three_seeds(real_data, capsys) -> None:
    """The setting is the paper's on Fashion-MNIST with M = 5, but Q = 1, so that it takes some minutes."""
    accuracy: dict[str, list[list[float]]] = {"float32": [], "bf16": []}
    for precision, runs in accuracy.items():
        for seed in range(3):
            overrides = (
                "data.name=fashion_mnist", f"data.root={real_data}", "scheduling.name=fedavg", "max_rounds=10",
                "scheduling.num_scheduled=50", "assignment.name=geographic", "training.edge_iterations=1",
                "training.backend=serial", f"training.precision={precision}", f"seed={seed}",
            )  # fmt: skip
            with Experiment(load_config(None, list(overrides))) as experiment:
                runs.append([record.accuracy for record in experiment])
    difference = 100 * (np.array(accuracy["bf16"]) - np.array(accuracy["float32"]))
    with capsys.disabled():
        print(f"\nbf16 minus float32, points: mean {difference.mean():+.3f}, largest {np.abs(difference).max():.2f}")
    assert np.min(accuracy["float32"], axis=0)[-1] > 0.7
    assert abs(difference.mean()) < 0.2
    assert np.abs(difference).max() < 1.0


def test_a_device_that_is_late_is_billed_until_the_deadline_and_not_trained() -> None:
    experiment = Experiment(small_config(*LATE))
    record = experiment.run_round()
    late = ~record.timeline.participates.all(axis=0)
    assert 0 < late.sum() < 6
    planned = round_cost(
        experiment.scenario.fleet, experiment.work, record.devices, record.assignment, record.allocation
    )
    assert record.cost.delay_s < planned.delay_s
    assert record.cost.energy_j < planned.energy_j
    assert record.cost.message_bits < planned.message_bits
    values = record.metrics()
    assert values[metrics.ROUND_DISCARDED] == late.mean()
    assert 0 < values[metrics.ROUND_WASTED_J] < planned.energy_j
    assert set(values) > {*metrics.PER_ROUND, *metrics.names_logged("clock")}
    samples = experiment.scenario.fleet.samples[record.devices]
    assert record.samples_trained == samples[~late].sum() * 3  # L = 1, Q = 3
    whole = Experiment(small_config(*LATE, "clock.edge=all")).run_round()
    assert not whole.deviates
    assert not {*metrics.names_logged("clock")} & set(whole.metrics())
    assert whole.cost.delay_s == pytest.approx(planned.delay_s, rel=1e-12)
    assert whole.model_hash != record.model_hash


@pytest.mark.parametrize(
    "model, parameters",
    [("model.name=logistic", 7850), ("model={name: mlp, options: {hidden: [32], dropout: 0.2}}", 25_450)],
)
def test_another_network_is_billed_and_part_of_the_state(model: str, parameters: int) -> None:
    config = small_config(model, "scheduling.name=ikc", "max_rounds=2")
    experiment = Experiment(config)
    assert experiment.work.model_bits == 32 * parameters  # z follows from what is sent
    with pytest.raises(ConfigError, match=r"model.name: the saved state was made with 'mlp'|model.name: .*'logistic'"):
        Experiment(small_config("scheduling.name=ikc", "max_rounds=2")).load_state_dict(experiment.state_dict())


# What happens inside a round

CROWDED = ("fleet.num_edges=2", "scheduling.num_scheduled=8", "assignment.name=random", "scheduling.name=round_robin")


def test_sent_sizes_are_billed_and_logged_where_they_are_not_the_models() -> None:
    experiment = Experiment(small_config(*INSIDE, "max_rounds=1"))
    tensors, size = 8, len(experiment.global_model)
    top_k = np.ceil(0.1 * size) * (32 + np.ceil(np.log2(size)))
    assert experiment.work.device_bits == top_k + 32 * size / 2  # the variate travels whole, once in two uploads
    assert experiment.work.edge_bits == size + 32 * tensors + 32 * size
    record = experiment.run_round()
    assert record.cost.message_bits == 6 * 2 * experiment.work.device_bits + 3 * experiment.work.edge_bits
    schedule = record.schedule()
    assert (schedule["device_bits"], schedule["edge_bits"]) == (experiment.work.device_bits, experiment.work.edge_bits)
    restored = RoundRecord.of_state(json.loads(json.dumps(record.state_dict())))
    assert tuple(restored.sent_bits) == record.sent_bits
    plain = Experiment(small_config("max_rounds=1", "scheduling.name=round_robin")).run_round().schedule()
    assert not {"device_bits", "edge_bits"} & set(plain)


def test_a_timeline_bills_each_hop_with_its_own_size() -> None:
    """With a deadline that nobody misses, the bill is that of a round without one."""
    compressed = ("compression.device.name=sign", "max_rounds=1", "scheduling.name=round_robin")
    plain = Experiment(small_config(*compressed)).run_round().cost
    timed = Experiment(small_config(*compressed, "clock.edge.deadline_s=1e6")).run_round().cost
    for name in ("delay_s", "energy_j", "message_bits"):
        assert getattr(timed, name) == pytest.approx(getattr(plain, name), rel=1e-12)


def test_a_plan_with_too_few_devices_for_krum_is_refused_before_training() -> None:
    experiment = Experiment(
        small_config("aggregation.edge={name: krum, options: {f: 2}}", "scheduling.name=round_robin")
    )
    message = (
        r"aggregation\.edge\.name: krum needs 7 devices at each edge .* plan of round 1 gives edge \d only \d; acc"
    )
    with pytest.raises(ConfigError, match=message):
        experiment.run_round()
    assert experiment.round == 0


def test_edge_iterations_with_too_few_models_are_counted() -> None:
    krum = (*CROWDED, "aggregation.edge={name: krum, options: {f: 0}}", "max_rounds=1")
    assert Experiment(small_config(*krum)).run_round().metrics()[metrics.ROUND_TOO_FEW] == 0
    hurried = Experiment(small_config(*krum, "clock.edge.first=2", "world.compute_jitter.sigma=0.5"))
    record = hurried.run_round()
    assert (record.timeline.participates.sum(axis=1) == 4).all()  # two of each edge
    assert record.metrics()[metrics.ROUND_TOO_FEW] == 2 * 2
    assert (
        metrics.ROUND_TOO_FEW
        not in Experiment(small_config("max_rounds=1", "scheduling.name=round_robin")).run_round().metrics()
    )


def test_too_much_memory_of_devices_is_refused_before_round_1(monkeypatch) -> None:
    monkeypatch.setattr("hflray.experiment.experiment.memory_bytes", lambda: (2**20, 2**19))
    Experiment(small_config())
    with pytest.raises(
        ConfigError, match=r"would keep 0\.0 GiB .* for fleet\.num_devices = 12; accepted: .* lower fleet"
    ):
        Experiment(small_config("training.rule.name=scaffold"))


def test_privacy_is_logged_and_its_counts_are_part_of_the_state() -> None:
    experiment = Experiment(small_config(*PRIVATE))
    first, second = experiment.run_round(), experiment.run_round()
    k = [np.bincount(record.devices, minlength=12) * 2 for record in (first, second)]  # Q = 2
    values = [record.metrics()[metrics.PRIVACY_EPSILON] for record in (first, second)]
    assert values == [epsilon_of(np.sqrt(each.max()) / 2, 1e-5) for each in (k[0], k[0] + k[1])]
    np.testing.assert_array_equal(experiment.state_dict()["privacy.releases"], k[0] + k[1])


def test_an_upload_counts_also_where_its_edge_failed_later() -> None:
    world = ("world.edge_failure={mtbf_s: 3, mttr_s: 1}", "max_rounds=8")
    experiment = Experiment(small_config(*PRIVATE, *world))
    releases, lost = np.zeros(12, dtype=int), 0
    for record in experiment:
        happens = record.timeline
        np.add.at(releases, record.devices, happens.arrived.sum(axis=0))
        lost += int((happens.arrived & ~happens.participates).sum())
        assert record.metrics()[metrics.PRIVACY_EPSILON] == epsilon_of(np.sqrt(releases.max()) / 2, 1e-5)
    assert lost > 0
    np.testing.assert_array_equal(experiment.state_dict()["privacy.releases"], releases)


def test_a_run_ends_before_the_round_that_would_exceed_its_epsilon() -> None:
    settings = (*PRIVATE, "scheduling.name=power_of_choice", "max_rounds=8")
    free = list(Experiment(small_config(*settings)))
    spent = {record.round: record.metrics()[metrics.PRIVACY_EPSILON] for record in free}
    limit = spent[4]
    last = max(index for index, epsilon in spent.items() if epsilon <= limit)
    assert last < 8
    limited = Experiment(small_config(*settings, f"target.epsilon={limit!r}"))
    records = list(limited)
    assert len(records) == last
    assert limited.finished
    assert [record.model_hash for record in free[:last]] == [record.model_hash for record in records]
    resumed = Experiment(small_config(*settings, f"target.epsilon={limit!r}"))
    resumed.load_state_dict(limited.state_dict())
    assert resumed.finished
    more = Experiment(small_config(*settings, f"target.epsilon={spent[last + 1]!r}"))
    more.load_state_dict(limited.state_dict())
    assert not more.finished
    assert more.run_round().metrics()[metrics.PRIVACY_EPSILON] == spent[last + 1]


def test_masks_of_secure_aggregation_are_billed_and_change_no_bits_of_the_model() -> None:
    settings = ("cost.secure_aggregation={key_bits: 256, shares: 5}", "scheduling.name=fedavg", "max_rounds=1")
    plain, masked = Experiment(small_config(*settings[1:])), Experiment(small_config(*settings))
    records = [each.run_round() for each in (plain, masked)]
    assert records[0].model_hash == records[1].model_hash
    assert masked.work.device_bits == plain.work.device_bits + 256 * 18
    assert records[1].sent_bits == (masked.work.device_bits, masked.work.edge_bits)
    assert records[1].cost.energy_j > records[0].cost.energy_j
    scaled = Experiment(small_config(*settings, "cost.model_kb=1"))
    assert scaled.work.device_bits == 8192 + 256 * 18


@pytest.mark.parametrize("overrides, error, facts", refusals("experiment"))
def test_what_cannot_be_is_one_line_before_anything_starts(overrides: str, error: str, facts: list[str]) -> None:
    quick = ("model.name=logistic", "scheduling.name=fedavg", "assignment.name=best_gain")
    with refusal(getattr(errors, error), *facts):
        experiment = Experiment(small_config(*quick, *overrides.split("; ")))
        experiment.resolve()
        check_parts(experiment)
