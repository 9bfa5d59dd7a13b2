"""The Q-networks: one pass equals the H states of equation (25), and padding changes nothing."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from hflray.assignment import build_assigner, configured_assigner
from hflray.assignment.features import WIDTHS, pad_edges
from hflray.assignment.network import ABSENT, BiLstm, DuelingBiLstm, NetworkSpec, build_network, dueling
from hflray.assignment.policy import POLICIES, SHIPPED, policy_path, save_policy, shipped
from hflray.config import load_config
from hflray.errors import ConfigError
from tests.conftest import refusals

SHARED = NetworkSpec("shared", "db", num_edges=6, hidden=16, width=12)
PAPER = NetworkSpec("bilstm", "paper", num_edges=4, hidden=16)


def rows(batch, steps, edges, seed=0):
    link, device = WIDTHS["db"]
    values = np.random.default_rng(seed).normal(size=(batch, steps, edges * link + device)).astype(np.float32)
    values[..., : edges * link : link] = 1.0
    return torch.from_numpy(values)


def test_one_pass_is_all_states_of_equation_25():
    network = DuelingBiLstm(PAPER)
    chi = torch.rand(2, 7, PAPER.row)
    with torch.no_grad():
        whole = network(chi)
        for t in range(7):
            # State s_t is χ_1 … χ_t forward and χ_H … χ_t backward; the heads read the last output of each.
            ahead = network.body.ahead(chi[:, : t + 1])[0][:, -1]
            back = network.body.back(chi[:, t:].flip(1))[0][:, -1]
            z = torch.cat([ahead, back], dim=-1)[:, None]
            q = dueling(network.value(z), network.advantage(z))
            torch.testing.assert_close(q[:, 0], whole[:, t], atol=1e-6, rtol=1e-5)


def test_the_bilstm_equals_torchs_packed_bilstm():
    bilstm = BiLstm(5, 8)
    reference = torch.nn.LSTM(5, 8, batch_first=True, bidirectional=True)
    state = dict(bilstm.ahead.state_dict())
    state |= {f"{name}_reverse": value for name, value in bilstm.back.state_dict().items()}
    reference.load_state_dict(state)
    x, lengths = torch.randn(3, 6, 5), torch.tensor([6, 2, 4])
    with torch.no_grad():
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        expected, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
        outputs = bilstm(x, lengths)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(outputs[i, :n], expected[i, :n], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("spec", [SHARED, PAPER])
def test_two_threads_change_no_bit_of_outputs_and_gradients(spec):
    x, lengths = torch.rand(3, 9, spec.row), torch.tensor([9, 4, 7])
    found = {}
    for two_threads in (False, True):
        torch.manual_seed(1)
        network = build_network(spec)
        network.body.two_threads = two_threads
        inputs = x.clone().requires_grad_()
        q = network(inputs, lengths)
        q.square().mean().backward()
        with torch.no_grad():
            answer = network(x, lengths)
        # Without AVX512, torch's kernels for inference round otherwise than those of training, also in one thread.
        torch.testing.assert_close(answer, q)
        assert torch.equal(answer, q) or torch.backends.cpu.get_cpu_capability() != "AVX512"
        found[two_threads] = [answer, q.detach(), inputs.grad, *(parameter.grad for parameter in network.parameters())]
    assert all(torch.equal(one, two) for one, two in zip(*found.values(), strict=True))
    # Biases that shift all edges alike have no gradient except for rounding, which may be 0, so that they are left out.
    assert all(gradient.abs().max() > 0 for gradient in (inputs.grad, *(p.grad for p in network.body.parameters())))


def test_dueling_agrees_with_equation_20_by_hand():
    q = dueling(torch.tensor([[[2.0]]]), torch.tensor([[[1.0, 4.0, 7.0]]]))
    torch.testing.assert_close(q, torch.tensor([[[-1.0, 2.0, 5.0]]]))
    masked = dueling(torch.tensor([[[2.0]]]), torch.tensor([[[1.0, 4.0, 7.0]]]), torch.tensor([[[True, True, False]]]))
    torch.testing.assert_close(masked, torch.tensor([[[0.5, 3.5, ABSENT]]]))


@pytest.mark.parametrize("spec", [SHARED, NetworkSpec("bilstm", "db", num_edges=6, hidden=16)])
def test_padded_devices_change_nothing(spec):
    network = build_network(spec)
    x = rows(2, 9, 6)
    x[1, 5:] = 0.0
    with torch.no_grad():
        together = network(x, torch.tensor([9, 5]))
        torch.testing.assert_close(together[0], network(x[:1])[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(together[1, :5], network(x[1:, :5])[0], atol=1e-5, rtol=1e-4)
    assert torch.isfinite(together).all()


def test_padded_edges_change_nothing_and_are_never_chosen():
    network = build_network(SHARED)
    x = rows(2, 9, 3)
    wide = torch.from_numpy(pad_edges(x.numpy(), WIDTHS["db"], 6))
    with torch.no_grad():
        q, padded = network(x), network(wide)
    torch.testing.assert_close(padded[..., :3], q, atol=1e-5, rtol=1e-4)
    assert (padded[..., 3:] == ABSENT).all()
    assert network.edge_mask(wide)[0, 0].tolist() == [True] * 3 + [False] * 3
    assert network.edge_mask(wide).shape == padded.shape


def test_shared_weights_do_not_depend_on_the_order_of_the_edges():
    network = build_network(SHARED)
    x, link = rows(1, 8, 4), WIDTHS["db"].link
    order = [2, 0, 3, 1]
    permuted = x.clone()
    permuted[..., : 4 * link] = x[..., : 4 * link].reshape(1, 8, 4, link)[:, :, order].reshape(1, 8, -1)
    with torch.no_grad():
        torch.testing.assert_close(network(permuted), network(x)[..., order], atol=1e-5, rtol=1e-4)
        assert network(rows(1, 8, 11)).shape == (1, 8, 11)  # any M


@pytest.mark.parametrize("options, text", refusals("assignment/network"))
def test_bad_specifications_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        NetworkSpec(**options)


# Policies by name and by path; test_d3qn has the tests of wrong files.


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
