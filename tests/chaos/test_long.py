"""The measurement of long runs: the tenths it compares, and a short real run."""

from __future__ import annotations

import os

import pytest

from tests.chaos.long import Counter, Sample, Series, folder_bytes, markdown, measure, run, table


def series(growth: float) -> Series:
    samples = [Sample(float(n), n, {"driver, MB": 100 * (1 + growth * n / 100)}) for n in range(101)]
    return Series("x", "rounds", 100, samples, 10.0, [500] * 100)


@pytest.mark.parametrize("growth, flat", [(0.0, True), (0.02, True), (0.1, False)])
def test_the_first_tenth_after_the_warm_up_is_compared_with_the_last(growth: float, flat: bool) -> None:
    made = series(growth)
    assert made.tenths("driver, MB") == pytest.approx((100 * (1 + 0.15 * growth), 100 * (1 + 0.95 * growth)))
    memory, journal = table(made)
    assert memory["flat"] is flat
    assert journal == {"quantity": "journal, bytes a round", "first": 500, "last": 500, "growth": 0, "flat": True}
    assert "| journal, bytes a round | 500.0 | 500.0 | +0.0% |" in markdown([made])


def test_a_warm_up_that_took_longer_is_left_out() -> None:
    made = series(0.1)
    made.samples = made.samples[30:]
    assert made.tenths("driver, MB") == pytest.approx((103.5, 109.5))


def test_a_quantity_that_was_not_measured_has_no_row() -> None:
    made = series(0.0)
    assert made.tenths("edge actor, MB") is None
    made.samples = made.samples[:50]
    assert made.tenths("driver, MB") is None


def test_a_counter_reads_whole_lines_once(tmp_path) -> None:
    journal = tmp_path / "hflray_results" / "x-1" / "journal" / "a.jsonl"
    journal.parent.mkdir(parents=True)
    counter = Counter(tmp_path)
    counter.update()
    journal.write_text('{"start": 1}\n{"round": 1}\n{"rou')
    counter.update()
    assert counter.rounds == 1
    counter.update()
    journal.write_text('{"start": 1}\n{"round": 1}\n{"round": 2}\n{"end": 3}\n')
    counter.update()
    assert (counter.rounds, counter.ended) == (2, 1)


def test_what_is_measured_of_this_process(tmp_path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(bytes(1000))
    assert folder_bytes(tmp_path) == 1000
    values = measure(os.getpid())
    assert values["driver, MB"] > 10
    assert values["driver, open files"] > 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_and_files_are_flat_over_rounds(tmp_path) -> None:
    """A shorter run has a wider bound, because a tenth of it has few samples; it is long enough for a fast machine."""
    made = {row["quantity"]: row for row in table(run(tmp_path, "rounds", trials=1, rounds=1500, every_s=0.5))}
    flat = ("driver, MB", "trial, MB", "device actor, MB", "gcs, MB", "driver, open files", "journal, bytes a round")
    for quantity in flat:
        assert made[quantity]["growth"] < 0.1, made[quantity]
