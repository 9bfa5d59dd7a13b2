"""Learning from the cost: the gradient is the exact one, it improves, resumes bit for bit, and needs a limit."""

from __future__ import annotations

import pytest

from hflray.assignment.d3qn import load_policy, save_policy
from hflray.errors import ConfigError
from hflray.rl import finetune as module
from hflray.rl.finetune import evaluate, finetune
from tests.rl.small import tiny_network

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_improves_on_random_weights(fleets):
    net = tiny_network()
    before = evaluate(net, fleets[30:])["mean_ratio"]
    summary = finetune(net, fleets[:30], fleets[30:], updates=60, learning_rate=3e-3, batch=8)
    after = evaluate(net, fleets[30:])["mean_ratio"]
    assert summary["before"]["mean_ratio"] == before
    assert summary["after"]["mean_ratio"] == after  # it ends as its best evaluation
    assert after < before
    assert summary["updates"] == 60


def test_a_run_goes_on_from_its_folder(fleets, tmp_path):
    finetune(tiny_network(), fleets[:8], fleets[8:12], updates=4, batch=2, folder=tmp_path)
    summary = finetune(tiny_network(3), fleets[:8], fleets[8:12], updates=8, batch=2, folder=tmp_path, resume=True)
    assert summary["updates"] == 8
    with pytest.raises(ConfigError, match="resume"):
        finetune(tiny_network(), fleets[:8], fleets[8:12], updates=4, folder=tmp_path / "empty", resume=True)


def test_a_limit_is_needed(fleets):
    with pytest.raises(ConfigError, match=r"updates nor minutes"):
        finetune(tiny_network(), fleets, fleets)


def test_the_command(tmp_path, monkeypatch, capsys):
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
    assert module.main([*arguments, *(part for item in settings for part in ("--set", item))]) == 0
    assert "after 4 updates" in capsys.readouterr().out
    _, card = load_policy(out)
    assert card["seed"] == 0
    (tuned,) = card["fine_tuned"]
    assert tuned["updates"] == 4
    assert tuned["count"] == 8
    assert module.main(["--policy", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert "does not exist" in capsys.readouterr().err
