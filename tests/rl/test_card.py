"""A model card is written from the header of its policy's file alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray.assignment.policy import SHIPPED, load_policy, policy_path, save_policy, shipped
from hflray.assignment.state import assigned_objective
from hflray.config import LearningConfig
from hflray.rl.card import as_markdown
from hflray.rl.command import main
from hflray.rl.evaluation import greedy
from hflray.rl.fleets import reporting
from hflray.support import provenance
from hflray.support.provenance import git_commit
from tests.conftest import says
from tests.rl.small import TINY, tiny_network


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_card_is_written_from_its_policys_header(name):
    path = policy_path(name)
    _, card = load_policy(path)
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert text == as_markdown(name, card, path.stat().st_size)
    for phrase in (
        f"seed {card['seed']}",
        f"{card['env_steps']:,} environment steps",
        card["git_commit"],
        "TD loss × 1",
    ):
        assert phrase in text
    assert all(f"**{tuned['after']['mean_ratio']:.4f}** after" in text for tuned in card.get("fine_tuned", []))


def test_a_card_lists_the_learners_settings_that_differ_from_the_default():
    _, card = load_policy(SHIPPED)
    literal = LearningConfig(td_loss="squared", replay="transitions", train_batch=128, update_every=1, epsilon=(0, 0))
    trained = card["trained_on"]
    spec = trained["specification"] | {"fleet": trained["specification"]["fleet"] | {"deployment_seed": 6}}
    changed = {"algorithm": literal.model_dump(mode="json"), "trained_on": trained | {"specification": spec}}
    text = as_markdown("x", card | changed, 10)
    phrases = ("`learning.td_loss: 'squared'`", "`learning.replay: 'transitions'`", "`learning.update_every: 1`",
               "`learning.epsilon: [0.0, 0.0]`", "one deployment (`fleet.deployment_seed: 6`)",
               "other deployments of the edges")  # fmt: skip
    for phrase in phrases:
        assert phrase in text
    assert "deployment of" not in as_markdown("x", card, 10)
    assert "squared" not in as_markdown("x", card, 10)


def test_a_card_says_what_is_not_of_table_1():
    _, card = load_policy(SHIPPED)
    trained = card["trained_on"]
    own = {"edge_bandwidths_mhz": [0.5, 1.0, 2.0, 3.0, 3.0], "shadowing_db": 6.0}
    spec = trained["specification"] | {"fleet": trained["specification"]["fleet"] | own}
    assert "otherwise Table I (half" in as_markdown("x", card, 10)
    text = as_markdown("x", card | {"trained_on": trained | {"specification": spec}}, 10)
    bandwidths = "`fleet.edge_bandwidths_mhz: [0.5, 1.0, 2.0, 3.0, 3.0]`"
    assert f"otherwise Table I but for {bandwidths}, `fleet.shadowing_db: 6.0` (half" in text


def test_measuring_uses_the_reporting_fleets(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path, network = tmp_path / "tiny.safetensors", tiny_network()
    _, shipped_card = load_policy(SHIPPED)
    card = {key: value for key, value in shipped_card.items() if key not in ("fine_tuned", "reported")}
    card["trained_on"] = card["trained_on"] | {"specification": TINY.to_dict()}
    save_policy(path, network, card)
    assert main(["card", str(path), "--measure", "--fleets", "4"]) == 0
    loaded, measured = load_policy(path)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), network.state_dict().values(), strict=True)
    )
    solved = [reporting(TINY).solve(index) for index in range(4)]
    objectives = [
        assigned_objective(fleet.problem, edges) for fleet, edges in zip(solved, greedy(loaded, solved), strict=True)
    ]
    assert measured["reported"]["objective"] == round(float(np.mean(objectives)), 3)
    assert measured["reported"]["reporting_fleets"] == 4
    assert {key: value for key, value in measured.items() if key != "reported"} == card
    assert says(path.with_suffix(".md").read_text(), "As it is", "4 fleets")


def test_the_command_writes_the_card_beside_the_policy(tmp_path, capsys):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(SHIPPED.read_bytes())
    assert main(["card", str(path)]) == 0
    assert (tmp_path / "copy.md").read_text(encoding="utf-8").startswith("# copy\n")
    assert main(["card", str(tmp_path / "none.safetensors")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_commit_is_a_hash_or_unknown(monkeypatch):
    commit = git_commit()
    assert commit == "unknown" or len(commit.removesuffix("-dirty")) == 40

    def missing(*args, **kwargs):
        raise FileNotFoundError("git")

    monkeypatch.setattr(provenance.subprocess, "run", missing)
    assert git_commit() == "unknown"
