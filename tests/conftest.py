"""Shared fixtures: small experiments, and one Ray for all tests that need it."""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from hflray.config import ExperimentConfig, load_config
from hflray.support.limits import available_cpus

# On a busy machine a draw may take longer than Hypothesis's limit of 200 ms.
settings.register_profile("hflray", deadline=None)
settings.load_profile("hflray")

SMALL = (
    "max_rounds=3", "data.name=digits", "fleet.num_devices=12", "fleet.num_edges=3", "scheduling.num_scheduled=6",
    "scheduling.num_clusters=5", "assignment.name=geographic", "training.local_iterations=1",
    "training.edge_iterations=2", "training.batch_size=16", "training.backend=serial",
)  # fmt: skip


FIFTHS = 5
STDERR = pytest.StashKey[int]()
GRACE_S = 60.0  # after the limit of pytest-timeout, whose signal Python may not get to handle
BEGAN_S = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options with which `.ci/run` runs a part of the slow tests, in a time that it has."""
    parser.addoption("--fifth", type=int, choices=range(FIFTHS), help="run this fifth of the tests only, from 0")
    parser.addoption("--within", type=float, metavar="MINUTES", help="begin no test later, and skip the rest")


def fifth_of(node_id: str) -> int:
    """Return the fifth of a test, which does not depend on the other tests."""
    return zlib.crc32(node_id.encode()) % FIFTHS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of ``--fifth``."""
    fifth = config.option.fifth
    if fifth is not None:
        others = [item for item in items if fifth_of(item.nodeid) != fifth]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if fifth_of(item.nodeid) == fifth]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin later than ``--within`` allows."""
    minutes = item.config.option.within
    if minutes is not None and time.monotonic() - BEGAN_S > 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes of --within are over")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr, which no test captures."""
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """End a process whose test is still there long after its time, and show where: no signal ends a call of Ray."""
    faulthandler.dump_traceback_later(settings.timeout + GRACE_S, file=item.config.stash[STDERR], exit=True)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Let the process go on after a test that has ended."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: two processes for the whole ordinary suite, none for chosen files and for tests that measure."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    ordinary = config.option.markexpr == "not slow and not cluster and not gpu and not mutants"
    return 2 if whole and ordinary and len(available_cpus()) > 1 else 0


@pytest.fixture(autouse=True)
def _no_ambient_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tests' runs away from a tracking server or cluster in the caller's environment, and from known ones."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))


@pytest.fixture(autouse=True)
def _same_cpus() -> Iterator[None]:
    """Give the process back the CPUs that a test has taken from it."""
    cpus = available_cpus()
    yield
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Draw the same random tensors in every run of a test; torch would seed itself by the clock."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def small_config(*overrides: str) -> ExperimentConfig:
    """Return the configuration of a small experiment on digits in this process."""
    return load_config(None, [*SMALL, *overrides])


def own_module(name: str) -> str:
    """Return the text of a module of a user's own, from own.yaml."""
    text: str = yaml.safe_load(Path(__file__).with_name("own.yaml").read_text(encoding="utf-8"))[name]
    return text


@cache
def _tables(file: str) -> dict[str, list[Any]]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # type: ignore[no-any-return]


def refusals(name: str) -> list[Any]:
    """Return a table of refusals.yaml."""
    return _tables("refusals.yaml")[name]


def cases(name: str) -> list[Any]:
    """Return a table of cases.yaml."""
    return _tables("cases.yaml")[name]


def says(text: str, *facts: str) -> bool:
    """Return whether a message has these facts, each after the one before; a test of a message names its facts only."""
    return re.search(".*".join(map(re.escape, facts)), text, re.DOTALL) is not None


@contextmanager
def refusal(kind: type[Exception] | tuple[type[Exception], ...], *facts: str) -> Iterator[None]:
    """Expect an error whose message is one line with these facts, each after the one before."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert says(message, *facts), message


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Run one Ray for the whole test session, with 2 CPUs and a fictitious GPU for tests of its reservation."""
    if "HFLRAY_TEST_WITHOUT_RAY" in os.environ:
        pytest.skip("tests/mutants runs none that starts Ray")
    import ray

    from hflray.support.ray_private import one_machine

    ray.shutdown()  # an example may have started one
    with one_machine():
        ray.init(
            address="local",  # do not join a cluster that runs on this machine
            num_cpus=2,
            num_gpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=300 * 2**20,
        )
    yield
    ray.shutdown()


@pytest.fixture
def real_data() -> Path:
    """Return the folder of the real data sets, or skip the test if there is none."""
    root = os.environ.get("HFLRAY_DATA")
    if not root or not (Path(root) / "fashion_mnist.npz").exists():
        pytest.skip("$HFLRAY_DATA holds no fashion_mnist.npz")
    return Path(root)
