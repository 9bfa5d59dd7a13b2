"""`hflray.tune.precompile` compiles the kernels of a sweep's trials beforehand; the command imports few libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from hflray.sweep import expand, load_sweep
from hflray.tune import precompile

HEAVY = ("torch", "numba", "scipy", "pandas", "sklearn", "mlflow", "ray.tune", "ray.rllib", "cvxpy")


@pytest.mark.parametrize(
    "module, allowed",
    [("hflray.tune.cli", ()), ("hflray.training.actors", ()), ("hflray.tune.trial", ("torch", "pandas", "ray.tune"))],
)
def test_a_process_imports_only_the_libraries_that_it_needs(module: str, allowed: tuple[str, ...]) -> None:
    """The command, an edge's actor and a trial import only the heavy libraries of their own work."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert set(eval(output)) <= set(allowed)


def test_trials_with_the_same_kernels_have_one_name_for_them() -> None:
    quickstart = [trial.config for trial in expand(load_sweep(None))]
    assert {precompile.kernels_name(config) for config in quickstart} == {"per_edge no search"}
    searching = expand(load_sweep(None, ["assignment.name=hfel", "allocation.coupling=joint"]))[0].config
    assert precompile.kernels_name(searching) == "joint hfel"
    polished = expand(load_sweep(None, ["assignment.name=d3qn", "assignment.polish_ms=optimum"]))[0].config
    assert precompile.kernels_name(polished) == "per_edge local_search"


def test_a_process_starts_for_kernels_that_are_not_cached(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started: list[list[str]] = []
    recorder = SimpleNamespace(Popen=lambda command, **_: started.append(command), DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(precompile, "subprocess", recorder)
    trials = expand(load_sweep(None))
    precompile.begin(trials)
    (command,) = started  # all trials share one process
    config, stamp = command[-2:]
    assert config == trials[0].config.model_dump_json()
    open(stamp, "w").close()
    precompile.begin(trials)
    monkeypatch.setattr(precompile, "cpu_model", lambda: "another")
    precompile.begin(trials)
    assert len(started) == 2  # the kernels are cached for this CPU but not for another one
    reference = expand(load_sweep(None, ["allocation.method=cvxpy"]))
    precompile.begin(reference)
    assert len(started) == 2


def test_the_compilation_and_its_seconds_are_told() -> None:
    lines: list[str] = []
    precompile.announce([], lines.append)
    assert lines == []
    for code, end in ((0, "compiled the kernels of this sweep in "), (1, "the kernels could not be compiled")):
        lines.clear()
        precompile.announce([SimpleNamespace(wait=lambda code=code: code)], lines.append)
        waiters = [thread for thread in threading.enumerate() if thread.name == "hflray-kernels"]
        for thread in waiters:
            thread.join(timeout=10)
        assert lines[0].startswith("compiling the kernels")
        assert lines[1].startswith(end)


def test_cached_kernels_are_not_compiled_again(tmp_path) -> None:
    config = expand(load_sweep(None))[0].config
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = "from numba.core import event\nimport sys\nfrom hflray.config import ExperimentConfig\n"
    code += "from hflray.tune import precompile\nevents = []\n"
    code += (
        "class Recorder(event.Listener):\n    def on_start(self, e): events.append(e)\n    def on_end(self, e): pass\n"
    )
    code += "event.register('numba:compile', Recorder())\n"
    code += "precompile.compile_for(ExperimentConfig.model_validate_json(sys.argv[1]))\nprint(len(events))"
    stamp = tmp_path / "stamp"
    first = [sys.executable, "-m", "hflray.tune.precompile", config.model_dump_json(), str(stamp)]
    subprocess.run(first, env=env, check=True, capture_output=True, timeout=200)
    assert stamp.exists()
    second = [sys.executable, "-c", code, config.model_dump_json()]
    output = subprocess.run(second, env=env, check=True, capture_output=True, text=True, timeout=200).stdout
    assert output.strip() == "0"
