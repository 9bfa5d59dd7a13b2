"""The model card for people: everything in it comes from the policy's own header."""

from __future__ import annotations

import sys

from hflray.assignment.d3qn import SHIPPED, load_policy
from hflray.rl import card as module
from hflray.rl.card import as_markdown
from hflray.training import release
from hflray.training.release import git_commit


def test_the_shipped_card_is_what_the_policy_says():
    _, card = load_policy(SHIPPED)
    text = SHIPPED.with_suffix(".md").read_text(encoding="utf-8")
    assert text == as_markdown(SHIPPED.stem, card, SHIPPED.stat().st_size)
    for said in (f"seed {card['seed']}", f"{card['env_steps']:,} environment steps", card["git_commit"], "TD loss × 1"):
        assert said in text
    assert all(f"**{tuned['after']['mean_ratio']:.4f}** after" in text for tuned in card["fine_tuned"])


def test_the_command_writes_it_beside_the_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(SHIPPED.read_bytes())
    monkeypatch.setattr(sys, "argv", ["card", str(path)])
    assert module.main() == 0
    assert (tmp_path / "copy.md").read_text(encoding="utf-8").startswith("# copy\n")
    monkeypatch.setattr(sys, "argv", ["card", str(tmp_path / "none")])
    assert module.main() == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_commit_is_named_or_said_to_be_unknown(monkeypatch):
    said = git_commit()
    assert said == "unknown" or len(said.removesuffix("-dirty")) == 40

    def missing(*args, **kwargs):
        raise FileNotFoundError("git")

    monkeypatch.setattr(release.subprocess, "run", missing)
    assert git_commit() == "unknown"
