"""Mutated inputs: the command lists the trials or prints a complete line for each mistake, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inputs import __main__ as command
from tests.inputs.corpus import MENDED, Mended
from tests.inputs.grammar import Case, case
from tests.inputs.harness import Ended, Place, classify, new_place


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with new_place() as place:
        yield place


def defects(results: list[tuple[Case, Ended]]) -> list[str]:
    return [f"case {one.number}: {one.change}: {ended.reason}" for one, ended in results if ended.outcome == "defect"]


@pytest.mark.parametrize("mended", MENDED, ids=lambda mended: mended.name)
def test_an_input_that_once_broke_the_command(place: Place, mended: Mended) -> None:
    ended = place.call(mended.case)
    assert not ended.reason
    assert ended.outcome == ("valid" if mended.now is None else "refused"), ended.errors
    if mended.now is not None:
        assert mended.now in ended.errors[0]


# The cases change with every shipped sweep file. About one in ten is valid, so that of 40 hardly ever all are refused.
@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_mutated_inputs(place: Place, count: int) -> None:
    results = [(one, place.call(one)) for one in (case(7, number) for number in range(count))]
    assert defects(results) == []
    assert {ended.outcome for _, ended in results} == {"valid", "refused"}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_2000_mutated_inputs(place: Place) -> None:
    assert defects(command.run(place, [case(0, number) for number in range(2000)])) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_50_mutated_inputs_as_processes(place: Place) -> None:
    assert defects(command.run(place, [case(1, number) for number in range(50)], as_processes=True)) == []


@pytest.mark.parametrize(
    "code, out, err, outcome",
    [
        (0, "trials", "", "valid"),
        (0, "", "Traceback (most recent call last):", "defect"),
        (0, "", "/x.py:3: RuntimeWarning: overflow", "defect"),
        (1, "", "error: seed: got x; accepted: y", "defect"),
        (2, "", "", "defect"),
        (2, "", "error: seed: got x; accepted: y; correct it", "refused"),
        (2, "", "error: seed: got x", "defect"),
        (2, "", "error: seed: got x; accepted: y\nx", "defect"),
        (2, "", "seed: got x; accepted: y", "defect"),
        (None, "", "ValueError: x", "defect"),
    ],
)
def test_an_ending_is_classified(code: int | None, out: str, err: str, outcome: str) -> None:
    assert classify(code, out, err, 1.0).outcome == outcome
    assert classify(code, out, err, 21.0).outcome == "defect"


def test_a_case_is_a_function_of_seed_and_number() -> None:
    assert case(3, 5) == case(3, 5) != case(4, 5)


def test_the_page_keeps_its_text_and_gets_the_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "inputs.md"
    path.write_text(command.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    ended = Ended("refused", 2, ("error: fleet.num_edges: got 0; accepted: 1",), 0.5)
    command.write(path, command.page([(case(0, 1), ended)], [], 0))
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# What the command accepts")
    assert "| `fleet.num_edges` | 1 |" in text
    assert "| all | 1 | 0 | 1 | 0 | 0.5 |" in text
    command.write(path, command.page([(case(0, 1), ended)], [], 0))
    assert path.read_text(encoding="utf-8") == text
