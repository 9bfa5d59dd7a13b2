"""The Q-networks of the learned assigner: a dueling BiLSTM (paper, Figure 2, equation (20)), and a network for any M.

The state of equation (25) consists of the rows of all scheduled devices, split at t: ``χ_1 … χ_t`` go through one LSTM,
and ``χ_H … χ_t`` through the other. It has no past actions. One pass of both LSTMs over the episode therefore gives Q
for all of its H states (a test compares it with H passes), and a greedy assignment is one pass and an argmax.

The rows are those of `hflray.assignment.features`. Shorter episodes of a batch are padded with rows of zeros at the end
(`lengths`). With the ``db`` set, episodes with fewer edges are padded with zeros too, and the Q of such edges is
`ABSENT`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from hflray.assignment.features import WIDTHS, FeatureSet, Rows
from hflray.config.options import one_of, whole
from hflray.errors import ConfigError

ABSENT = -1e9  # Q of a padded edge; it is finite because 0 · (-inf) is NaN in losses and in sampling

Architecture = Literal["bilstm", "shared"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class NetworkSpec:
    """The specification from which a policy's network is built.

    Attributes:
        architecture: ``bilstm`` is the paper's network, for one M; ``shared`` has one set of weights for any M.
        features: the set of `hflray.assignment.features`; ``shared`` needs ``db``.
        num_edges: M of ``bilstm``; for ``shared``, the largest M, to which training pads.
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
        one_of("architecture", self.architecture, get_args(Architecture))
        one_of("features", self.features, tuple(WIDTHS))
        if self.architecture == "shared" and self.features != "db":
            raise ConfigError(
                f"features: got '{self.features}' for the shared network, which needs each edge's bandwidth; set "
                "features: db, or architecture: bilstm"
            )
        for name, least in (("num_edges", 1), ("hidden", 1), ("width", 1), ("refinements", 0)):
            whole(name, getattr(self, name), least)

    @property
    def row(self) -> int:
        """The number of features of a row with `num_edges` edges."""
        return WIDTHS[self.features].row(self.num_edges)


class QNetwork(nn.Module):
    """A network from rows, (B, T, row), to Q-values, (B, T, M)."""

    spec: NetworkSpec
    body: BiLstm

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return Q of every edge for every device, (B, T, M).

        Args:
            rows: float32, (B, T, row).
            lengths: number of devices of each episode, (B,), int64; None: all T. Later rows do not count.
        """
        raise NotImplementedError

    def edge_mask(self, rows: Tensor) -> Tensor:
        """Return which edges exist, (B, T, M), bool; rows of padding have the mask of their episode."""
        raise NotImplementedError


class BiLstm(nn.Module):
    """Both directions of an LSTM over padded episodes, (B, T, in) to (B, T, 2 hidden).

    Two one-way LSTMs and an exact reversal by index compute the same as a packed bidirectional LSTM. They train five
    times faster on a CPU, and padding cannot enter the backward pass.

    Attributes:
        two_threads: whether the two directions are computed at the same time, on two CPUs. The results are the same.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.two_threads = False
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
        turned = _reordered(x, index)
        if self.two_threads and x.device.type == "cpu":
            weights = (*self.ahead.parameters(), *self.back.parameters())
            ahead, back = _TwoDirections.apply(self.ahead, self.back, torch.is_grad_enabled(), x, turned, *weights)  # type: ignore[no-untyped-call]
        else:
            ahead, back = self.ahead(x)[0], self.back(turned)[0]
        return torch.cat([ahead, _reordered(back, index)], dim=-1)


class _TwoDirections(torch.autograd.Function):
    """The outputs and gradients of two LSTMs, each in a thread of its own.

    The recurrent products wait for their weights from the cache, so that a second core with a cache of its own helps
    more than a product in two threads. PyTorch computes the gradients of a graph in the thread that asks for them.
    Each LSTM therefore gets a graph of its own.
    """

    @staticmethod
    def forward(ctx: Any, ahead: nn.LSTM, back: nn.LSTM, learns: bool, x: Tensor, turned: Tensor, *_: Tensor) -> Any:
        needs_input = ctx.needs_input_grad[3]

        def outputs(lstm: nn.LSTM, inputs: Tensor) -> tuple[Tensor, Tensor]:
            with torch.set_grad_enabled(learns):  # the mode belongs to the thread
                leaf = inputs.detach().requires_grad_(learns and needs_input)
                return leaf, lstm(leaf)[0]

        first, second = _at_once(lambda: outputs(ahead, x), lambda: outputs(back, turned))
        ctx.graphs = (ahead, *first), (back, *second)
        return first[1].detach(), second[1].detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        def of_inputs_and_weights(graph: tuple[nn.LSTM, Tensor, Tensor], gradient: Tensor) -> tuple[Tensor | None, ...]:
            lstm, leaf, output = graph
            weights = tuple(lstm.parameters())
            if leaf.requires_grad:
                return torch.autograd.grad(output, (leaf, *weights), gradient)
            return None, *torch.autograd.grad(output, weights, gradient)

        (x, *ahead), (turned, *back) = _at_once(
            lambda: of_inputs_and_weights(ctx.graphs[0], gradients[0]),
            lambda: of_inputs_and_weights(ctx.graphs[1], gradients[1]),
        )
        return None, None, None, x, turned, *ahead, *back


def _at_once(compute: Callable[[], Result], compute_other: Callable[[], Result]) -> tuple[Result, Result]:
    """Return the results of both functions; another thread calls the second one meanwhile."""
    other = _other_thread().submit(compute_other)
    return compute(), other.result()


@cache
def _other_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))


def _reordered(x: Tensor, index: Tensor) -> Tensor:
    """Return x, (B, T, …), with the steps of each episode in the order of `index`, (B, T)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def dueling(value: Tensor, advantage: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``V + A - mean A``, (B, T, M), with the mean over existing edges (equation 20); V is (B, T, 1)."""
    if mask is None:
        return value + advantage - advantage.mean(dim=-1, keepdim=True)
    exists = mask.to(advantage.dtype)
    mean = (advantage * exists).sum(-1, keepdim=True) / exists.sum(-1, keepdim=True).clamp_min(1.0)
    return (value + advantage - mean).masked_fill(~mask, ABSENT)


class DuelingBiLstm(QNetwork):
    """The paper's network for one number of edges: a BiLSTM, a head for V and a head for A."""

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
        """See `QNetwork`; every edge exists."""
        return torch.ones((*rows.shape[:-1], self.spec.num_edges), dtype=torch.bool, device=rows.device)


class SharedBiLstm(QNetwork):
    """A network with one set of weights for any number of edges; each link has a code, from which its Q is computed.

    Links exchange information only through sums, so that neither M nor the order of the edges matters. A softmax
    spreads each device over its edges, and the contributions of all devices to an edge add up to its load. Each link's
    code is then updated from its edge's load and its device's choice, `refinements` times. The BiLSTM reads each
    device's choice, and the two heads are the paper's, with one advantage head for all edges.
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
        """Return the features of the links, (B, T, M, link), and of the devices, (B, T, device)."""
        edges = self.sizes.edges(rows.shape[-1])
        links = rows[..., : edges * self.sizes.link].reshape(*rows.shape[:-1], edges, self.sizes.link)
        return links, rows[..., edges * self.sizes.link :]

    def edge_mask(self, rows: Tensor) -> Tensor:
        """See `QNetwork`."""
        exists = self._split(rows)[0][..., 0] > 0.5
        return exists.any(dim=1, keepdim=True).expand(exists.shape)

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `QNetwork`."""
        links, device = self._split(rows)
        exists = links[..., :1] > 0.5  # (B, T, M, 1); False for padded rows and padded edges
        code = self.encode(torch.cat([links, device[..., None, :].expand(-1, -1, links.shape[2], -1)], dim=-1))
        for step in range(len(self.spread)):
            share = self.spread[step](code).masked_fill(~exists, ABSENT).softmax(dim=2) * exists
            # The load of an edge is the sum over all devices, divided by 10, about the number of devices of an edge.
            load = (share * self.bring[step](code)).sum(dim=1, keepdim=True).div(10.0).expand_as(code)
            choice = (share * code).sum(dim=2, keepdim=True)
            if step < len(self.again):
                code = code + self.again[step](torch.cat([code, load, choice.expand_as(code)], dim=-1))
        z = self.body(torch.cat([choice[..., 0, :], device], dim=-1), lengths)
        reading = self.reading(z)[..., None, :].expand_as(code)
        advantage = self.advantage(torch.cat([code, load, reading], dim=-1))[..., 0]
        return dueling(self.value(z), advantage, self.edge_mask(rows))


def padded_batch(rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Return rows (H_i, row) of several fleets as one batch, (B, T, row), padded with zeros, and its lengths, (B,)."""
    batch = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(matrix) for matrix in rows], batch_first=True)
    return batch, torch.tensor([len(matrix) for matrix in rows])


def build_network(spec: NetworkSpec) -> QNetwork:
    """Return a network with new weights, drawn from torch's generator."""
    return DuelingBiLstm(spec) if spec.architecture == "bilstm" else SharedBiLstm(spec)
