"""Mutated inputs: the command lists the trials or prints a complete line for each mistake, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.inputs import __main__ as command
from tests.inputs.corpus import MENDED, Mended
from tests.inputs.grammar import case
from tests.inputs.harness import Place, new_place


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
    "seed, count", [(7, 40), pytest.param(0, 2000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_mutated_inputs(place: Place, seed: int, count: int) -> None:
    results = command.run(place, [case(seed, number) for number in range(count)])
    assert {ended.outcome for _, ended in results} == {"valid", "refused"}
