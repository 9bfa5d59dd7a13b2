"""hflray.command.doctor: every check says what it found, each problem names its fix, and the exit code follows."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple

from hflray.command import doctor as module
from hflray.command.doctor import Finding
from hflray.errors import ConfigError
from tests.command.calls import caller

Usage = namedtuple("Usage", "total used free")


call = caller("doctor")


def only(check: module.Check) -> Finding:
    (finding,) = check
    return finding


def test_a_machine_that_runs_the_tests_can_run_a_sweep(ray_session, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert (code, err, json.loads(out)["ok"]) == (0, "", True), out
    assert "starts on this machine with 2 CPUs" in findings["Ray"]["text"]
    assert findings["Python"]["text"].startswith("3.")
    folders = {f"{name} folder" for name in ("results", "data sets", "cache", "temporary")}
    machine = {"hflray", "Python", "libraries", "memory", "shared memory", "Ray", "data sets"}
    assert set(findings) == machine | folders
    assert all(finding["fix"] for finding in findings.values() if finding["problem"])
    assert list(tmp_path.iterdir()) == []


def test_a_problem_that_stops_every_sweep_makes_the_exit_code_1(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    code, out, _ = call(capsys, "--quick", "--results", "taken/results")
    assert code == 1
    assert "✗ results folder" in out
    assert "fix: make it writable, or name another with --results" in out
    assert "No sweep can run here until this is mended: results folder." in out
    code, out, _ = call(capsys, "--quick", "--json", "--results", "taken/results")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_too_little_memory_stops_sweeps(monkeypatch) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: (2**31, 2**29))
    finding = next(module.memory())
    assert finding.stops
    assert (finding.text, finding.fix != "") == ("0.5 GiB free of 2.0 GiB", True)
    assert "needs 1.7 GiB" in finding.problem


def test_a_full_disk_is_a_problem(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * 2**30, 99.5 * 2**30, 2**29))
    findings = {finding.name: finding for finding in module.folders(tmp_path, tmp_path)}
    assert findings["results folder"].stops
    assert "less than 1 GiB is free" in findings["results folder"].problem
    assert not findings["data sets folder"].stops
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * 2**30, 97 * 2**30, 3 * 2**30))
    findings = {finding.name: finding for finding in module.folders(tmp_path, tmp_path)}
    assert "over 95% full" in findings["temporary folder"].problem
    assert findings["results folder"].problem == ""


def test_a_library_of_another_version_is_named_with_its_fix(monkeypatch) -> None:
    import importlib.metadata

    wanted = ["numpy<1", "torch==2.13.*", "no-such-library>=3", "pytest>=99; extra == 'test'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    finding = list(module.versions())[-1]
    assert "no-such-library is missing" in finding.problem
    assert "is not <1" in finding.problem
    assert finding.fix == "pip install 'numpy<1' 'no-such-library>=3'"
    assert finding.stops
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted[1:2])
    assert list(module.versions())[-1].problem == ""


def test_a_ray_that_does_not_start_stops_sweeps(monkeypatch) -> None:
    from hflray.training import start

    def fail() -> int:
        raise ConfigError("RAY_ADDRESS: cannot join a cluster")

    monkeypatch.setattr(start, "start_ray", fail)
    finding = only(module.ray())
    assert finding.stops
    assert finding.problem == "RAY_ADDRESS: cannot join a cluster"
