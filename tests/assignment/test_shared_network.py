"""The pass in C has torch's Q-values but for rounding, and torch's edges or no answer where two edges are close."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hflray.assignment import d3qn
from hflray.assignment.d3qn import SURE, SharedPass, shared_pass
from hflray.assignment.network import NetworkSpec, SharedBiLstm, build_network
from hflray.assignment.policy import SHIPPED, load_policy
from hflray.support import native
from tests.assignment.test_network import rows as random_rows

# Instruction sets without AVX, with vectors of 8 numbers, and with vectors of 16.
WIDTHS = ["x86-64", "x86-64-v3", "x86-64-v4"]
SIZES = [(1, 1), (1, 5), (2, 1), (7, 6), (50, 5), (37, 10)]  # H and M; 37 · 10 links are no whole number of tiles


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if native.compiler() is None:
        pytest.skip("no C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Start, and end, with no library loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    d3qn._library.cache_clear()
    yield
    d3qn._library.cache_clear()


def rows(devices: int, edges: int, seed: int = 0) -> np.ndarray:
    return random_rows(1, devices, edges, seed)[0].numpy()


def network(**sizes) -> SharedBiLstm:
    torch.manual_seed(0)
    return build_network(NetworkSpec("shared", "db", **{"width": 64, "hidden": 32, **sizes})).requires_grad_(False)


def the_pass(of: SharedBiLstm) -> SharedPass:
    fast = shared_pass(of)
    assert fast is not None
    return fast


def close(fast: SharedPass, of: SharedBiLstm, values: np.ndarray) -> bool:
    """Return whether Q agrees with torch's, and the best edges wherever the lead is no rounding."""
    expected = of(torch.from_numpy(values)[None])[0].numpy()
    q, best, lead = fast(values)
    np.testing.assert_allclose(q, expected, atol=1e-5 * max(1.0, np.abs(expected).max()))
    return not lead > SURE or bool((best == expected.argmax(-1)).all())


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_of_vectors_has_torchs_values(width: str, fresh, monkeypatch) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("these instruction sets are those of x86-64")
    if width == "x86-64-v4" and "avx512bw" not in native.cpu_model():
        pytest.skip("this CPU has no AVX-512")
    monkeypatch.setattr(native, "OPTIONS", (f"-march={width}", *(o for o in native.OPTIONS if "march" not in o)))
    for sizes in ({}, {"width": 128, "hidden": 16, "refinements": 0}, {"refinements": 3}):
        of = network(**sizes)
        fast = the_pass(of)
        assert all(close(fast, of, rows(*size)) for size in SIZES)
    shipped = load_policy(SHIPPED)[0]
    assert all(close(the_pass(shipped), shipped, rows(*size)) for size in SIZES)


def test_where_two_edges_are_equal_torch_must_be_asked() -> None:
    values, link = rows(9, 4), 9
    fast = the_pass(network())
    values[:, 2 * link : 3 * link] = values[:, :link]
    values[:, 3 * link : 4 * link] = values[:, link : 2 * link]
    assert fast(values)[2] < SURE
    assert fast.edges(values) is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_without_ordinary_values_torch_must_be_asked(wrong: float) -> None:
    of = network()
    values = rows(9, 4)
    for place in (3, -1):  # of a link, and of a device
        broken = values.copy()
        broken[4, place] = wrong
        assert the_pass(of).edges(broken) is None
    of.value.bias.fill_(wrong)
    assert the_pass(of).edges(values) is None


def test_a_workspace_that_other_rounds_have_used_changes_nothing() -> None:
    of = network()
    fast, sizes = the_pass(of), [(40, 5), (3, 2), (60, 8), (1, 1)] * 5
    alone = [the_pass(of)(rows(*size)) for size in sizes]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda size: fast(rows(*size)), sizes))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_other_networks_and_sizes_and_machines_without_a_compiler_have_no_pass(fresh, monkeypatch) -> None:
    assert shared_pass(build_network(NetworkSpec("bilstm", "db", hidden=64))) is None
    assert shared_pass(network(width=24)) is None
    assert shared_pass(network(hidden=20)) is None
    monkeypatch.setenv("CC", "no-such-compiler")
    d3qn._library.cache_clear()
    assert shared_pass(network()) is None
