"""The constants of a log's devices and links: what they compute and send in how many seconds, and with which watts.

``train_s = fixed_s + step_s · steps + seconds_per_sample · samples`` of each device, ``send_s = latency_s + bytes /
rate`` of each link, and joules are a device's watts times these seconds. A link that no row has takes what its device
and its edge take beside others: their levels, in logarithms, add up to those of the links by medians.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hflray.calibration.fit import Fit, fit, medians
from hflray.calibration.log import Log
from hflray.support.arrays import BoolArray, FloatArray, IntArray

COMPUTING = ("seconds_per_sample", "step_s", "fixed_s")  # in the order in which rows tell them apart
SENDING = ("seconds_per_byte", "latency_s")
WATTS = {"train_j": ("compute_w", "train_s"), "send_j": ("upload_w", "send_s")}
QUANTITIES = ("train_s", "send_s", *WATTS)
POLISHES = 10


@dataclass(frozen=True, eq=False)
class Routes:
    """The links of a log: their devices and edges, (L,), and the link of each row, (n,)."""

    device: IntArray
    edge: IntArray
    of_row: IntArray

    @classmethod
    def of(cls, log: Log) -> Routes:
        """Return the links of a log, by device and edge."""
        most = max(len(log.edges), 1)
        pairs, of_row = np.unique(log.device * most + log.edge, return_inverse=True)
        return cls(pairs // most, pairs % most, of_row)


@dataclass(frozen=True, eq=False)
class Model:
    """Fitted constants.

    Attributes:
        links: the links of the log.
        train: `COMPUTING` of each device.
        send: `SENDING` of each link.
        alone: `SENDING` of each device over all of its edges.
        device_factor, edge_factor: (N,) and (M,), whose product times `alone` is what a link without rows takes.
        watts: of ``train_j`` and ``send_j``, where the log has them: the watts of each device.
    """

    links: Routes
    train: Fit
    send: Fit
    alone: Fit
    device_factor: FloatArray
    edge_factor: FloatArray
    watts: dict[str, Fit]

    def sending(self, device: IntArray, edge: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return seconds per byte and latency, s, of links, and of those without rows what devices and edges say."""
        edges = len(self.edge_factor)
        codes, code = self.links.device * edges + self.links.edge, device * edges + edge
        link = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
        has_rows = (codes[link] == code) & (self.send.rows[link] > 0)
        factor = self.device_factor[device] * self.edge_factor[edge]
        values = self.alone.values[device] * factor[:, None]
        values = np.where(has_rows[:, None], self.send.values[link], values)
        return values[:, 0], values[:, 1]

    def predict(self, log: Log) -> dict[str, FloatArray]:
        """Return what each row takes, by quantity, (n,); joules are watts times the seconds that were measured."""
        byte_s, latency_s = self.sending(log.device, log.edge)
        predicted = {
            "train_s": self.train.predict(_computing(log), log.device),
            "send_s": byte_s * log.numbers["bytes"] + latency_s,
        }
        return predicted | {
            name: fitted.values[log.device, 0] * log.numbers[WATTS[name][1]] for name, fitted in self.watts.items()
        }

    def leverage(self, log: Log, name: str) -> FloatArray:
        """Return the variance of what is predicted of rows, beside that of the noise of a row, (n,)."""
        if name in self.watts:
            return self.watts[name].leverage(log.numbers[WATTS[name][1]][:, None], log.device)
        if name == "train_s":
            return self.train.leverage(_computing(log), log.device)
        own_rows = (self.send.rows > 0)[self.links.of_row]
        send, alone = (
            fitted.leverage(_sending_columns(log), group)
            for fitted, group in ((self.send, self.links.of_row), (self.alone, log.device))
        )
        # A link without rows has the errors of two factors too, each from as many links as its edge has.
        links = np.bincount(self.links.edge[self.send.rows > 0], minlength=len(self.edge_factor))
        return np.where(own_rows, send, alone + 2 / np.maximum(links, 1)[log.edge])


def _computing(log: Log) -> FloatArray:
    return np.stack([log.numbers["samples"], log.numbers["steps"], np.ones(len(log))], axis=-1)


def _sending_columns(log: Log) -> FloatArray:
    return np.stack([log.numbers["bytes"], np.ones(len(log))], axis=-1)


def fit_model(log: Log, links: Routes) -> Model:
    """Return the constants from all rows, with intervals."""
    sending = _sending(log, links, None)
    train = fit(log.numbers["train_s"], _computing(log), log.device, len(log.devices))
    return Model(links, train, *sending, _watts(log, tuple(WATTS), None))


def without(log: Log, model: Model, left_out: BoolArray, parts: tuple[str, ...]) -> Model:
    """Return the model with those parts, of ``train`` and ``send``, fitted without some rows and without intervals."""
    watts = {name: f for name, f in model.watts.items() if name[:-2] not in parts}
    watts |= _watts(log, tuple(f"{part}_j" for part in parts), left_out)
    model = replace(model, watts=watts)
    if "train" in parts:
        y = np.where(left_out, np.nan, log.numbers["train_s"])
        model = replace(model, train=fit(y, _computing(log), log.device, len(log.devices), brief=True))
    if "send" in parts:
        send, alone, device_factor, edge_factor = _sending(log, model.links, left_out)
        model = replace(model, send=send, alone=alone, device_factor=device_factor, edge_factor=edge_factor)
    return model


def _watts(log: Log, names: tuple[str, ...], left_out: BoolArray | None) -> dict[str, Fit]:
    fits = {}
    for name in names:
        if log.has(name):
            y = log.numbers[name] if left_out is None else np.where(left_out, np.nan, log.numbers[name])
            x = log.numbers[WATTS[name][1]][:, None]
            fits[name] = fit(y, x, log.device, len(log.devices), left_out is not None)
    return {name: fitted for name, fitted in fits.items() if fitted.rows.any()}


def _sending(log: Log, links: Routes, left_out: BoolArray | None) -> tuple[Fit, Fit, FloatArray, FloatArray]:
    """Return `SENDING` of links and of devices alone, and the factors of devices and of edges (`Model`)."""
    brief, devices, edges = left_out is not None, len(log.devices), max(len(log.edges), 1)
    y = log.numbers["send_s"] if left_out is None else np.where(left_out, np.nan, log.numbers["send_s"])
    x = _sending_columns(log)
    alone = fit(y, x, log.device, devices, brief)
    if not log.edges:
        return alone, alone, np.where(alone.rows > 0, 1.0, np.nan), np.ones(1)
    send = fit(y, x, links.of_row, len(links.device), brief)
    usual = np.array([1.0 if not log.has("bytes") else np.nanmedian(log.numbers["bytes"]), 1.0])
    with np.errstate(divide="ignore", invalid="ignore"):
        level, alone_level = np.log(send.values @ usual), np.log(alone.values @ usual)
    level[~np.isfinite(level)] = np.nan
    of_edge = np.zeros(edges)
    for _ in range(POLISHES):  # Tukey's median polish
        of_device = medians(level - of_edge[links.edge], links.device, devices)
        of_edge = medians(level - of_device[links.device], links.edge, edges)
    return send, alone, np.exp(of_device - alone_level), np.exp(of_edge)
