"""Whether the constants of a log hold: verdicts on rows that were not fitted.

Of each device the last quarter of its rounds is held out (*later rounds*), one of its edges (*unseen edges*), and in
turn each third of its batch sizes and of its numbers of steps (*unseen batch or steps*). A verdict is "fits" if the
median relative error is at most 10 % and the ranks of configurations correlate by 0.9 or more. Ranks count where
configurations differ by more than noise. Residuals over rounds only say why, and find two regimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from hflray.calibration.fit import medians
from hflray.calibration.log import Log
from hflray.calibration.model import WATTS, Model, without
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.text import one_line

FITS, DOES_NOT, NOT = "fits", "does not fit", "not tested"
LATER, EDGES, WORK, UNITS = "later rounds", "unseen edges", "unseen batch or steps", "units"
MOST_ERROR, LEAST_RANK = 0.1, 0.9
LEAST_ROWS, LEAST_ROUNDS = 8, 4  # of a device that is tested
LEAST_CONFIGURATIONS = 4  # for ranks
ALIKE_PART = 0.035  # the least noise of a configuration: two that differ by 5 % may change places
DRAWS, MOST_DRAWN = 100, 1000  # of noise on how many configurations, which say whether ranks can reach `LEAST_RANK`
OFF, MOST_OFF = 0.5, 0.1  # a relative error that makes a row an outlier, and the part of such rows that is accepted
LEAST_DRIFT, DRIFT_LEVEL = np.log(1.2), 0.01  # over all rounds, on logarithms; and the level over all devices
REGIME_ROWS, LEAST_PART, LEAST_RATIO, LEAST_GAP = 16, 0.15, np.log(1.3), 5.0  # the gap in spreads of a regime
THOUSAND, ALIKE = (500.0, 2000.0), 30.0  # ratios that look like a unit; the most ratio among the other devices
# What a log's medians lie between unless a unit is wrong. 4e-4 s a byte are 20 kbit/s.
PLAUSIBLE = {
    "train_s": ("s a step", 1e-8, 60.0), "send_s": ("s a byte", 8e-12, 4e-4),
    "train_j": ("W", 5e-3, 2e3), "send_j": ("W", 5e-3, 2e3),
}  # fmt: skip


class Verdict(NamedTuple):
    """An answer for one kind of held-out rows and one quantity.

    Attributes:
        kind: what was held out.
        quantity: ``train_s``, ``send_s``, ``train_j`` or ``send_j``.
        answer: `FITS`, `DOES_NOT` or `NOT`.
        reason: why it does not fit, or was not tested; else empty.
        median_error: of the held-out rows; NaN if there is none.
        rank: Spearman's correlation of configurations; NaN if they do not differ by more than noise.
        rows: how many were held out and predicted.
    """

    kind: str
    quantity: str
    answer: str
    reason: str
    median_error: float = np.nan
    rank: float = np.nan
    rows: int = 0


def overall(verdicts: Iterable[Verdict]) -> str:
    """Return the worst answer: it fits only if something was tested."""
    answers = {verdict.answer for verdict in verdicts}
    return next((answer for answer in (DOES_NOT, FITS) if answer in answers), NOT)


def judge(log: Log, model: Model) -> list[Verdict]:
    """Return the verdicts on a log, whose constants from all rows are `model`."""
    predicted = model.predict(log)
    present = ["train_s", "send_s", *model.watts]
    verdicts = suspected_units(log, model)
    for kind, masks, quantities in (
        (LATER, [_last_rounds(log)], present),
        (EDGES, _one_edge(log), [name for name in present if name.startswith("send")]),
        (WORK, _thirds(log), [name for name in present if name.startswith("train")]),
    ):
        errors = {name: np.full(len(log), np.nan) for name in quantities}
        for mask in masks:
            if not mask.any():
                continue
            rest = without(log, model, mask, tuple({name.partition("_")[0] for name in quantities}))
            for name, values in rest.predict(log).items():
                if name in errors:
                    use = mask & _predictable(kind, name, log, model, rest)
                    with np.errstate(divide="ignore", invalid="ignore"):
                        errors[name][use] = (values / log.numbers[name] - 1)[use]
        for name in quantities:
            error = np.where(np.isfinite(errors[name]), errors[name], np.nan)
            why = _why_not(kind, log)
            reasons = _residual_reasons(log, name, predicted[name], error) if kind == LATER and name[-1] == "s" else []
            verdicts.append(_verdict(kind, name, log, model, error, reasons, why))
    return verdicts


def _verdict(kind: str, name: str, log: Log, model: Model, error: FloatArray, reasons: list[str], why: str) -> Verdict:
    tested = np.flatnonzero(np.isfinite(error))
    few = _counts(log).max() < LEAST_ROWS
    if not len(tested):
        return Verdict(kind, name, DOES_NOT if kind == LATER and few else NOT, why)
    size = np.abs(error[tested])
    middle, spread = float(np.median(size)), _spread(name, model)
    rank = _rank(log, name, tested[size <= OFF], error, spread)
    off = float((size > OFF).mean())
    if off > MOST_OFF:
        reasons = [*reasons, f"outliers: {off:.0%} of the rows are off by more than half"]
    if middle > MOST_ERROR:
        form = f"rows scatter by {spread:.0%}" if spread * 0.6745 > MOST_ERROR else "the constants do not hold there"
        reasons = reasons or [form]
    if rank < LEAST_RANK:
        reasons = [*reasons, "the order of configurations is another one"]
    bad = bool(reasons)
    return Verdict(kind, name, DOES_NOT if bad else FITS, "; ".join(reasons), middle, rank, len(tested))


def _spread(name: str, model: Model) -> float:
    """Return the usual relative standard deviation of rows, 0 if no group has more rows than constants."""
    fitted = model.watts.get(name, model.train if name == "train_s" else model.send)
    spreads = fitted.spread[np.isfinite(fitted.spread)]
    return float(np.median(spreads)) if len(spreads) else 0.0


def _counts(log: Log) -> IntArray:
    return np.bincount(log.device, minlength=len(log.devices))


def _predictable(kind: str, name: str, log: Log, model: Model, rest: Model) -> BoolArray:
    """Return the rows of devices with enough rows whose constants the rest tells apart as all rows do."""
    use = (_counts(log) >= LEAST_ROWS)[log.device]
    if name.startswith("train"):
        return np.asarray(use & (rest.train.apart == model.train.apart).all(axis=1)[log.device])
    if kind == EDGES:
        return np.asarray(use & (rest.alone.apart == model.alone.apart).all(axis=1)[log.device])
    return np.asarray(use & (rest.send.apart == model.send.apart).all(axis=1)[model.links.of_row])


def _why_not(kind: str, log: Log) -> str:
    """Return why no row could be held out."""
    if (most := int(_counts(log).max())) < LEAST_ROWS:
        return f"too few rows: a device has at most {most}, and {LEAST_ROWS} are needed"
    if kind == LATER:
        return f"no device with {LEAST_ROWS} rows has {LEAST_ROUNDS} rounds that tell its constants apart"
    if kind == EDGES:
        return (
            "the log has no column edge"
            if not log.edges
            else "no device has rows at two edges of which one predicts the other"
        )
    return "no device has three batch sizes, or three numbers of steps, of which two predict the third"


def _last_rounds(log: Log) -> BoolArray:
    """Return the rows of the last quarter of each device's rounds."""
    frame = pd.DataFrame({"device": log.device, "round": log.numbers["round"]})
    grouped = frame.groupby("device")["round"]
    place, rounds = grouped.rank(method="dense"), grouped.transform("nunique")
    return np.asarray((place > np.floor(0.75 * rounds)) & (rounds >= LEAST_ROUNDS))


def _one_edge(log: Log) -> Iterable[BoolArray]:
    """Yield the rows of one edge of each second device that has several, so that the others say what edges take."""
    frame = pd.DataFrame({"device": log.device, "edge": log.edge})
    grouped = frame.groupby("device")["edge"]
    place, edges = grouped.rank(method="dense").to_numpy() - 1, grouped.transform("nunique").to_numpy()
    chosen = (place == log.device // 2 % edges) & (edges > 1)
    yield from (chosen & (log.device % 2 == half) for half in range(2))


def _thirds(log: Log) -> Iterable[BoolArray]:
    """Yield the rows of the low, the middle and the high third of batch sizes and of steps of each device."""
    for name in ("batch", "steps"):
        grouped = pd.DataFrame({"device": log.device, name: log.numbers[name]}).groupby("device")[name]
        place, values = grouped.rank(method="dense").to_numpy() - 1, grouped.transform("nunique").to_numpy()
        third = np.where(values >= 3, np.floor(3 * place / np.maximum(values, 1)), np.nan)
        yield from (third == part for part in range(3))


def _rank(log: Log, name: str, tested: IntArray, error: FloatArray, spread: float) -> float:
    """Return the rank correlation of configurations, each by medians, without outliers.

    It is NaN with few configurations, and where noise on what was predicted alone may bring it below `LEAST_RANK`.
    """
    work = ("samples", "steps") if name.startswith("train") else ("bytes",)
    frame = pd.DataFrame({"device": log.device, **{key: log.numbers[key] for key in work}})
    if name.startswith("send"):
        frame["edge"] = log.edge
    keys = list(frame.columns)
    measured = log.numbers[name][tested]
    frame = frame.iloc[tested].assign(measured=measured, predicted=measured * (1 + error[tested]))
    grouped = frame.groupby(keys)[["measured", "predicted"]]
    middle = grouped.median()
    middle = middle[(middle > 0).all(axis=1)]
    rank = float(middle["measured"].rank().corr(middle["predicted"].rank()))
    if len(middle) < LEAST_CONFIGURATIONS or rank >= LEAST_RANK:
        return rank if len(middle) >= LEAST_CONFIGURATIONS else float("nan")
    drawn_from = np.unique(np.linspace(0, len(middle) - 1, MOST_DRAWN).astype(int))
    predicted, count = (
        middle["predicted"].to_numpy()[drawn_from],
        grouped.size().reindex(middle.index).to_numpy()[drawn_from],
    )
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(drawn_from)))
    noise *= np.maximum(min(spread, 1.0) / np.sqrt(count), ALIKE_PART)
    drawn = [pd.Series(predicted * np.exp(errors)).rank().corr(pd.Series(predicted).rank()) for errors in noise]
    return rank if np.quantile(drawn, 0.05) >= LEAST_RANK else float("nan")


def _residual_reasons(log: Log, name: str, predicted: FloatArray, error: FloatArray) -> list[str]:
    """Return what residuals over rounds show: drift of devices whose later rounds are off, and two regimes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = np.log(log.numbers[name] / predicted)
    use = np.isfinite(residual)
    device, residual, rounds = log.device[use], residual[use], log.numbers["round"][use]
    late = medians(np.abs(error), log.device, len(log.devices))
    drift = np.where(late > MOST_ERROR, _drifts(residual, rounds, device, len(log.devices)), np.nan)
    ratio, part = _regimes(residual, device, len(log.devices))
    return [
        *_named(log, drift, lambda n: f"{name} {'rises' if drift[n] > 0 else 'falls'} to {np.exp(drift[n]):.0%} over "
                "its rounds", "drift"),
        *_named(log, ratio, lambda n: f"{part[n]:.0%} of its rows take {np.exp(ratio[n]):,.1f} times as long"
                + " (some look like milliseconds)" * _is_thousand(np.exp(ratio[n])), "two regimes"),
    ]  # fmt: skip


def _named(log: Log, values: FloatArray, text: Callable[[int], str], reason: str) -> list[str]:
    """Return a reason that names the worst device and counts all whose value is finite, if there are any."""
    places = np.flatnonzero(np.isfinite(values))
    if not len(places):
        return []
    worst = int(places[np.argmax(np.abs(values[places]))])
    several = f"{len(places)} of {len(log.devices)} devices, such as " if len(places) > 1 else "device "
    return [f"{reason} of {several}{one_line(log.devices[worst])} ({text(worst)})"]


def _is_thousand(ratio: float) -> bool:
    return bool(THOUSAND[0] < ratio < THOUSAND[1])


def _drifts(residual: FloatArray, rounds: FloatArray, device: IntArray, devices: int) -> FloatArray:
    """Return by how much residuals change over a device's rounds; NaN: not by enough, or not beyond chance."""
    frame = pd.DataFrame({"x": rounds, "y": residual, "device": device})
    grouped = frame.groupby("device")
    centred = frame[["x", "y"]] - grouped[["x", "y"]].transform("mean")
    count = np.bincount(device, minlength=devices)
    xx, xy, yy = (
        np.bincount(device, centred[a].to_numpy() * centred[b].to_numpy(), devices) for a, b in ("xx", "xy", "yy")
    )
    ends = grouped["x"].agg(["min", "max"]).reindex(range(devices)).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = xy / xx
        free = np.maximum(count - 2, 1)
        t = np.abs(slope) / np.sqrt(np.maximum(yy - slope * xy, 1e-18) / free / xx)
        change = slope * (ends[:, 1] - ends[:, 0])
    beyond = t > stdtrit(free, 1 - DRIFT_LEVEL / 2 / max(devices, 1))
    return np.where((count >= LEAST_ROWS) & beyond & (np.abs(change) >= LEAST_DRIFT), change, np.nan)


def _regimes(residual: FloatArray, device: IntArray, devices: int) -> tuple[FloatArray, FloatArray]:
    """Return how far two groups of a device's residuals lie apart, and the part of the higher; NaN: it has one group.

    The groups are those of least squares (Otsu's threshold).
    """
    order = np.lexsort((residual, device))
    y, device = residual[order], device[order]
    count = np.bincount(device, minlength=devices)
    start = np.cumsum(count) - count
    sums = np.concatenate([[0.0], np.cumsum(y)])
    squares = np.concatenate([[0.0], np.cumsum(y * y)])
    place, n, first = np.arange(1, len(y) + 1), count[device], start[device]
    low, high = place - first, n - (place - first)  # rows on both sides of a threshold behind each row
    low_sum, every = sums[place] - sums[first], (sums[first + n] - sums[first])
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = (every - low_sum) / high - low_sum / low
        within = squares[first + n] - squares[first] - low_sum**2 / low - (every - low_sum) ** 2 / high
    between = np.where(high > 0, low * high / n * gap**2, -1.0)
    best = pd.Series(between).groupby(device).idxmax()
    at, of = best.to_numpy(), best.index.to_numpy()
    part, spread = high[at] / n[at], np.sqrt(np.maximum(within[at], 0) / n[at])
    two = (n[at] >= REGIME_ROWS) & (np.minimum(part, 1 - part) >= LEAST_PART)
    two &= (gap[at] >= LEAST_RATIO) & (gap[at] >= LEAST_GAP * spread)
    ratios, parts = np.full(devices, np.nan), np.full(devices, np.nan)
    ratios[of[two]], parts[of[two]] = gap[at][two], part[two]
    return ratios, parts


def suspected_units(log: Log, model: Model) -> list[Verdict]:
    """Return a verdict for each quantity whose unit looks wrong: of a device beside the others, or of all rows."""
    numbers, devices, verdicts = log.numbers, len(log.devices), dict[str, Verdict]()
    with np.errstate(divide="ignore", invalid="ignore"):
        per = {
            "train_s": numbers["train_s"] / np.where(numbers["steps"] > 0, numbers["steps"], numbers["samples"]),
            "send_s": numbers["send_s"] / numbers["bytes"],
            "train_j": numbers["train_j"] / numbers["train_s"],
            "send_j": numbers["send_j"] / numbers["send_s"],
        }
    bytes_of = medians(numbers["bytes"], log.device, devices)
    for name, values in per.items():
        level = medians(np.where((values > 0) & np.isfinite(values), values, np.nan), log.device, devices)
        levels = np.sort(level[np.isfinite(level)])
        if not len(levels) or (name in WATTS and WATTS[name][1] in verdicts):
            continue
        unit, least, most = PLAUSIBLE[name]
        middle = levels[(len(levels) - 1) // 2]
        ratio = level / middle
        odd = np.flatnonzero([_is_thousand(times) or _is_thousand(1 / times) for times in ratio])
        alike = levels[(levels > middle / THOUSAND[0]) & (levels < middle * THOUSAND[0])]
        small = "milliseconds" if name.endswith("_s") else "millijoules"
        if len(odd) and 2 * len(odd) <= len(levels) and alike.max() / alike.min() < ALIKE:
            n = int(odd[0])
            guess = (
                f"it looks like {small}" if ratio[n] > 1 else f"the others look like {small}, or it like another unit"
            )
            if name == "send_s" and _is_thousand(np.nanmedian(np.delete(bytes_of, n)) / bytes_of[n]):
                guess = "its bytes look like kilobytes"
            device = one_line(log.devices[n])
            text = f"{name} of device {device} is {ratio[n]:,.3g} times what the others take: {guess}"
            verdicts[name] = Verdict(UNITS, name, DOES_NOT, text)
        elif not least <= middle <= most:
            guess = f"{name} looks like {small}" if (middle > most) else f"{name} looks like another unit"
            if name in WATTS and middle < least:
                guess = f"{WATTS[name][1]} looks like milliseconds"
            guess += ", or bytes like kilobytes" * int(name == "send_s" and middle > most)
            text = f"{middle:.3g} {unit} at the median, and {least:g} to {most:g} are plausible: {guess}"
            verdicts[name] = Verdict(UNITS, name, DOES_NOT, text)
    return list(verdicts.values())
