"""Logs whose constants are known: five kinds of devices and noise, and public measurements by their figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["device", "round", "samples", "steps", "train_s", "bytes", "send_s"]
# seconds_per_sample, step_s, fixed_s, seconds per byte, latency_s: a phone, a board, a server, a microcontroller's
# slow link, and a device whose fixed part is large.
CONSTANTS = {
    "phone": (6e-4, 9e-3, 0.05, 1e-6, 0.05),
    "board": (5e-3, 2e-2, 0.5, 2e-6, 0.2),
    "server": (2e-5, 1e-3, 0.01, 8e-9, 0.002),
    "slow link": (1e-2, 0.1, 1.0, 1e-4, 5.0),
    "large start": (1e-3, 5e-3, 5.0, 4e-7, 0.5),
}
NOISES = ("lognormal", "normal", "heavy tails", "added", "lognormal")


def noisy(seconds: np.ndarray, kind: str, rng: np.random.Generator, size: float = 0.05) -> np.ndarray:
    """Return seconds with noise of a kind, whose relative size is about `size`."""
    draws = rng.standard_normal(len(seconds))
    if kind == "heavy tails":
        return seconds * np.exp(size * rng.standard_t(3, len(seconds)))
    if kind == "added":
        return seconds + size * seconds.min() * draws
    return seconds * (np.exp(size * draws) if kind == "lognormal" else 1 + size * draws)


def log_of(name: str, seed: int, rows: int = 60, noise: str | None = None, edges: int = 0) -> pd.DataFrame:
    """Return a log of one device with the constants of `CONSTANTS`."""
    rng, (sample_s, step_s, fixed_s, byte_s, latency_s) = np.random.default_rng(seed), CONSTANTS[name]
    batch, steps = rng.choice([8, 16, 32, 64], rows), rng.choice([10, 20, 40, 80], rows)
    size = rng.choice([50_000, 200_000, 800_000], rows)
    kind = noise or NOISES[list(CONSTANTS).index(name)]
    frame = pd.DataFrame({"device": name, "round": np.arange(rows), "samples": batch * steps, "steps": steps})
    frame["train_s"] = noisy(fixed_s + step_s * steps + sample_s * frame["samples"].to_numpy(), kind, rng)
    frame["bytes"] = size
    frame["send_s"] = noisy(latency_s + byte_s * size, kind, rng)
    return frame


def fleet_log(rows: int = 24, devices: int = 5, noise: float = 0.04, seed: int = 0) -> pd.DataFrame:
    """Return a log of several devices at two edges, whose constants hold."""
    rng, device = np.random.default_rng(seed), np.repeat(np.arange(devices), rows)
    n = len(device)
    batch, steps = rng.choice([8, 16, 32, 64], n), rng.choice([10, 20, 40], n)
    size, edge = rng.choice([250_000, 460_000], n), rng.integers(0, 2, n)
    train_s = (0.3 + (0.01 + 0.0006 * batch) * steps * (1 + 0.2 * device)) * rng.lognormal(0, noise, n)
    send_s = (0.05 + 8e-6 * size / (4 + edge + device)) * rng.lognormal(0, noise, n)
    columns = [device, np.tile(np.arange(rows), devices), batch * steps, steps, train_s, size, send_s]
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))).assign(edge=edge)


def phone_log(batches: tuple[int, ...], step_ms: tuple[float, ...]) -> pd.DataFrame:
    """Return a phone's log with these milliseconds a step by batch, 50 and 100 steps, in 12 rounds."""
    rng = np.random.default_rng(1)
    rows = [
        ("phone", r, batch * steps, steps, steps * ms / 1e3 * rng.lognormal(0, 0.01), 250_000 + 1000 * r, 2.0 + r / 100)
        for r in range(12)
        for batch, ms in zip(batches, step_ms, strict=True)
        for steps in (50, 100)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def put(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a log as CSV and return its path."""
    frame.to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"
