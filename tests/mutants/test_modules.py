"""The modules whose mutants are tested exist, and so do their tests. This needs no cosmic-ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import modules
from tests.mutants.modules import MIRRORLESS, MODULES, MORE_TESTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_sample_and_its_tests_exist(module: str) -> None:
    paths = [modules.source_of(module), *modules.tests_of(module)]
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert len(paths) > 1


def test_no_module_is_named_twice_and_exceptions_are_in_the_sample() -> None:
    assert len(set(MODULES)) == len(MODULES)
    assert {*MIRRORLESS, *MORE_TESTS} <= set(MODULES)


def test_a_module_without_a_mirror_has_other_tests_and_no_mirror() -> None:
    for module in MIRRORLESS:
        folder, _, name = module.rpartition("/")
        assert module in MORE_TESTS
        assert not (ROOT / f"tests/{folder}/test_{name}.py").exists()
