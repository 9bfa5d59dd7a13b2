"""``make mutants``: the sample is seeded and tells something, and a small package's mutants are killed or survive."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.mutants  # they need cosmic-ray, the extra `mutants`

SMALL = '''
from __future__ import annotations


def double(x: int | None) -> int | None:
    """Return 2 x."""
    y: int | str = x * 2
    return y


def untested(x):
    return x + 1
'''
ITS_TEST = """
from hflray.small import double


def test_double():
    assert double(3) == 6
"""


# Options for the whole suite must not reach the forks.
SETTINGS = """
[tool.pytest.ini_options]
addopts = "-n auto --dist loadfile --strict-markers"
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one module and its mirror test."""
    root = tmp_path / "repository"
    for name, text in (("hflray/__init__.py", ""), ("hflray/small.py", SMALL), ("tests/__init__.py", ""),
                       ("tests/test_small.py", ITS_TEST), ("pyproject.toml", SETTINGS)):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def worker(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.mutants.worker import Worker

    for name in ("NUMBA_CACHE_DIR", "OMP_NUM_THREADS"):  # the worker sets them; the fixture sets them back
        monkeypatch.setenv(name, "1")
    return Worker(tmp_path / "work", repository)


def test_the_mutants_of_a_small_module_are_killed_or_survive(repository: Path, tmp_path: Path, worker) -> None:
    from tests.mutants.session import Session, run_mutants

    lines: list[str] = []
    session = Session(tmp_path / "sessions", {"small": SMALL}, seed=0, count=4)
    assert session.places == {"small": 6}  # two operators and two numbers, and two bars between types
    run_mutants(session, session.pending(), worker, lines.append, limit=3)
    # The run was broken off after three mutants, and goes on with the last one.
    again = Session(tmp_path / "sessions", {"small": SMALL}, seed=0, count=4)
    assert len(again.pending()) == 1
    run_mutants(again, again.pending(), worker, lines.append)
    outcomes = {one.was: one.outcome for one in again.results()}
    assert outcomes == {"y: int | str = x * 2": "killed", "return x + 1": "survived"}
    assert [one.outcome for one in again.results()].count("survived") == 2
    assert {one.test.rpartition("::")[2] for one in again.results() if one.outcome == "killed"} == {"test_double"}
    assert (repository / "hflray" / "small.py").read_text() == SMALL
    assert any("survived" in line for line in lines)


def test_a_module_that_changed_is_drawn_anew_and_the_results_of_others_stay(tmp_path: Path, worker) -> None:
    from tests.mutants.session import Session, run_mutants

    both = {"small": SMALL, "other": "x = 1 + 2\n"}
    session = Session(tmp_path / "sessions", both, seed=0, count=7)
    run_mutants(session, [one for one in session.pending() if one.module == "small"], worker, lambda line: None)
    pending = [one for one in session.pending() if one.module == "other"]
    assert len(pending) == 3
    later = Session(tmp_path / "sessions", both | {"other": "x = 1 - 2\n"}, seed=0, count=7)
    assert len(later.results()) == 4
    assert {one.module for one in later.pending()} == {"other"}
    assert Session(tmp_path / "sessions", both | {"small": SMALL + "\n"}, seed=0, count=7).results() == []


def test_tests_that_fail_without_a_mutant_stop_the_run(tmp_path: Path, worker) -> None:
    from tests.mutants.session import Session, run_mutants

    (worker.tree / "tests" / "test_small.py").write_text(ITS_TEST.replace("6", "7"))
    session = Session(tmp_path / "sessions", {"small": SMALL}, seed=0, count=4)
    with pytest.raises(RuntimeError, match=r"tests/test_small\.py: killed without a mutant: .*test_double"):
        run_mutants(session, session.pending(), worker, lambda line: None)
    assert len(session.pending()) == 4


def test_a_mutant_that_does_not_end_is_killed_by_time(worker) -> None:
    endless = SMALL.replace("return y", "while True: y = x")
    outcome = worker.run(["tests/test_small.py"], "hflray/small.py", endless, limits_s=(60.0, 1.0))
    assert outcome.result == "timeout"
    sleeping = SMALL.replace("return y", "import time; time.sleep(99)")
    outcome = worker.run(["tests/test_small.py"], "hflray/small.py", sleeping, limits_s=(2.0, 60.0))
    assert outcome.result == "timeout"
    assert worker.run(["tests/test_small.py"]).result == "survived"  # the file is as it was


def test_a_sample_is_a_function_of_its_seed_with_one_mutant_of_a_place() -> None:
    from tests.mutants.sample import draw

    sources = {"a": "x = [1 + 2 * 3, 4 - 5]\ny = 7 < 8\n", "b": "z = 9 and 10\n"}
    one, two, other = draw(sources, 12, 0), draw(sources, 12, 0), draw(sources, 12, 1)
    assert one == two != other
    assert len(one) == 12
    assert len({(mutant.module, mutant.start) for mutant in one}) == 12
    # A larger sample holds the smaller one, so that a sample can grow.
    assert set(draw(sources, 10, 0)) <= set(one)


def test_mutants_that_tell_nothing_are_left_out() -> None:
    from tests.mutants.sample import all_mutants, is_telling, mutated

    assert is_telling("core/ReplaceBinaryOperator_Add_Sub")
    assert is_telling("core/ReplaceBinaryOperator_BitOr_BitAnd")
    assert not is_telling("core/ReplaceBinaryOperator_Add_BitOr")
    assert is_telling("core/ReplaceComparisonOperator_Lt_LtE")
    assert not is_telling("core/ReplaceComparisonOperator_Eq_Is")
    assert is_telling("core/NumberReplacer")
    bars = [mutant for mutant in all_mutants("small", SMALL) if "BitOr" in mutant.operator]
    assert bars
    assert all(mutated(SMALL, mutant) is None for mutant in bars)  # they change annotations only


def test_each_module_gets_its_share_and_at_least_five() -> None:
    from tests.mutants.sample import quotas

    assert quotas({"large": 900, "small": 20, "tiny": 3}, 100) == {"large": 92, "small": 5, "tiny": 3}
    assert quotas({"a": 4, "b": 2}, 100) == {"a": 4, "b": 2}
    assert sum(quotas({"a": 333, "b": 333, "c": 334}, 100).values()) == 100


def test_the_lines_of_a_kernel_are_known() -> None:
    from tests.mutants.worker import in_kernel

    source = "def plain():\n    return 1\n\n\n@kernel\ndef fast():\n    return 2\n"
    assert [in_kernel(source, line) for line in (1, 2, 5, 6, 7)] == [False, False, True, True, True]


def test_a_judgement_belongs_to_a_line_and_what_it_becomes(tmp_path: Path) -> None:
    from tests.mutants.report import judge, read_judgements
    from tests.mutants.sample import Mutant
    from tests.mutants.session import Result

    file = tmp_path / "survivors.yaml"
    file.write_text("- {module: a, was: x < 1, becomes: x <= 1, kind: same, why: x is never 1}\n")
    mutant = Mutant("a", "core/X", 0, (1, 0), (1, 1))
    known = Result(mutant, "x < 1", "x <= 1", "survived", "", 0.1)
    unknown = Result(mutant, "x < 1", "x > 1", "survived", "", 0.1)
    assert judge(known, read_judgements(file)) == ("same", "x is never 1")
    assert judge(unknown, read_judgements(file)) == ("gap", "not judged yet")
    file.write_text("- {module: a, was: x, becomes: y, kind: fine, why: z}\n")
    with pytest.raises(ValueError, match="accepted: same, gap"):
        read_judgements(file)
