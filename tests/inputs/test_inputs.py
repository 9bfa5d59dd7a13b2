"""Mutated inputs: the command lists the trials or prints a complete line for each mistake, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inputs import __main__ as command
from tests.inputs.corpus import MENDED, Mended
from tests.inputs.grammar import case
from tests.inputs.harness import Ended, Place, classify, new_place


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with new_place() as place:
        yield place


@pytest.mark.parametrize("mended", MENDED, ids=lambda mended: mended.name)
def test_an_input_that_once_broke_the_command(place: Place, mended: Mended) -> None:
    ended = place.call(mended.case)
    assert not ended.reason
    assert ended.outcome == ("valid" if mended.now is None else "refused"), ended.errors
    if mended.now is not None:
        assert mended.now in ended.errors[0]


# The cases change with every shipped sweep file. About one in ten is valid, so that of 40 hardly ever all are refused.
@pytest.mark.parametrize(
    "seed, count, as_processes",
    [
        (7, 40, False),
        pytest.param(0, 2000, False, marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
        pytest.param(1, 50, True, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_mutated_inputs(place: Place, seed: int, count: int, as_processes: bool) -> None:
    results = command.run(place, [case(seed, number) for number in range(count)], as_processes)
    assert {ended.outcome for _, ended in results} == {"valid", "refused"}


@pytest.mark.parametrize(
    "code, err, outcome",
    [
        (0, "", "valid"), (0, "Traceback (most recent call last):", "defect"), (1, "error: seed: got x", "defect"),
        (2, "", "defect"), (2, "error: seed: got x; accepted: y; correct it", "refused"),
        (2, "error: seed: got x", "defect"), (None, "ValueError: x", "defect"),
    ],
)  # fmt: skip
def test_an_ending_is_classified(code: int | None, err: str, outcome: str) -> None:
    assert classify(code, "", err, 1.0).outcome == outcome
    assert classify(code, "", err, 21.0).outcome == "defect"


def test_the_page_keeps_its_text_and_gets_the_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "inputs.md"
    path.write_text(command.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    ended = Ended("refused", 2, ("error: fleet.num_edges: got 0; accepted: 1",), 0.5)
    command.write(path, command.page([(case(0, 1), ended)], [], 0))
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# What the command accepts")
    assert "| all | 1 | 0 | 1 | 0 | 0.5 |" in text
