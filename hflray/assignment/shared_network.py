"""The pass of the network for any number of edges (`SharedBiLstm`) in C, for the decisions of one fleet.

`shared_network.c` says how. Its sums have another order than torch's, so its Q-values differ from torch's by rounding.
Where the best edge of each device leads the second one by much more than rounding, torch would choose the same edges.
Elsewhere this module gives no answer, and torch decides, so that the answers are torch's to the last edge.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import torch

from hflray.assignment.features import Rows
from hflray.assignment.network import QNetwork, SharedBiLstm
from hflray.errors import HflrayError
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.native import load_library

SOURCE = Path(__file__).with_name("shared_network.c")
# The least lead of an edge that rounding cannot turn, up to `DEVICES` devices and in proportion to them above. On 1,860
# fleets of up to 500 devices the Q-values of both passes differed by at most 7.4e-6 in the unit of the lead.
SURE, DEVICES = 2.0**-12, 200
LARGEST = 40.0  # feature; far larger ones, which no fleet has, are rounded more
KEPT_FLOATS = 4_000_000  # a larger workspace is given back after a pass


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled code; None where it cannot be built, so that torch decides."""
    try:
        code = load_library(SOURCE)
    except (HflrayError, OSError):
        return None
    number, large, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    code.shared_floats.argtypes, code.shared_floats.restype = [number] * 3 + [large] * 2, ctypes.c_size_t
    code.shared_pass.argtypes = [pointer, *[number] * 5, pointer, large, large, *[pointer] * 3]
    code.shared_pass.restype = ctypes.c_float
    return code


class SharedPass:
    """The pass of a `SharedBiLstm` with the weights that it has now.

    Args:
        network: a network of sizes that `shared_pass` accepts.
        lanes: floats in a vector of the compiled code.
    """

    def __init__(self, network: SharedBiLstm, lanes: int) -> None:
        self.spec, self._features = network.spec, network.sizes
        self._weights = torch.from_numpy(packed_weights(network, lanes))
        self._free: list[torch.Tensor] = []  # workspaces that no thread uses

    def __call__(self, rows: Rows) -> tuple[Rows, IntArray, float]:
        """Return Q, (H, M), the best edge of each device, (H,), and the smallest lead of a best edge over the second.

        The lead is in units of the largest numbers that are added up to a Q; it is NaN if a Q is not finite.
        """
        code, sizes = _library(), (self.spec.width, self.spec.hidden)
        assert code is not None  # else `shared_pass` makes none
        num_devices, num_edges = len(rows), self._features.edges(rows.shape[1])
        q, best = np.empty((num_devices, num_edges), dtype=np.float32), np.empty(num_devices, dtype=np.int64)
        floats = code.shared_floats(*sizes, self._features.device, num_devices, num_edges)
        space = self._free.pop() if self._free else torch.empty(0)
        if len(space) < floats:
            space = torch.empty(floats)
        lead = code.shared_pass(
            self._weights.data_ptr(), *sizes, self.spec.refinements, *self._features, rows.ctypes.data, num_devices,
            num_edges, space.data_ptr(), q.ctypes.data, best.ctypes.data,
        )  # fmt: skip
        if len(space) <= KEPT_FLOATS:
            self._free.append(space)
        return q, best.astype(np.intp, copy=False), lead

    def edges(self, rows: Rows) -> IntArray | None:
        """Return the edge that torch would choose for each device, (H,), or None where it must be asked."""
        if not np.abs(rows).max() <= LARGEST:
            return None
        _, best, lead = self(rows)
        return best if lead > SURE * max(1.0, len(rows) / DEVICES) else None


def shared_pass(network: QNetwork) -> SharedPass | None:
    """Return the pass of a network; None for another network or other sizes, and where there is no C compiler."""
    code = _library() if isinstance(network, SharedBiLstm) else None
    if code is None or not isinstance(network, SharedBiLstm):
        return None
    lanes: int = code.shared_lanes()
    return None if network.spec.width % (4 * lanes) or network.spec.hidden % lanes else SharedPass(network, lanes)


def packed_weights(network: SharedBiLstm, lanes: int) -> Rows:
    """Return all weights in the order in which `shared_network.c` reads them.

    Two linear layers without anything between them are one: what a load, or the reading of the recurrent layers, passes
    through. The bias of a softmax changes nothing.
    """
    link, hidden, refinements = network.sizes.link, network.spec.hidden, network.spec.refinements
    of: dict[str, FloatArray] = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    parts: list[FloatArray] = []

    def add(*vectors: FloatArray) -> None:
        for vector in vectors:
            parts.append(np.append(vector.ravel(), np.zeros(-vector.size % lanes)))

    def panels(matrix: FloatArray) -> FloatArray:
        """Return a matrix, (outputs, inputs), as (outputs / 4 lanes, inputs, 4 lanes)."""
        return matrix.reshape(-1, 4 * lanes, matrix.shape[1]).swapaxes(1, 2)

    def gates(name: str) -> FloatArray:
        """Return the rows of both directions, each (4 hidden, …), by units and then by gates, (8 hidden, …)."""
        both = np.stack([of[f"body.{direction}.{name}_l0"] for direction in ("ahead", "back")])
        return both.reshape(2, 4, hidden // lanes, lanes, -1).swapaxes(1, 2).reshape(8 * hidden, -1)

    first = of["encode.0.weight"]
    add(panels(first[:, :link]), panels(first[:, link:]), of["encode.0.bias"])
    add(panels(of["encode.2.weight"]), of["encode.2.bias"])
    for step in range(refinements + 1):
        last = step == refinements
        layer = "advantage" if last else f"again.{step}"
        of_code, of_load, of_other = np.split(of[f"{layer}.0.weight"], 3, axis=1)
        bias, second = of[f"{layer}.0.bias"], of[f"{layer}.2.weight"]
        if last:
            bias = bias + of_other @ of["reading.bias"]
            of_other = of_other @ of["reading.weight"]
        add(of[f"spread.{step}.weight"], panels(of_code), panels(of_load @ of[f"bring.{step}.weight"] / 10.0))
        add(of_load @ of[f"bring.{step}.bias"] / 10.0, panels(of_other), bias)
        add(second if last else panels(second), of[f"{layer}.2.bias"])
    add(panels(gates("weight_ih")), gates("bias_ih") + gates("bias_hh"), panels(gates("weight_hh")))
    add(of["value.weight"], of["value.bias"])
    return np.concatenate(parts).astype(np.float32)
