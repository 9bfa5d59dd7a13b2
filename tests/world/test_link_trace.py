"""A trace of links: gains and rates at each moment, what decisions know, and one line for each mistake."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.fleet import Fleet, FleetConfig
from hflray.world.link_trace import LinkTrace
from tests.conftest import refusals, small_config

FLEET = Fleet.of(
    FleetConfig(num_devices=3, num_edges=2), np.random.default_rng(0), device_names=list("abc"), edge_names=["n", "s"]
)


def trace(tmp_path, text, fleet=FLEET):
    path = tmp_path / "links.csv"
    path.write_text(text)
    return LinkTrace(seed=0, fleet=fleet, path=str(path))


def gains(part):
    devices, edges = np.arange(3)[:, None], np.arange(2)
    return np.asarray(FLEET.gain) * part.factor(1, devices, edges)


def test_a_line_holds_until_the_next_one_of_its_link(tmp_path):
    part = trace(tmp_path, "time_s,device,edge,gain_db\n0,a,n,-90\n5,a,n,-80\n5,b,s,-70\n")
    assert gains(part)[0, 0] == pytest.approx(1e-9)
    assert gains(part)[1, 1] == pytest.approx(FLEET.gain[1, 1])
    part.advance(4.9)
    assert gains(part)[0, 0] == pytest.approx(1e-9)
    later = copy.deepcopy(part)
    later.advance(5.0)
    assert gains(later)[0, 0] == pytest.approx(1e-8)
    assert gains(later)[1, 1] == pytest.approx(1e-7)
    assert gains(part)[0, 0] == pytest.approx(1e-9), "the world before a round does not change"
    again = copy.deepcopy(part)
    again.load_state_dict(later.state_dict())
    again.advance(6.0)
    np.testing.assert_array_equal(gains(again), gains(later))


def test_a_rate_is_that_of_the_whole_bandwidth(tmp_path):
    part = trace(tmp_path, "time_s,device,edge,mbps\n0,c,s,3\n")
    b, p, noise = FLEET.edge_bandwidth_hz[1], FLEET.power_w[2], FLEET.noise_w_per_hz
    assert b * np.log2(1 + gains(part)[2, 1] * p / (noise * b)) == pytest.approx(3e6)


@pytest.mark.parametrize("text, message", refusals("world/link_trace"))
def test_a_mistake_is_one_line(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        trace(tmp_path, text)


@pytest.mark.parametrize("known", [False, True])
def test_a_run_pays_what_the_trace_says_and_resumes(known, tmp_path):
    rows = [
        f"{t},{d},{e},{-85 - 5 * ((t // 10 + d + e) % 3)}" for t in (0, 10, 20) for d in range(12) for e in range(3)
    ]
    path = tmp_path / "t.csv"
    path.write_text("time_s,device,edge,gain_db\n" + "\n".join(rows) + "\n")
    settings = [f"world.fading={{name: trace, known: {known}, options: {{path: {path}}}}}", "scheduling.name=fedavg"]
    with Experiment(small_config(*settings)) as whole, Experiment(small_config(*settings)) as part:
        records = list(whole)
        first = part.run_round()
        state = part.state_dict()
        with Experiment(small_config(*settings)) as resumed:
            resumed.load_state_dict(state)
            later = list(resumed)
    assert [r.cost.objective for r in [first, *later]] == [r.cost.objective for r in records]
    upload = records[0].timeline
    assert upload is not None
    with pytest.raises(ConfigError, match=r"coherence_s: got 1 with a trace"):
        Experiment(small_config(settings[0].replace("known: True", "known: False"), "world.fading.coherence_s=1"))


def test_given_links_and_motion_exclude_each_other(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom hflray import Fleet\n"
        "def make(config, rng):\n"
        "    return Fleet.of(config, rng, gain=np.full((config.num_devices, config.num_edges), 1e-9))\n"
    )
    motion = "world.mobility={name: gauss_markov, options: {speed_m_per_s: 1}}"
    with pytest.raises(ConfigError, match=r"world.mobility.name: got gauss_markov with links whose gains"):
        Experiment(small_config(f"fleet.name={tmp_path / 'mine.py'}:make", motion))
