"""hflray.tune.warm: what a sweep's trials will need is compiled beforehand, and what the command imports meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hflray.sweep import expand, load_sweep
from hflray.tune import warm

HEAVY = ("torch", "numba", "scipy", "pandas", "sklearn", "mlflow", "ray.tune", "ray.rllib", "cvxpy")


@pytest.mark.parametrize(
    "module, allowed",
    [("hflray.tune.cli", ()), ("hflray.training.actors", ()), ("hflray.tune.trial", ("torch", "pandas", "ray.tune"))],
)
def test_what_a_process_imports_before_it_works(module: str, allowed: tuple[str, ...]) -> None:
    """The command reads its file, an edge's actor adds, and a trial trains, without what others need."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert set(eval(shown)) <= set(allowed)


def test_kernels_have_one_name_for_all_trials_that_use_the_same() -> None:
    quickstart = [trial.config for trial in expand(load_sweep(None))]
    assert {warm.what_for(config) for config in quickstart} == {"per_edge no search"}
    searching = expand(load_sweep(None, ["assignment.name=hfel", "allocation.coupling=joint"]))[0].config
    assert warm.what_for(searching) == "joint hfel"
    polished = expand(load_sweep(None, ["assignment.name=d3qn", "assignment.polish_ms=optimum"]))[0].config
    assert warm.what_for(polished) == "per_edge local_search"


def test_a_process_is_started_for_what_is_not_compiled_yet(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started: list[list[str]] = []
    recorder = SimpleNamespace(Popen=lambda command, **_: started.append(command), DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(warm, "subprocess", recorder)
    trials = expand(load_sweep(None))
    warm.begin(trials)
    (command,) = started  # one for all trials
    config, stamp = command[-2:]
    assert config == trials[0].config.model_dump_json()
    open(stamp, "w").close()
    warm.begin(trials)
    monkeypatch.setattr(warm, "cpu_model", lambda: "another")
    warm.begin(trials)
    assert len(started) == 2  # for this CPU it has been compiled, for another one not
    reference = expand(load_sweep(None, ["allocation.method=cvxpy"]))
    warm.begin(reference)
    assert len(started) == 2


def test_what_was_compiled_beforehand_is_not_compiled_again(tmp_path) -> None:
    config = expand(load_sweep(None))[0].config
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    again = "from numba.core import event\nimport sys\nfrom hflray.config import ExperimentConfig\n"
    again += "from hflray.tune import warm\nseen = []\n"
    again += "class Seen(event.Listener):\n    def on_start(self, e): seen.append(e)\n    def on_end(self, e): pass\n"
    again += "event.register('numba:compile', Seen())\n"
    again += "warm.compile_for(ExperimentConfig.model_validate_json(sys.argv[1]))\nprint(len(seen))"
    stamp = tmp_path / "stamp"
    first = [sys.executable, "-m", "hflray.tune.warm", config.model_dump_json(), str(stamp)]
    subprocess.run(first, env=env, check=True, capture_output=True, timeout=200)
    assert stamp.exists()
    second = [sys.executable, "-c", again, config.model_dump_json()]
    shown = subprocess.run(second, env=env, check=True, capture_output=True, text=True, timeout=200).stdout
    assert shown.strip() == "0"
