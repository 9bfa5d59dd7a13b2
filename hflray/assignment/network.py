"""The Q-networks of the learned assigner: a dueling BiLSTM (paper, Figure 2, equation (20)), and one for any M.

The state of equation (25) is the rows of all scheduled devices, split at t: ``χ_1 … χ_t`` go through one LSTM, ``χ_H …
χ_t`` through the other. Past actions are not part of it. So one pass of both LSTMs over the episode gives Q for all of
its H states (a test compares it with H passes), and a greedy assignment is one pass and an argmax.

Rows are those of `hflray.assignment.features`. Shorter episodes of a batch are padded with rows of zeros at the end
(`lengths`), and, with the ``db`` set, fewer edges with zeros too: their Q is `ABSENT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hflray.assignment.features import WIDTHS, FeatureSet, Rows
from hflray.errors import ConfigError

ABSENT = -1e9  # Q of an edge that is not there; finite, because 0 · (-inf) is NaN in losses and in sampling

Architecture = Literal["bilstm", "shared"]


@dataclass(frozen=True)
class NetworkSpec:
    """What a policy's network is: enough to build it again.

    Attributes:
        architecture: ``bilstm``, the paper's, for one M; ``shared``, one set of weights for any M.
        features: the set of `hflray.assignment.features`; ``shared`` needs ``db``.
        num_edges: M of ``bilstm``; of ``shared``, the largest M that training pads to.
        hidden: units of each LSTM (the paper: 256).
        width: units of the link encoder of ``shared``.
        refinements: rounds of load balancing inside ``shared``.
    """

    architecture: Architecture = "bilstm"
    features: FeatureSet = "db"
    num_edges: int = 5
    hidden: int = 256
    width: int = 64
    refinements: int = 2

    def __post_init__(self) -> None:
        if self.architecture not in ("bilstm", "shared"):
            raise ConfigError(f"architecture: got '{self.architecture}'; accepted: bilstm, shared")
        if self.features not in WIDTHS:
            raise ConfigError(f"features: got '{self.features}'; accepted: {', '.join(WIDTHS)}")
        if self.architecture == "shared" and self.features != "db":
            raise ConfigError(
                "features: got 'paper' for the shared network, which needs each edge's bandwidth; set features: db, "
                "or architecture: bilstm"
            )
        for name in ("num_edges", "hidden", "width", "refinements"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < (name != "refinements"):
                raise ConfigError(f"{name}: got {value!r}; a whole number above 0 is needed")

    @property
    def row(self) -> int:
        """Features of a row of `num_edges` edges."""
        return WIDTHS[self.features].row(self.num_edges)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


class QNetwork(nn.Module):
    """Rows (B, T, row) to Q-values (B, T, M)."""

    spec: NetworkSpec

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Q of every edge for every device.

        Args:
            rows: float32, (B, T, row).
            lengths: devices of each episode, (B,), int64; None: all T. What follows them is not looked at.
        """
        raise NotImplementedError

    def edge_mask(self, rows: Tensor) -> Tensor:
        """Which edges are there, (B, T, M), bool; rows of padding have the mask of their episode."""
        raise NotImplementedError


class BiLstm(nn.Module):
    """Both directions of an LSTM over padded episodes, (B, T, in) to (B, T, 2 hidden).

    Two one-way LSTMs and an exact reversal by index: what a packed bidirectional one computes, five times faster to
    train on a CPU, and padding cannot leak into the backward pass.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.ahead = nn.LSTM(inputs, hidden, batch_first=True)
        self.back = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        batch, steps, _ = x.shape
        step = torch.arange(steps, device=x.device)[None].expand(batch, steps)
        if lengths is None:
            index = steps - 1 - step
        else:
            last = lengths.to(x.device)[:, None] - 1
            index = torch.where(step <= last, last - step, step)
        back = self.back(_reordered(x, index))[0]
        return torch.cat([self.ahead(x)[0], _reordered(back, index)], dim=-1)


def _reordered(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def dueling(value: Tensor, advantage: Tensor, mask: Tensor | None = None) -> Tensor:
    """Equation (20): ``V + A - mean A`` over the edges that are there; (B, T, 1) and (B, T, M) to (B, T, M)."""
    if mask is None:
        return value + advantage - advantage.mean(dim=-1, keepdim=True)
    there = mask.to(advantage.dtype)
    mean = (advantage * there).sum(-1, keepdim=True) / there.sum(-1, keepdim=True).clamp_min(1.0)
    return (value + advantage - mean).masked_fill(~mask, ABSENT)


class DuelingBiLstm(QNetwork):
    """The paper's network: BiLSTM, then a head for V and one for A. For one number of edges."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        self.body = BiLstm(spec.row, spec.hidden)
        self.advantage = nn.Linear(2 * spec.hidden, spec.num_edges)
        self.value = nn.Linear(2 * spec.hidden, 1)

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `QNetwork`."""
        z = self.body(rows, lengths)
        return dueling(self.value(z), self.advantage(z))

    def edge_mask(self, rows: Tensor) -> Tensor:
        """See `QNetwork`: all of them."""
        return torch.ones((*rows.shape[:-1], self.spec.num_edges), dtype=torch.bool, device=rows.device)


class SharedBiLstm(QNetwork):
    """One set of weights for any number of edges: each link is encoded alike, and a link's Q comes from its own code.

    What links tell each other goes through sums, so that neither M nor the order of the edges matters: a device
    spreads over its edges by a softmax; what it brings to each of them is added up there (the edge's load); each link
    looks at its edge's load and its device's choice, and thinks again, `refinements` times. The BiLSTM then reads what
    each device has come to, and the two heads are as the paper's, the advantage's shared by all edges.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec, width = spec, spec.width
        self.sizes = WIDTHS[spec.features]
        self.encode = nn.Sequential(nn.Linear(sum(self.sizes), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.spread = nn.ModuleList(nn.Linear(width, 1) for _ in range(spec.refinements + 1))
        self.bring = nn.ModuleList(nn.Linear(width, width) for _ in range(spec.refinements + 1))
        self.again = nn.ModuleList(
            nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(spec.refinements)
        )
        self.body = BiLstm(width + self.sizes.device, spec.hidden)
        self.reading = nn.Linear(2 * spec.hidden, width)
        self.advantage = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.value = nn.Linear(2 * spec.hidden, 1)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        edges = self.sizes.edges(rows.shape[-1])
        links = rows[..., : edges * self.sizes.link].reshape(*rows.shape[:-1], edges, self.sizes.link)
        return links, rows[..., edges * self.sizes.link :]

    def edge_mask(self, rows: Tensor) -> Tensor:
        """See `QNetwork`."""
        there = self._split(rows)[0][..., 0] > 0.5
        return there.any(dim=1, keepdim=True).expand(there.shape)

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `QNetwork`."""
        links, own = self._split(rows)
        there = links[..., :1] > 0.5  # (B, T, M, 1); False in padding of either kind
        code = self.encode(torch.cat([links, own[..., None, :].expand(-1, -1, links.shape[2], -1)], dim=-1))
        for step in range(len(self.spread)):
            share = self.spread[step](code).masked_fill(~there, ABSENT).softmax(dim=2) * there
            # Per edge: over all devices, in units of ten of them, about what an edge has.
            load = (share * self.bring[step](code)).sum(dim=1, keepdim=True).div(10.0).expand_as(code)
            choice = (share * code).sum(dim=2, keepdim=True)
            if step < len(self.again):
                code = code + self.again[step](torch.cat([code, load, choice.expand_as(code)], dim=-1))
        z = self.body(torch.cat([choice[..., 0, :], own], dim=-1), lengths)
        reading = self.reading(z)[..., None, :].expand_as(code)
        advantage = self.advantage(torch.cat([code, load, reading], dim=-1))[..., 0]
        return dueling(self.value(z), advantage, self.edge_mask(rows))


def padded_batch(rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Rows (H_i, row) of several fleets as a network takes them: (B, T, row) with zeros at the end, lengths (B,)."""
    batch = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(matrix) for matrix in rows], batch_first=True)
    return batch, torch.tensor([len(matrix) for matrix in rows])


def build_network(spec: NetworkSpec) -> QNetwork:
    """A network with fresh weights, from torch's generator."""
    return DuelingBiLstm(spec) if spec.architecture == "bilstm" else SharedBiLstm(spec)
