"""tests/benchmarks/training.py runs on a few devices of noise; these tests do not check speed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hflray.models import build, build_model, init_vector, load_vector
from hflray.models.problem import Problem
from hflray.training.job import torch_threads
from hflray.training.local import DeviceHost
from tests.benchmarks import training
from tests.benchmarks._report import publish
from tests.benchmarks._results import Results
from tests.training.test_local import make_data, make_job

SCRIPT = Path(__file__).with_name("training.py")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path, because the paths of Ray's sockets may have at most 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="hflray"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)  # for a busy machine
def test_the_benchmark_runs_and_all_contestants_do_the_same_work(short_folder, tmp_path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("HFLRAY_DATA", "RAY_ADDRESS")}
    env |= {"RAY_TMPDIR": str(short_folder), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "--quick", "--devices", "4", "--repeats", "1"]
    command += ["--only", "bare1,bare2,serial,actors-eager,actors", "--kernel", "channels_last"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    assert "full-batch steps: how far the models are from that of bare1 (a)" in done.stdout
    for name in ("bare2 (b)", "serial (c)", "actors-eager", "actors (d)"):
        error = re.search(rf"^{re.escape(name)} +(\d\S+e-\d+) +\S+e-\d+$", done.stdout, re.M)
        assert error is not None, done.stdout
        assert float(error.group(1)) < 1e-4
    for local_iterations in (5, 1):
        assert f"L = {local_iterations}: " in done.stdout
    rows = re.findall(
        r"^(?:bare1 \(a\)|bare2 \(b\)|serial \(c\)|actors-eager|actors \(d\)) +[\d,]+ .*", done.stdout, re.M
    )
    assert len(rows) == 10
    assert [" peers " in row for row in rows] == 2 * [True, True, False, True, False]
    assert [" channels_last " in row for row in rows] == 2 * [False, False, True, False, True]
    assert len(re.findall(r"Ray's share of a round \(.* -?[\d.]+%", done.stdout)) == 4
    assert done.stdout.count("speed-up from one CPU to") == 2
    assert len(re.findall(r"platform [\d.]+ .*, kernel [\d.]+ on top", done.stdout)) == 2
    assert "Ray's share of a round at Q = 5, M = 5" in done.stdout
    assert len(re.findall(r"^L = [51]( +-?[\d.]+%?){4}$", done.stdout, re.M)) == 2
    assert "serial (c) and actors (d) ended with the same bits" in done.stdout
    assert (
        len(re.findall(r"load average [\d.]+ at the start; other processes had [\d.]+ CPUs meanwhile", done.stdout))
        >= 3  # a busy machine is said again
    )
    # The peers' environments would be installed from PyPI.
    assert not list((tmp_path / "hflray" / "bench").glob("flwr*"))


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch):
    """Return the modules of peers/, which import each other as scripts do."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent / "peers"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name in ("common", "ours"):
            del sys.modules[name]


def test_the_peers_kernel_in_a_host_gives_the_bits_of_the_peers_step(peers) -> None:
    """The host of the row actors-eager ends with the bits of the peers' loop, and reports the kernel `peers`."""
    common, ours = peers("common"), peers("ours")
    job = make_job(
        problem=Problem((1, 28, 28), 10), local_iterations=2, batch_size=4, kernel="eager",
        learning_rate=common.LEARNING_RATE,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, 10)
    data = dataclasses.replace(make_data((10,)), x=x, y=y, index=np.arange(10), offsets=np.array([0, 10]))
    start = init_vector(build_model("hfl", (1, 28, 28), 10), rng)
    host = DeviceHost(job, data)
    assert ours.about(host) == ("eager", 1)
    ours.take_peers_kernel(host)
    assert ours.about(host) == ("peers", 1)
    (trained,) = host.train_each(start, [0])
    net, orders = common.NETWORKS["paper_cnn"](), iter(host._order(0, (0, 0)))
    common.load(net, start)
    optimiser = torch.optim.SGD(net.parameters(), lr=common.LEARNING_RATE)
    with torch_threads(1):
        for batch in orders:
            common.step(net, optimiser, torch.from_numpy(x[batch]), torch.from_numpy(y[batch]))
    np.testing.assert_array_equal(trained, common.flat(net))
    assert np.abs(trained - start).max() > 1e-4


def test_a_round_divides_into_training_waiting_and_ray(peers) -> None:
    shares = peers("ours").shares
    # Of 10 s, the first actor trains from 1 to 5 and from 6 to 8, the second from 1 to 3 and from 4.5 to 8.5.
    result = shares([[(1.0, 5.0), (6.0, 8.0)], [(4.5, 8.5), (1.0, 3.0)]], 10.0)
    assert result == pytest.approx({"beyond_busiest": 0.4, "waiting": 0.15, "ray": 0.25})


def contestant(**note: object) -> training.Contestant:
    result = training.Contestant("actors-eager", [], 2, 1, "peers")
    result.notes.append({"kernel": "peers", "threads": 1} | note)
    return result


@pytest.mark.parametrize("note", [{"kernel": "eager"}, {"kernel": "fused"}, {"threads": 2}])
def test_a_row_that_trains_with_another_kernel_or_threads_ends_the_comparison(note: dict[str, object]) -> None:
    contestant().check()
    with pytest.raises(AssertionError, match="actors-eager is to train with the kernel peers and 1 threads"):
        contestant(**note).check()


def test_a_mean_of_threads_may_be_rounded() -> None:
    """Flower's weighted mean over devices was 1.0000000000000002."""
    contestant(threads=1.0000000000000002).check()
    with pytest.raises(AssertionError, match=r"and 1 threads, and says peers and 1\.5"):
        contestant(threads=1.5).check()  # some devices trained with two


class Trained(training.Contestant):
    """A contestant that says what it trained without a process, and whose model is a vector."""

    def __init__(self, name: str, model: float, **note: object) -> None:
        super().__init__(name, [], 1, 1, "peers")
        self.vector, self.note = model, {"kernel": "peers", "threads": 1} | note
        self.processes = [None]  # type: ignore[list-item]

    def round(self, local_iterations: int, batch_size: int = 64, save: Path | None = None, edges=(1, 1)) -> float:
        self.notes.append(self.note)
        return 1.0

    def timed(self, local_iterations: int, **options: object) -> None:
        self.seconds.append(self.round(local_iterations))
        self.cpu_seconds.append(1.0)

    def model(self, folder: Path, sizes: np.ndarray) -> np.ndarray:
        return np.full(3, self.vector)


def test_a_failed_check_ends_the_run_after_its_table(tmp_path: Path, monkeypatch, capsys) -> None:
    """Both threads that differ and losses that differ leave a table without ratios, which is printed and stored."""
    np.savez(tmp_path / "work.npz", start=np.zeros(3), offsets=np.array([0, 5, 9]), model="paper_cnn")
    running = [Trained("bare2 (b)", 1.0), Trained("serial (c)", 1.0, threads=2)]
    monkeypatch.setattr(training, "training_loss", lambda model, work: float(model[0]))
    line = tmp_path / "tables.jsonl"
    with pytest.raises(AssertionError, match=r"serial \(c\) is to train with the kernel peers and 1 threads, and says"):
        publish(training.measured(running, tmp_path, 2, 1e11, 0.0), line)
    printed = capsys.readouterr().out
    assert re.search(r"^serial \(c\) +45 +1\.00", printed, re.M)  # 9 samples, L = 5, in 1 s
    stored = [json.loads(text) for text in line.read_text().splitlines()]
    assert [(table["key"], bool(table["failed"]), bool(table["ratios"])) for table in stored] == [
        ("equal work", False, False), ("L = 5", True, False),
    ]  # fmt: skip
    running = [Trained("bare2 (b)", 1.0), Trained("serial (c)", 2.0)]
    with pytest.raises(AssertionError, match="other work than"):
        publish(training.measured(running, tmp_path, 2, 1e11, 0.0))
    assert "of what was learned" in capsys.readouterr().out
    table = training.speed(running, tmp_path, 5, 2, 1e11, 0.0)
    assert "loss of 2.0000" in table.failed
    assert not table.ratios
    results = Results("commit", {"cores": 2})
    results.measured({"wall_s": 1.0} | table.json())
    assert (results.tables["L = 5"]["status"], results.tables["L = 5"]["message"]) == ("failed", table.failed)


def test_an_environment_of_other_versions_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands: list[list[str]] = []

    def install(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = tmp_path / "hflray" / "bench" / "pfl"
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(training.subprocess, "run", install)
    python = training.environment("pfl")
    assert [command[-1] for command in commands[1:]] == ["numpy", training.PINS["pfl"]]
    assert commands[1][-2] == f"torch=={torch.__version__.split('+')[0]}"
    assert training.environment("pfl", make=False) == python
    assert len(commands) == 3
    monkeypatch.setitem(training.PINS, "pfl", "pfl[pytorch]==9.9.9")
    with pytest.raises(RuntimeError, match=r"of these versions; python -m tests\.benchmarks peers makes it"):
        training.environment("pfl", make=False)
    training.environment("pfl")
    assert commands[-1][-1] == "pfl[pytorch]==9.9.9"
    monkeypatch.setattr(
        training.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 1, "", "ERROR: no network"),
    )
    found = training.make_environments()
    assert found["flwr"].endswith("not made: ERROR: no network")
    assert found["pfl"] == f"pfl[pytorch]==9.9.9: ready in {python.parents[1]}"


def test_the_rows_have_their_workers_threads_and_kernels(tmp_path: Path) -> None:
    names = ["bare1", "bare2", "serial", "actors-eager", "actors", "actors-bf16"]
    result = {c.name.split()[0]: c for c in training.contestants(tmp_path / "work.npz", (0, 1), "fused", names)}
    assert list(result) == names
    assert [result[name].workers for name in names] == [1, 2, 1, 2, 2, 2]
    assert all(c.threads == 1 for c in result.values())
    assert result["actors-eager"].commands[0][-2:] == ["peers", "float32"]
    assert result["actors"].commands[0][-2:] == ["fused", "float32"]


def test_models_with_another_loss_end_the_comparison() -> None:
    training.check_equal_loss({"bare1": 0.50, "actors": 0.49, "flower": 0.53})
    for loss in (0.44, 0.56, float("nan")):
        with pytest.raises(AssertionError, match="no comparison"):
            training.check_equal_loss({"bare1": 0.50, "actors": loss})


def test_the_model_of_several_loops_is_their_weighted_mean(tmp_path: Path) -> None:
    result = training.Contestant("bare2 (b)", [])
    result.processes = [None, None]  # type: ignore[list-item]
    np.save(tmp_path / "bare2-0.npy", np.float32([1.0, 2.0]))
    np.save(tmp_path / "bare2-1.npy", np.float32([4.0, 8.0]))
    model = result.model(tmp_path, np.array([1, 3, 1]))  # the first loop has the devices 0 and 2
    np.testing.assert_allclose(model, [2.8, 5.6])


def test_the_loss_of_a_model_without_opinions_is_that_of_a_guess(tmp_path: Path) -> None:
    work, samples = training.make_work(tmp_path, 2, None)
    with np.load(work) as file:
        assert len(file["y"]) == samples
        assert training.training_loss(0 * file["start"], work) == pytest.approx(np.log(10), rel=1e-5)


def test_ratios_are_hflrays_own_against_the_bare_loops() -> None:
    """What `make bench-check` compares: medians of the turns' ratios, none of a peer."""
    running = []
    for name, seconds in (
        ("bare1 (a)", [4.0, 4.0]), ("bare2 (b)", [2.0, 2.0]), ("serial (c)", [2.0, 2.0]),
        ("actors (d)", [0.5, 1.0]), ("flower (e)", [2.0, 2.0]),
    ):  # fmt: skip
        one = training.Contestant(name, [], kernel="fused")
        one.seconds, one.cpu_seconds = seconds, [1.0, 1.0]
        one.processes = [None, None]  # type: ignore[list-item]
        running.append(one)
    table = training.report(running, 1000, 5, 1e11, dict.fromkeys((one.name for one in running), 0.5))
    assert table.key == "L = 5"
    assert table.ratios == {
        "serial (c), of bare2 (b)": 1.0,
        "actors (d), of bare2 (b)": 3.0,
        "speed-up kept, of two bare loops": 1.5,  # 4 and 2 times as fast as serial, where bare loops are 2 times
    }
    alone = training.report(running[:1] + running[2:3], 1000, 5, 1e11, {"bare1 (a)": 0.5, "serial (c)": 0.5})
    assert alone.ratios == {"serial (c), of bare1 (a)": 2.0}


def test_a_peer_without_an_environment_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing: dict[str, str] = {}
    names = ["bare1", "flower", "pfl"]
    result = training.contestants(tmp_path / "work.npz", (0, 1), "fused", names, missing, make=False)
    assert [one.name for one in result] == ["bare1 (a)"]
    assert set(missing) == {"flower (e)", "pfl (f)"}
    assert missing["flower (e)"].startswith("no environment: there is none in ")


@pytest.mark.parametrize("model", list(training.PROBLEMS))
def test_the_networks_of_the_peers_are_ours(peers, tmp_path: Path, model: str) -> None:
    common = peers("common")
    path, _ = training.make_work(tmp_path, 1, None, model)
    work = common.Work(str(path))
    plain, ours = work.net(), build(training.PROBLEMS[model])
    common.load(plain, work.start)
    load_vector(ours, work.start)
    x, _ = work.of(0)
    np.testing.assert_array_equal(common.flat(plain), work.start)
    np.testing.assert_array_equal(common.flat(plain.to(memory_format=torch.channels_last)), work.start)
    torch.testing.assert_close(plain(x[:5]), ours(x[:5]))
    assert training.training_loss(work.start, path) < 10


def test_workers_of_ray_get_the_niceness_of_bare_loops(monkeypatch, tmp_path: Path) -> None:
    """Ray's default of 15 would give bare loops more of a busy machine than hflray's actors and Flower's workers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = "import os; print('ready' if os.environ.get('RAY_worker_niceness') == '0' else 'another', flush=True)"
    contestant = training.Contestant("actors", [[sys.executable, "-c", code]])
    try:
        contestant.start()
    finally:
        contestant.stop()


@pytest.mark.parametrize("model", list(training.PROBLEMS))
def test_the_problem_of_a_network_gives_samples_that_it_takes(model: str) -> None:
    problem = training.PROBLEMS[model]
    inputs, _ = problem.random_samples(2, np.random.default_rng(0))
    assert build(problem)(torch.from_numpy(inputs)).shape == (2, problem.num_outputs)
