"""Whether the constants of a log hold: verdicts on rows that were not fitted.

Of each device the last quarter of its rounds is held out (*later rounds*), one of its edges (*unseen edges*), and in
turn each third of its batch sizes, then of its numbers of steps (*unseen batch or steps*), of which the worse verdict
counts. A verdict is "fits" if the median relative error is at most 10 % beside the noise of rows, this noise itself has
a median of at most 10 %, and the ranks of configurations correlate by 0.9 or more. Ranks count where configurations
differ by more than noise. Residuals over rounds find drift, two regimes, outliers, and single devices that the
constants do not describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import bdtrc, stdtrit

from hflray.calibration.fit import Fit, medians
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
MEDIAN = 0.6745  # of the sizes of normal errors, in standard deviations
CHANCE, LEVEL = 2.33, 0.01  # what noise makes of good rows in 1 of 100 cases: normal quantile, and level
MEDIAN_CHANCE = 1.17  # relative standard deviation of such a median, times the root of the number of rows
LEAST_SIGNS = 7  # rows, of which the half that is off can be told from chance
MOST_LEVERAGE = 4.0  # a prediction from few rows counts less, down to this
MOST_OWN_ERROR, LEAST_OWN_ROWS = 0.25, 16  # the median residual of one device; and how many held-out rows judge it
LEAST_TESTED = 0.5  # part of the devices on which an answer rests
DRAWS, MOST_DRAWN = 200, 1000  # of noise on how many configurations, which say whether ranks can reach `LEAST_RANK`
OFF, MOST_OFF = 0.5, 0.1  # a relative error that makes a row an outlier, and the part of such rows that is accepted
USUAL_OFF, REGIME_LEVEL = 0.05, 0.01  # a part of outliers, which are no regime, and the level over all devices
LEAST_DRIFT, DRIFT_LEVEL = np.log(1.2), 0.003  # over all rounds, on logarithms; and the level over all devices
MOST_PULL = 2.0  # of one row's logarithm on drift
REGIME_ROWS, LEAST_PART, LEAST_RATIO, LEAST_GAP = 16, 0.15, np.log(1.3), 5.0  # the gap in spreads of a regime
THOUSAND, ALIKE = (300.0, 3000.0), 30.0  # ratios that look like a unit; the most ratio among devices of one unit
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
        devices: the places of the devices that the reason names.
    """

    kind: str
    quantity: str
    answer: str
    reason: str
    median_error: float = np.nan
    rank: float = np.nan
    rows: int = 0
    devices: tuple[int, ...] = ()


def overall(verdicts: Iterable[Verdict]) -> str:
    """Return the worst answer: it fits only if something was tested."""
    answers = {verdict.answer for verdict in verdicts}
    return next((answer for answer in (DOES_NOT, FITS) if answer in answers), NOT)


def judge(log: Log, model: Model) -> list[Verdict]:
    """Return the verdicts on a log, whose constants from all rows are `model`."""
    present = ["train_s", "send_s", *model.watts]
    sending, training = ([name for name in present if name.startswith(part)] for part in ("send", "train"))
    of_batch, of_steps = (_held_out(WORK, _thirds(log, name), training, log, model) for name in ("batch", "steps"))
    return [
        *suspected_units(log, model),
        *_held_out(LATER, [_last_rounds(log)], present, log, model),
        *_held_out(EDGES, _one_edge(log), sending, log, model),
        *(max(both, key=_badness) for both in zip(of_batch, of_steps, strict=True)),
    ]


def _badness(verdict: Verdict) -> tuple[int, float]:
    return (NOT, FITS, DOES_NOT).index(verdict.answer), float(np.nan_to_num(verdict.median_error))


def _held_out(kind: str, masks: Iterable[BoolArray], names: list[str], log: Log, model: Model) -> list[Verdict]:
    """Return a verdict on each quantity: the rows of each mask are held out in turn, and masks share no row."""
    errors = {name: np.full(len(log), np.nan) for name in names}
    beside = {name: np.ones(len(log)) for name in names}
    for mask in masks:
        if not mask.any():
            continue
        rest = without(log, model, mask, tuple({name.partition("_")[0] for name in names}))
        for name, values in rest.predict(log).items():
            if name in errors:
                use = mask & _predictable(kind, name, log, model, rest)
                with np.errstate(divide="ignore", invalid="ignore"):
                    errors[name][use] = (values / log.numbers[name] - 1)[use]
                    leverage = np.nan_to_num(rest.leverage(log, name), nan=MOST_LEVERAGE)
                beside[name][use] = np.sqrt(1 + np.minimum(leverage, MOST_LEVERAGE))[use]
    predicted, verdicts = model.predict(log), []
    for name in names:
        error = np.where(np.isfinite(errors[name]), errors[name], np.nan)
        why = _residual_reasons(log, model, name, predicted[name], error) if kind == LATER else []
        verdicts.append(_verdict(kind, name, log, model, error, beside[name], why))
    return verdicts


class _Reason(NamedTuple):
    text: str
    devices: tuple[int, ...] = ()


def _verdict(
    kind: str, name: str, log: Log, model: Model, error: FloatArray, beside: FloatArray, why: list[_Reason]
) -> Verdict:
    """Return a verdict; `beside` is the spread of each row's error beside that of its noise."""
    tested = np.flatnonzero(np.isfinite(error))
    few = _counts(log).max() < LEAST_ROWS
    if not len(tested):
        return Verdict(kind, name, DOES_NOT if kind == LATER and few else NOT, _why_not(kind, log))
    size, own_size = np.abs(error), np.abs(error) / beside
    middle, spread = float(np.median(size[tested])), _spread(name, model)
    rank = _rank(log, name, tested[size[tested] <= OFF], error, spread * float(np.median(beside[tested])))
    beyond = int((own_size[tested] > np.hypot(MOST_ERROR, MEDIAN * spread)).sum())
    count = np.bincount(log.device[tested], minlength=len(log.devices))
    far = np.where((count >= LEAST_OWN_ROWS) & (kind != EDGES), medians(own_size, log.device, len(log.devices)), np.nan)
    far[~(far > OFF)] = np.nan
    why = why or _named(log.devices, far, lambda n: f"half of its rows are off by {far[n]:.0%}", "constants")
    if spread * MEDIAN > MOST_ERROR * (1 + CHANCE * MEDIAN_CHANCE / np.sqrt(_free(name, model))):
        why = why or [_Reason(f"rows scatter by {spread:.0%}")]
    elif beyond and bdtrc(beyond - 1, len(tested), 0.5) < LEVEL:
        why = why or [_Reason("the constants do not hold there")]
    if rank < LEAST_RANK:
        why = [*why, _Reason("the order of configurations is another one")]
    has_rows = np.bincount(log.device, np.isfinite(log.numbers[name]), len(log.devices)) > 0
    reason, answer = "; ".join(entry.text for entry in why), DOES_NOT if why else FITS
    if not why and (count > 0).sum() < LEAST_TESTED * has_rows.sum():
        reason, answer = f"{(count > 0).sum():,} of {has_rows.sum():,} devices have rows that can be held out", NOT
    elif not why and len(tested) < LEAST_SIGNS and np.median(own_size[tested]) > MOST_ERROR:
        reason, answer = f"{len(tested)} rows are too few to tell their errors from chance", NOT
    named = tuple(sorted({n for entry in why for n in entry.devices}))
    return Verdict(kind, name, answer, reason, middle, rank, len(tested), named)


def _fit_of(name: str, model: Model) -> Fit:
    return model.watts.get(name, model.train if name == "train_s" else model.send)


def _free(name: str, model: Model) -> int:
    """Return by how many rows groups have more of them than constants, at least 1."""
    fitted = _fit_of(name, model)
    return max(1, int(np.maximum(fitted.rows - fitted.apart.sum(axis=1), 0).sum()))


def _spread(name: str, model: Model) -> float:
    """Return the usual relative standard deviation of rows, 0 if no group has more rows than constants."""
    fitted = _fit_of(name, model)
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


def _thirds(log: Log, name: str) -> Iterable[BoolArray]:
    """Yield the rows of the low, the middle and the high third of each device's batch sizes, or of its steps."""
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
    return rank if np.quantile(drawn, 0.01) >= LEAST_RANK else float("nan")


def _residual_reasons(log: Log, model: Model, name: str, predicted: FloatArray, error: FloatArray) -> list[_Reason]:
    """Return what residuals of all rows show: drift, two regimes, outliers, and devices whose rows scatter."""
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = np.log(log.numbers[name] / predicted)
    use = np.isfinite(residual)
    device, residual, devices = log.device[use], residual[use], len(log.devices)
    ratio, part = _regimes(residual, device, devices)
    size = np.abs(np.expm1(-residual))
    off, chance = float((size > OFF).mean()), CHANCE * np.sqrt(MOST_OFF * (1 - MOST_OFF) / max(len(size), 1))
    own_size = np.where(
        np.bincount(device, minlength=devices) >= LEAST_OWN_ROWS, medians(size, device, devices), np.nan
    )
    own_size[~(own_size > MOST_OWN_ERROR)] = np.nan
    longer, small = ("much", "millijoules") if name in WATTS else ("long", "milliseconds")
    thousand = f" (some look like {small})"
    named_reasons = [
        *_drift_reason(log, model, name, residual, use, error),
        *_named(log.devices, ratio, lambda n: f"{part[n]:.0%} of its rows take {np.exp(ratio[n]):,.1f} times as "
                f"{longer}" + thousand * _is_thousand(np.exp(ratio[n])), "two regimes"),
    ]  # fmt: skip
    own_size[[n for entry in named_reasons for n in entry.devices]] = np.nan
    return [
        *named_reasons,
        *[_Reason(f"outliers: {off:.0%} of the rows are off by more than half")] * int(off > MOST_OFF + chance),
        *_named(log.devices, own_size, lambda n: f"half of its rows are off by {own_size[n]:.0%} and more", "scatter"),
    ]


def _drift_reason(
    log: Log, model: Model, name: str, residual: FloatArray, use: BoolArray, error: FloatArray
) -> list[_Reason]:
    """Return the drift of devices, edges or links whose later rounds are off, whichever the fewest of them explain."""
    groups: list[tuple[str, Sequence[str], IntArray, IntArray]] = [
        ("device", log.devices, log.device, np.arange(len(log.devices)))
    ]
    if name == "send_s" and len(log.edges) > 1:
        links = model.links
        pairs = [f"{log.devices[n]} – {log.edges[m]}" for n, m in zip(links.device, links.edge, strict=True)]
        groups += [("edge", log.edges, log.edge, np.array([], int)), ("link", pairs, links.of_row, links.device)]
    why = list[tuple[int, float, list[_Reason]]]()
    for noun, names, of_row, of_device in groups:
        late = medians(np.abs(error), of_row, len(names)) > MOST_ERROR
        drift = np.where(late, _drifts(residual, log.numbers["round"][use], of_row[use], len(names)), np.nan)
        meaning = WATTS[name][0] if name in WATTS else name
        reasons = _named(names, drift, partial(_drift_text, meaning, drift), "drift", noun, of_device)
        if reasons:
            why.append((int(np.isfinite(drift).sum()), -float(np.nanmax(np.abs(drift))), reasons))
    return min(why)[2] if why else []


def _drift_text(meaning: str, drift: FloatArray, n: int) -> str:
    return f"{meaning} {'rises' if drift[n] > 0 else 'falls'} to {np.exp(drift[n]):.0%} over its rounds"


def _named(
    names: Sequence[str], values: FloatArray, text: Callable[[int], str], reason: str, noun: str = "device",
    of_device: IntArray | None = None,
) -> list[_Reason]:  # fmt: skip
    """Return a reason that names the worst device and counts all whose value is finite, if there are any."""
    places = np.flatnonzero(np.isfinite(values))
    if not len(places):
        return []
    worst = int(places[np.argmax(np.abs(values[places]))])
    several = f"{len(places)} of {len(names)} {noun}s, such as " if len(places) > 1 else f"{noun} "
    marked = places if of_device is None else of_device[places] if len(of_device) else of_device
    return [_Reason(f"{reason} of {several}{one_line(names[worst])} ({text(worst)})", tuple(map(int, marked)))]


def _is_thousand(ratio: float) -> bool:
    return bool(THOUSAND[0] < ratio < THOUSAND[1])


def _drifts(residual: FloatArray, rounds: FloatArray, device: IntArray, devices: int) -> FloatArray:
    """Return by how much residuals change over a device's rounds; NaN: not by enough, or not beyond chance."""
    y = residual - medians(residual, device, devices)[device]
    frame = pd.DataFrame({"x": rounds, "y": np.clip(y, -MOST_PULL, MOST_PULL), "device": device})
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

    The groups are those of least squares (Otsu's threshold), and the smaller has more rows than outliers would.
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
    fewer = np.minimum(high[at], low[at])
    two &= bdtrc(fewer - 1, n[at], USUAL_OFF) < REGIME_LEVEL / max(devices, 1)
    two &= (gap[at] >= LEAST_RATIO) & (gap[at] >= LEAST_GAP * spread)
    ratios, parts = np.full(devices, np.nan), np.full(devices, np.nan)
    ratios[of[two]], parts[of[two]] = gap[at][two], part[two]
    return ratios, parts


def _two_groups(level: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the devices of two groups whose levels are alike within each and lie about 1,000 apart, or nobody."""
    at_edge = np.flatnonzero(np.isfinite(level))
    order = at_edge[np.argsort(level[at_edge])]
    gaps = np.append(0.0, np.diff(np.log(level[order])))
    low, high = np.split(order, [int(np.argmax(gaps))])  # in the order of levels
    if (
        not len(low)
        or gaps.max() < np.log(ALIKE)
        or not _is_thousand(np.median(level[high]) / np.median(level[low]))
        or any(level[group[-1]] > ALIKE * level[group[0]] for group in (low, high))
    ):
        return at_edge[:0], at_edge[:0]
    return low, high


def _oddity(
    level: FloatArray, watts: FloatArray, bounds: tuple[float, float], group: IntArray
) -> tuple[bool, bool, int, float]:
    """Return what is lowest for the group whose unit is more likely wrong; `watts` are `level` where there are none."""
    middle, middle_w = float(np.median(level[group])), float(np.median(watts[group]))
    least_w, most_w = bounds if watts is level else PLAUSIBLE["train_j"][1:]
    far = abs(float(np.log(middle / np.sqrt(bounds[0] * bounds[1]))))
    return bounds[0] <= middle <= bounds[1], least_w <= middle_w <= most_w, len(group), -far


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
    level_w = {
        seconds: medians(np.where(np.isfinite(per[name]), per[name], np.nan), log.device, devices)
        for name, (_, seconds) in WATTS.items() if log.has(name)
    }  # fmt: skip
    bytes_of = medians(numbers["bytes"], log.device, devices)
    for meaning, values in per.items():
        name = meaning
        level = medians(np.where((values > 0) & np.isfinite(values), values, np.nan), log.device, devices)
        levels = np.sort(level[np.isfinite(level)])
        seconds = WATTS[name][1] if name in WATTS else name
        if not len(levels) or seconds in verdicts:
            continue
        unit, least, most = PLAUSIBLE[name]
        middle = levels[(len(levels) - 1) // 2]
        small = "milliseconds" if name.endswith("_s") else "millijoules"
        low, high = _two_groups(level)
        if len(low):
            odd, other_devices = sorted(
                (high, low), key=partial(_oddity, level, level_w.get(seconds, level), (least, most))
            )
            ratio = float(np.median(level[odd]) / np.median(level[other_devices]))
            guess = f"it looks like {small}" if ratio > 1 else f"the others look like {small}, or it like another unit"
            if (
                name == "send_s"
                and ratio > 1
                and _is_thousand(np.median(bytes_of[other_devices]) / np.median(bytes_of[odd]))
            ):
                guess = "its bytes look like kilobytes"
            if name in WATTS and ratio < 1:
                guess, name = f"its {seconds} looks like milliseconds", seconds
            whose = ", ".join(one_line(log.devices[n]) for n in sorted(odd)[:3]) + f" and {len(odd) - 3} more" * (
                len(odd) > 3
            )
            whose = f"device{'s' * (len(odd) > 1)} {whose}"
            text = f"{meaning} of {whose} is {ratio:,.3g} times what the others take: {guess}"
            verdicts[name] = Verdict(UNITS, name, DOES_NOT, text, devices=tuple(map(int, sorted(odd))))
        elif not least <= middle <= most:
            guess = f"{name} looks like {small}" if (middle > most) else f"{name} looks like another unit"
            if name in WATTS and middle < least:
                guess = f"{WATTS[name][1]} looks like milliseconds"
            guess += ", or bytes like kilobytes" * int(name == "send_s" and middle > most)
            text = f"{middle:.3g} {unit} at the median, and {least:g} to {most:g} are plausible: {guess}"
            verdicts[name] = Verdict(UNITS, name, DOES_NOT, text)
    return list(verdicts.values())
