"""Policies by name and by path; test_d3qn has the tests of wrong files."""

from __future__ import annotations

import logging

import pytest
import torch

from hflray.assignment import build_assigner, configured_assigner
from hflray.assignment.network import NetworkSpec, build_network
from hflray.assignment.policy import POLICIES, SHIPPED, policy_path, save_policy, shipped
from hflray.config import load_config
from hflray.errors import ConfigError


def test_a_bare_name_is_a_shipped_policy():
    assert "any_deployment" in shipped()
    for name in shipped():
        assert policy_path(name) == POLICIES / f"{name}.safetensors"
        assert build_assigner("d3qn", policy=name).path == POLICIES / f"{name}.safetensors"
    assert build_assigner("d3qn").path == SHIPPED


@pytest.mark.parametrize("name", ["any_deploymnt", "HFEL"])
def test_an_unknown_name_lists_the_shipped_ones(name):
    with pytest.raises(ConfigError) as error:
        build_assigner("d3qn", policy=name)
    assert all(word in str(error.value) for word in ("assignment.policy", name, ", ".join(shipped()), "path"))
    assert ("did you mean 'any_deployment'?" in str(error.value)) == (name == "any_deploymnt")


def test_a_path_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = build_network(NetworkSpec("bilstm", "db", num_edges=3, hidden=8))
    save_policy("own.safetensors", network, {})
    save_policy("any_deployment.safetensors", network, {})
    assert build_assigner("d3qn", policy="own.safetensors").spec.num_edges == 3
    assert build_assigner("d3qn", policy="any_deployment.safetensors").spec.num_edges == 3  # the file in this folder
    assert build_assigner("d3qn", policy="any_deployment").path == SHIPPED
    with pytest.raises(ConfigError, match="does not exist"):
        build_assigner("d3qn", policy="folder/own")


def test_a_policy_of_one_deployment_warns_on_another(tmp_path, caplog):
    torch.manual_seed(0)
    card = {"trained_on": {"specification": {"fleet": {"deployment_seed": 0}}}}
    save_policy(tmp_path / "p.safetensors", build_network(NetworkSpec("bilstm", "paper", num_edges=5, hidden=8)), card)

    def warnings_of(*overrides):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="hflray"):
            configured_assigner(load_config(overrides=["assignment.name=d3qn", *overrides]))
        return [record.getMessage() for record in caplog.records]

    setting = f"assignment.policy={tmp_path / 'p.safetensors'}"
    assert not warnings_of(setting, "fleet.deployment_seed=0")
    (message,) = warnings_of(setting, "fleet.deployment_seed=3")
    assert "fleet.deployment_seed is 3" in message
    assert "deployment 0 alone" in message
    assert not warnings_of(setting, "fleet.deployment_seed=3")  # the warning is shown once
    assert "is null" in warnings_of(setting)[0]
    assert not warnings_of("fleet.deployment_seed=3")  # the default policy is for any deployment
