"""Fine-tuning follows the exact gradient in the mean, improves a policy, resumes bit for bit, and needs a limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hflray.assignment.policy import load_policy, save_policy
from hflray.assignment.state import assigned_objective
from hflray.config import FleetConfig
from hflray.errors import ConfigError
from hflray.rl import fine_tuning as module
from hflray.rl.command import main
from hflray.rl.fine_tuning import CostGradient, batch_of, evaluate, finetune
from hflray.rl.fleets import FleetSpec
from hflray.rl.portable import flatten, restore
from hflray.rl.solved_fleets import read_spec
from hflray.support import checkpoint
from tests.rl.small import tiny_network

pytestmark = pytest.mark.usefixtures("one_thread")


def test_fine_tuning_improves_random_weights(fleets):
    net = tiny_network()
    before, ratios = evaluate(net, fleets[30:]), []
    summary = finetune(
        net, fleets[:20], fleets[20:30], fleets[30:], updates=60, learning_rate=3e-3, batch=8,
        report=lambda updates, seconds, figures: ratios.append(figures["mean_ratio"]),
    )  # fmt: skip
    after = evaluate(net, fleets[30:])
    assert (summary["before"], summary["after"]) == (before, after)  # on the fleets that nothing is chosen on
    assert after["mean_ratio"] < before["mean_ratio"]
    # The network ends as the best snapshot on the choosing fleets.
    assert evaluate(net, fleets[20:30])["mean_ratio"] == min(ratios)
    assert (summary["updates"], summary["fleets_reported_on"]) == (60, 10)


def test_the_reporting_fleets_do_not_choose_the_snapshot(fleets, monkeypatch):
    # The same snapshot is chosen for any reporting fleets, and training does not evaluate on them in between.
    nets, evaluated = [tiny_network(), tiny_network()], []
    monkeypatch.setattr(
        module, "evaluate", lambda net, subset: evaluated.append(list(map(id, subset))) or evaluate(net, subset)
    )
    for net, unseen in zip(nets, (fleets[16:18], fleets[18:20]), strict=True):
        finetune(net, fleets[:12], fleets[12:16], unseen, updates=20, learning_rate=3e-2, batch=4)
        on_unseen = [number for number, subset in enumerate(evaluated) if subset == list(map(id, unseen))]
        assert on_unseen == [0, len(evaluated) - 1]
        evaluated.clear()
    assert all(torch.equal(a, b) for a, b in zip(*(net.state_dict().values() for net in nets), strict=True))


def test_a_run_resumes_from_its_folder(fleets, tmp_path):
    parts = fleets[:8], fleets[8:12], fleets[12:14]
    first = finetune(tiny_network(), *parts, updates=4, batch=2, folder=tmp_path)
    summary = finetune(tiny_network(3), *parts, updates=8, batch=2, folder=tmp_path, resume=True)
    assert summary["updates"] == 8
    assert summary["before"] == first["before"]  # of the first network, not of the resumed one
    with pytest.raises(ConfigError, match="resume"):
        finetune(tiny_network(), *parts, updates=4, folder=tmp_path / "empty", resume=True)


def test_a_limit_is_needed(fleets):
    with pytest.raises(ConfigError, match=r"updates nor minutes"):
        finetune(tiny_network(), fleets, fleets, fleets)


@pytest.mark.parametrize(
    ("given", "limits"),
    [((), (None, 10)), (("--updates", "5"), (5, None)), (("--updates", "5", "--minutes", "2"), (5, 2))],
)
def test_both_limits_of_the_command_hold(given, limits, monkeypatch):
    seen = {}

    def record(*_, updates, minutes, **__):
        seen.update(limits=(updates, minutes))
        return {"before": {"mean_ratio": 1.0}, "after": {"mean_ratio": 1.0}, "updates": 0}

    monkeypatch.setattr("hflray.rl.fine_tuning.finetune_file", record)
    assert main(["finetune", "--policy", "p", "--out", "o", *given]) == 0
    assert seen["limits"] == limits


def test_the_command_writes_a_policy_and_its_card(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    policy, out = tmp_path / "policy.safetensors", tmp_path / "tuned.safetensors"
    save_policy(policy, tiny_network(), {"seed": 0})
    settings = [
        "fleet.num_edges=3",
        "learning.num_scheduled=[4, 8]",
        "learning.num_edges=[2, 3]",
        "learning.architecture=shared",
        "learning.fleets=8",
        "learning.evaluation_fleets=4",
    ]
    arguments = ["--policy", str(policy), "--out", str(out), "--updates", "4", "--batch", "2"]
    assert main(["finetune", *arguments, *(part for item in settings for part in ("--set", item))]) == 0
    assert "after 4 updates" in capsys.readouterr().out
    _, card = load_policy(out)
    assert card["seed"] == 0
    (tuned,) = card["fine_tuned"]
    assert tuned["updates"] == 4
    assert tuned["count"] == 8
    assert tuned["fleets_reported_on"] == 4
    specs = [read_spec(folder) for folder in (tmp_path / ".cache/hflray/fleets").iterdir()]
    assert sorted((spec.held_out, spec.reporting) for spec in specs) == [(False, False), (False, True), (True, False)]
    assert main(["finetune", "--policy", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_gradient_is_that_of_the_expected_objective():
    """With three devices and two edges, compare the sum over all eight assignments with the mean drawn gradient."""
    spec = FleetSpec(
        fleet=FleetConfig(num_devices=3, num_edges=2),
        num_scheduled=(3, 3),
        num_edges=(2, 2),
        teacher="best_gain",
        options={},
    )
    fleet = spec.solve(0)
    net = tiny_network()
    rows, lengths = batch_of([fleet], net, [np.arange(3)])
    share = net(rows, lengths)[0].softmax(-1)
    expected = sum(
        torch.stack([share[h, m] for h, m in enumerate(choice)]).prod()
        * np.log(assigned_objective(fleet.problem, np.array(choice)))
        for choice in itertools.product(range(2), repeat=3)
    )
    exact = torch.autograd.grad(expected, net.advantage[-1].weight)[0]
    learner = CostGradient(net, learning_rate=0.0, seed=1)
    total, count = torch.zeros_like(exact), 0
    for _ in range(300):
        learner.update([fleet] * 4)
        # The loss is ten times the mean over the devices, and its gradient is clipped: undo the three factors.
        total += net.advantage[-1].weight.grad * learner.clipped / 10.0 * 3.0
        count += 1
    torch.testing.assert_close(total / count, exact, rtol=0.15, atol=0.05 * float(exact.abs().max()))


def test_resuming_is_bit_identical(fleets, tmp_path):
    unbroken = CostGradient(tiny_network(), learning_rate=1e-3, batch=4)
    for _ in range(2):
        for fleet_batch in unbroken.draw(fleets):
            unbroken.update(fleet_batch)
    first = CostGradient(tiny_network(), learning_rate=1e-3, batch=4)
    for fleet_batch in first.draw(fleets):
        first.update(fleet_batch)
    checkpoint.save(tmp_path / "state", flatten(first.state_dict()))
    second = CostGradient(tiny_network(7), learning_rate=1e-3, batch=4, seed=5)
    second.load_state_dict(restore(checkpoint.load(tmp_path / "state")))
    for fleet_batch in second.draw(fleets):
        second.update(fleet_batch)
    for name, value in unbroken.weights().items():
        np.testing.assert_array_equal(value, second.weights()[name])
    assert second.updates == unbroken.updates == 8
