"""The iteration behind `hflray.allocation.exact`: an interior-point Newton method for any access and compute.

An edge has a deadline T, and each of its devices a share x and a setting u. With the seconds t(x), s(u) and the joules
E(x), e(u) of its upload and of its computing, the problem of a group of edges with one deadline is to minimise
``Σ (E + e) + λT`` subject to ``before + t + s + shift ≤ T``, ``Σ x ≤ 1`` at each edge, ``u ≤ most``, ``T ≥ floor``, and
the limits ``before + t + s ≤ most_s`` and ``E + e ≤ most_j``. Each constraint has a slack w and a price z, whose
product falls to 0 (Mehrotra's predictor and corrector). The unknowns of a step are log x, log u, T, the slacks and the
prices. Each device has a block of 2×2 and couples to the others through T and its edge's price of shares alone, so that
a step takes time in proportion to the devices. A part tells values alone: derivatives by log x and log u are central
differences, whose errors of 1e-8 move the optimum's objective to the second order alone.

Prices are `theta` of T, `mu` of the shares, `sigma` of ``u ≤ most``, `phi` of ``T ≥ floor``, `rho` of most_s and `nu`
of most_j; slacks are `wa`, `we`, `wd`, ``T - floor``, `wb` and `wc` in this order; residuals begin with r.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from hflray.allocation.problem import Columns, EdgeProblems, Iterate, Layout, hopeless, least_shares
from hflray.support.arrays import BoolArray, FloatArray
from hflray.support.limits import available_cpus

TOL = 1e-9  # largest gap, relative to the objective, and largest violation of a constraint, relative to its scale;
# residuals of a device's optimality may be 1,000 times as large, as they move the objective to the second order alone
MARGIN = 0.002  # of the first point from its constraints
THREADED = 4096  # batches of more entries are faster with threads
MOST_STEPS = 200
LEAST = 1e-30  # share, and setting relative to the largest, with which a part is asked
TINY = float(np.finfo(np.float64).tiny)


def minimise(
    edges: EdgeProblems,
    weight: FloatArray,
    shift: FloatArray,
    floor: FloatArray,
    together: bool,
    share: FloatArray | None = None,
    tol: float = TOL,
) -> Iterate:
    """Return the optimum of edges that all have devices.

    Args:
        edges: the problems; their weights are not used.
        weight: λ of each group, (G,), J/s; each edge is a group, or all of them together.
        shift: what is added to the seconds of each entry, (D,), s.
        floor: the least deadline of each group, (G,), s.
        together: whether all edges are one group.
        share: the shares, (D,), if they are given.
        tol: largest relative gap and violation.
    """

    def alone(edges: EdgeProblems, index: Any, share: FloatArray | None) -> Iterate:
        at, groups = index
        problem = _Iteration(edges, weight[groups], shift[at], floor[groups], together, share, tol)
        with np.errstate(all="ignore"):
            return problem.run()

    threads = min(len(available_cpus()), len(edges.node) // (THREADED // 2), edges.count)
    if together or threads <= 1:
        return alone(edges, (slice(None), slice(None)), share)
    cuts = np.searchsorted(edges.node, np.linspace(0, edges.count, threads + 1).astype(np.intp))
    pieces = []
    for i, j in pairwise(cuts.tolist()):
        first, last = int(edges.node[i]), int(edges.node[j - 1]) + 1
        at, groups = slice(i, j), slice(first, last)
        part = edges.part(at, edges.node[at] - first, last - first, edges.weight[groups])
        pieces.append((part, (at, groups), None if share is None else share[at]))
    with ThreadPoolExecutor(threads) as pool:
        points = list(pool.map(alone, *zip(*pieces, strict=True)))
    names = [field.name for field in fields(Iterate)]
    return Iterate(**{name: np.concatenate([getattr(point, name) for point in points]) for name in names})


class _Iteration:
    """The state of the iteration: columns of entries, of edges and of groups, without the edges that have ended."""

    def __init__(
        self,
        edges: EdgeProblems,
        weight: FloatArray,
        shift: FloatArray,
        floor: FloatArray,
        together: bool,
        share: FloatArray | None,
        tol: float,
    ) -> None:
        self.tol = tol
        self.edges, self.together, self.fixed = edges, together, share
        self.shares = edges.access.shared and share is None
        self.settings = edges.compute.has_setting
        self.late = bool(np.isfinite(edges.most_s).any())
        self.hungry = bool(np.isfinite(edges.most_j).any())
        self.crossed = self.shares and self.settings and (self.late or self.hungry)
        self.layout = Layout(edges, edges.node, slice(None), together)
        self.at = np.arange(len(edges.node))  # the entries that are left
        self.edge_at = np.arange(edges.count)
        self.d: Columns = {"before": edges.before_s, "shift": shift, "most_s": edges.most_s, "most_j": edges.most_j}
        self.g: Columns = {"weight": weight, "floor": floor}
        self.e: Columns = {}
        self.looked: Any = ()

    def begin(self) -> None:
        """Set the first point, whose slacks and prices are all above 0."""
        d, g, lay, n = self.d, self.g, self.layout, len(self.at)
        devices = lay.total(np.ones(n))
        most = lay.most * np.exp(-MARGIN)
        d["theta"], d["u"] = lay.entries(g["weight"] / devices), np.full(n, np.nan)
        d["x"], d["rho"], d["nu"] = np.ones(n) if self.fixed is None else self.fixed, np.zeros(n), np.zeros(n)
        if self.settings:
            d["u"] = most * np.exp(-0.5)
            self.follow_prices(most)
        if self.shares:
            d["x"] = (1.0 / np.diff(lay.first, append=n))[lay.node]
            self.share_out()
            self.price_time()
            self.share_again()
        if self.shares:
            d["x"] = d["x"] * (1 - MARGIN / 2)
        self.look()
        t, j, s, e = self.looked
        took = d["before"] + d["shift"] + t[0] + s[0]
        g["T"] = np.maximum(lay.total(took, np.maximum), g["floor"]) * (1 + MARGIN)
        product = 0.1 * MARGIN * g["weight"] * g["T"] / devices
        even_product = lay.entries(product)
        if self.settings:
            took = self.use_time(most, took - s[0], even_product)
            t, j, s, e = self.looked
        d["wa"] = lay.entries(g["T"]) - took
        if self.late or self.hungry:
            d["least_s"] = lay.computes(lay.most, False)[0][0]
            self.e["least"] = least_shares(lay, d) if self.shares else np.zeros(len(self.edge_at))
        if self.settings:
            d["wd"] = np.log(lay.most / d["u"])
            d["sigma"] = even_product / d["wd"]
        if self.late:
            d["wb"] = np.where(np.isfinite(d["most_s"]), np.maximum(d["most_s"] - took + d["shift"], 0.1 * took), 1.0)
            d["rho"] = np.where(np.isfinite(d["most_s"]), even_product / d["wb"], 0.0)
        if self.hungry:
            used = j[0] + e[0]
            d["wc"] = np.where(np.isfinite(d["most_j"]), np.maximum(d["most_j"] - used, 0.1 * used), 1.0)
            d["nu"] = np.where(np.isfinite(d["most_j"]), even_product / d["wc"], 0.0)
        g["phi"] = product / (g["T"] - g["floor"])
        if self.shares:
            price = -np.add.reduceat(j[1] + d["theta"] * t[1], lay.first) / (1 - MARGIN / 2)
            self.e["mu"] = np.maximum(price, TINY)
            self.e["we"] = np.full(len(self.edge_at), MARGIN / 2)
        g["pairs"] = (1 + self.settings + self.late + self.hungry) * devices + 1
        if self.shares:
            g["pairs"] = g["pairs"] + lay.group(np.ones(len(self.edge_at)))

    def follow_prices(self, most: FloatArray) -> None:
        """Move the settings to where a second costs the entries' prices."""
        d = self.d
        s, e = self.layout.computes(d["u"])
        slope = e[2] / e[1] - s[2] / s[1]
        move = np.log(-d["theta"] * s[1] / e[1]) / np.where(slope > 0.1, slope, 0.1)
        move = np.where(np.isfinite(move), np.clip(move, -4.0, 4.0), 0.0)
        d["u"] = np.minimum(d["u"] * np.exp(move), most)

    def share_out(self) -> None:
        """Move the shares to where all entries of an edge take equally long, as if seconds were inverse to shares."""
        d, lay = self.d, self.layout
        computing_s = d["before"] + d["shift"] + lay.computes(d["u"], False)[0][0]
        longest = np.maximum.reduceat(computing_s, lay.first)
        work = d["x"] * lay.uploads(d["x"], False)[0][0]
        extra = np.maximum.reduceat(work + computing_s - longest[lay.node], lay.first)  # a bound from below
        for _ in range(5):
            shares = work / ((extra + longest)[lay.node] - computing_s)
            total, slope = np.add.reduceat(np.array([shares, shares**2 / work]), lay.first, axis=-1)
            extra = extra + (total - 1) / slope
        d["x"] = shares / total[lay.node]

    def price_time(self) -> None:
        """Move the prices of time to where the present shares would be the best, but not far down."""
        d, g, lay = self.d, self.g, self.layout
        (_, tp, _), (_, jp, _) = lay.uploads(d["x"], True)
        slope = np.maximum(-tp, TINY)
        paid, per_price = np.maximum(-jp, 0.0) / slope, d["x"] / slope
        if self.together:  # each edge has a price of shares of its own
            per_price = per_price / np.add.reduceat(per_price, lay.first)[lay.node]
        sums = lay.total(np.array([paid, per_price]))
        theta = np.maximum(per_price * lay.entries((g["weight"] + sums[0]) / sums[1]) - paid, 0.1 * d["theta"])
        d["theta"] = theta * lay.entries(g["weight"] / lay.total(theta))

    def share_again(self) -> None:
        """Move the shares to where one costs each entry what it is worth at the prices of time, by power laws."""
        d, lay = self.d, self.layout
        (_, tp, tpp), (_, jp, jpp) = lay.uploads(d["x"], True)
        worth = np.maximum(-jp - d["theta"] * tp, TINY)
        bend = worth / (np.maximum(jpp - jp, 0.0) + d["theta"] * np.maximum(tpp - tp, 0.0) + TINY)
        shares, price = d["x"] * (worth / d["x"]) ** bend, np.zeros(len(lay.first))
        for _ in range(4):
            moved = shares * np.exp(-bend * price[lay.node])
            total, slope = np.add.reduceat(np.array([moved, moved * bend]), lay.first, axis=-1)
            price = price + np.log(total) * total / slope
        d["x"] = moved / total[lay.node]

    def use_time(self, most: FloatArray, before_s: FloatArray, product: FloatArray) -> FloatArray:
        """Move the settings to where the slacks' and the prices' products are even, and return the seconds."""
        d, lay = self.d, self.layout
        left, first = lay.entries(self.g["T"]) - before_s, d["u"]
        *uploads, s, e = self.looked
        for _ in range(2):
            spare = np.log(lay.most / d["u"])
            push = np.maximum(e[1], 0.0) + product / spare
            part = product / push
            slope = 1 + part / (1 + part) * (product / spare**2 - e[2] * s[0] / s[1]) / push
            move = np.log(left / (1 + part) / s[0]) * s[0] / s[1] / np.maximum(slope, 1.0)
            d["u"] = np.minimum(d["u"] * np.exp(np.clip(np.nan_to_num(move), -20.0, 4.0)), most)
            s, e = lay.computes(d["u"])
        if not (early := s[0] < left).all():
            d["u"] = np.where(early, d["u"], first)
            s, e = lay.computes(d["u"])
        self.looked, took = (*uploads, s, e), before_s + s[0]
        price = product / np.maximum(lay.entries(self.g["T"]) - took, TINY)
        d["theta"] = price * lay.entries(self.g["weight"] / lay.total(price))
        return np.asarray(took)

    def look(self) -> None:
        """Ask the parts about the present point."""
        self.looked = *self.layout.uploads(self.d["x"], self.shares), *self.layout.computes(self.d["u"])

    def run(self) -> Iterate:
        """Iterate until every group has ended, and return where."""
        count = len(self.g["weight"])
        columns = {k: np.full(len(self.at), np.nan) for k in ("x", "u", "theta", "rho", "nu")}
        mu, deadline, converged = np.zeros(self.edges.count), np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
        self.begin()
        ended = np.zeros(count, dtype=np.bool_)  # they are left out together, as that costs as much as a step
        for step in range(MOST_STEPS):
            done = self.prepare()
            never = hopeless(self.layout, self.d, self.e, self.looked) if self.late or self.hungry else False
            new = (done | never | ~np.isfinite(self.g["gap"]) | (step == MOST_STEPS - 1)) & ~ended
            if new.any():
                entries = self.layout.entries(new)
                for name, column in columns.items():
                    column[self.at[entries]] = self.d[name][entries]
                edges = np.broadcast_to(new, self.edge_at.shape)
                if self.shares:
                    mu[self.edge_at[edges]] = self.e["mu"][edges]
                at = np.flatnonzero(new) if self.together else self.edge_at[new]
                deadline[at], converged[at] = self.g["T"][new], done[new]
                ended = ended | new
            if ended.all():
                break
            if ended.mean() > 0.25:
                self.drop(ended)
                ended = ended[~ended]
            self.step()
            self.look()
        x, u, theta, rho, nu = columns.values()
        return Iterate(x, u, theta, rho, nu, mu, deadline, converged)

    def drop(self, ended: BoolArray) -> None:
        """Leave out the edges that have ended."""
        going, entries = ~ended, np.flatnonzero(~ended[self.layout.node])
        self.d = {name: column[entries] for name, column in self.d.items()}
        t, j, s, e = ((rows[0][entries], rows[1][entries], rows[2][entries]) for rows in self.looked)
        self.looked = t, j, s, e
        self.e = {name: column[going] for name, column in self.e.items()}
        self.g = {name: column[going] for name, column in self.g.items()}
        self.at, self.edge_at = self.at[entries], self.edge_at[going]
        node = (np.cumsum(going) - 1)[self.layout.node[entries]]
        self.layout = Layout(self.edges, node, self.at, self.together)

    def prepare(self) -> BoolArray:
        """Compute residuals and the matrix's parts, and return which groups, (G,), have converged."""
        d, g, e_, lay = self.d, self.g, self.e, self.layout
        (t, tp, tpp), (j, jp, jpp), (s, su, suu), (e, eu, euu) = self.looked
        energy_price: Any = 1.0
        pi = d["theta"]
        took, used, deadline = d["before"] + t + s, j + e, lay.entries(g["T"])
        d["ra"] = took + d["shift"] + d["wa"] - deadline
        d["way"] = su
        violation = (d["ra"] - d["wa"]) / deadline
        product, unmet = d["theta"] * d["wa"], d["theta"] * np.abs(d["ra"])
        if self.late:
            pi = pi + d["rho"]
            d["rb"] = np.where(np.isfinite(d["most_s"]), took + d["wb"] - d["most_s"], 0.0)
            violation = np.maximum(violation, (took - d["most_s"]) / took)
            product, unmet = product + d["rho"] * d["wb"], unmet + d["rho"] * np.abs(d["rb"])
        if self.hungry:
            energy_price = 1.0 + d["nu"]
            d["rc"] = np.where(np.isfinite(d["most_j"]), used + d["wc"] - d["most_j"], 0.0)
            violation = np.maximum(violation, (used - d["most_j"]) / used)
            product, unmet = product + d["nu"] * d["wc"], unmet + d["nu"] * np.abs(d["rc"])
        zero = np.zeros_like(t)
        scale = zero
        d["gp"] = d["gu"] = d["hp"] = d["hu"] = zero
        if self.shares:
            # What a share is worth over what it costs: their logarithms are linear in log x for a power law.
            worth = np.maximum(-(energy_price * jp + pi * tp), TINY)
            price = e_["mu"][lay.node]
            priced = price * d["x"]
            curved = energy_price * np.maximum(jpp - jp, 0.0) + pi * np.maximum(tpp - tp, 0.0)
            d["gp"] = worth * np.log(priced / worth)
            d["xm"] = worth / price
            d["hp"] = curved + 1e-12 * priced + TINY
            scale = np.abs(priced - worth)
        if self.settings:
            bend = suu / np.minimum(su, -TINY)
            d["hu"] = energy_price * np.maximum(euu - eu * bend, 0.0) + d["sigma"] * (
                np.maximum(-bend, 0.0) + 1 / d["wd"]
            )
            # The price of a second at u, times -su, and the ratio to it of the present price: the step is linear in
            # their logarithms, in which a power law is linear, and not in them.
            seconds_price = np.maximum(energy_price * eu + d["sigma"], TINY)
            ratio = np.maximum(-pi * su, TINY) / seconds_price
            scale = scale + np.abs(seconds_price * (1 - ratio))
            d["log"] = ratio
            # The seconds left for the computing over those that it takes: log s is linear in log u for a power law.
            way = np.minimum(np.maximum((s - d["ra"]) / s, 0.5), 1e6)
            d["way"], d["ra"] = way * su, d["ra"] + s * (way - 1 - way * np.log(way))
            d["hu"], d["gu"] = ratio * (d["hu"] + 1e-12 * seconds_price), -ratio * seconds_price * np.log(ratio)
            product = product + d["sigma"] * d["wd"]
        sums = lay.total(np.array([d["theta"], product, used, scale, unmet]))
        g["rt"] = g["weight"] - sums[0] - g["phi"]
        g["gap"] = sums[1] + g["phi"] * (g["T"] - g["floor"])
        g["size"] = sums[2] + g["weight"] * g["T"]
        worst = lay.total(violation, np.maximum)
        if self.shares:
            e_["re"] = np.add.reduceat(d["x"], lay.first) + e_["we"] - 1.0
            g["gap"] = g["gap"] + lay.group(e_["mu"] * e_["we"])
            worst = np.maximum(worst, lay.group(e_["re"] - e_["we"], np.maximum))
        dual = sums[3] + np.abs(g["rt"]) * g["T"]
        gap = g["gap"] + sums[4] + (lay.group(e_["mu"] * np.abs(e_["re"])) if self.shares else 0.0)
        return np.asarray(
            (gap <= self.tol * g["size"]) & (worst <= self.tol) & (dual <= min(1e3 * self.tol, 1e-4) * g["size"])
        )

    def factor(self) -> None:
        """Compute what the predictor and the corrector share."""
        d, lay = self.d, self.layout
        (tp, jp, su, eu), hp, hu = (rows[1] for rows in self.looked), d["hp"], d["hu"]
        late = d["rho"] / d["wb"] if self.late else 0.0
        hungry = d["nu"] / d["wc"] if self.hungry else 0.0
        zero = np.zeros_like(hp)
        if not self.settings:  # the block is one number
            d["pp"] = 1 / (hp + late * tp**2 + hungry * jp**2) if self.shares else zero
            d["uu"] = d["qu"] = zero
            d["qp"] = d["pp"] * tp
        elif not self.shares:
            d["pp"] = d["qp"] = zero
            d["uu"] = 1 / (hu + late * su**2 + d["log"] * hungry * eu**2)
            d["qu"] = d["uu"] * su
        elif not self.crossed:
            d["pp"], d["uu"] = 1 / hp, 1 / hu
            d["qp"], d["qu"] = d["pp"] * tp, d["uu"] * su
        else:  # all terms of the determinant and of q have one sign, so that nothing cancels
            scaled = d["log"] * hungry
            a, b = late * tp**2 + hungry * jp**2, late * su**2 + scaled * eu**2
            crossed = late * hungry * (tp * eu - su * jp) * (d["log"] * tp * eu - su * jp)
            det = hp * hu + hp * b + hu * a + crossed
            d["pp"], d["uu"] = (hu + b) / det, (hp + a) / det
            d["pu"] = -(late * tp * su + hungry * jp * eu) / det
            d["up"] = -(late * tp * su + scaled * jp * eu) / det
            d["qp"] = (tp * (hu + scaled * eu**2) - hungry * jp * eu * su) / det
            d["qu"] = (su * (hp + hungry * jp**2) - scaled * jp * eu * tp) / det
        d["kappa"] = 1 / (d["wa"] / d["theta"] + np.maximum(tp * d["qp"] + d["way"] * d["qu"], 0.0))
        rows = [d["kappa"]]
        if self.shares:
            slope = tp * d["pp"] + d["way"] * d["up"] if self.crossed else d["qp"]
            d["c1"], d["c2"] = d["x"] * d["qp"], d["xm"] * slope
            c2k = d["kappa"] * d["c2"]
            rows += [c2k, d["kappa"] * d["c1"], d["x"] * d["xm"] * d["pp"] - c2k * d["c1"]]
        self.rows = np.add.reduceat(np.array(rows), lay.first, axis=-1)

    def direction(self, target: Columns) -> tuple[Columns, Columns, Columns]:
        """Return the changes of entries, edges and groups for products of slacks and prices changed by `target`."""
        d, g, e, lay = self.d, self.g, self.e, self.layout
        tp, jp, su, eu = (rows[1] for rows in self.looked)
        gp, gu = d["gp"], d["gu"]
        if self.settings:
            gu = gu + d["log"] * target["sigma"] / d["wd"]
        if self.late:
            push = (target["rho"] + d["rho"] * d["rb"]) / d["wb"]
            gp, gu = gp + tp * push, gu + su * push
        if self.hungry:
            push = (target["nu"] + d["nu"] * d["rc"]) / d["wc"]
            gp = gp + jp * push
            if self.settings:
                gu = gu + d["log"] * eu * push
        p0, u0 = -d["pp"] * gp, -d["uu"] * gu
        if self.crossed:
            p0, u0 = p0 - d["pu"] * gu, u0 - d["up"] * gp
        h = target["theta"] / d["theta"] + d["ra"] + tp * p0 + d["way"] * u0
        w_floor = g["T"] - g["floor"]
        out_e: Columns = {}
        kh = d["kappa"] * h
        s22 = lay.group(self.rows[0]) + g["phi"] / w_floor
        r2 = -g["rt"] + target["phi"] / w_floor
        if self.shares:
            sums = np.add.reduceat(np.array([kh, d["x"] * p0 - d["c1"] * kh]), lay.first, axis=-1)
            r2 = r2 + lay.group(sums[0])
            r1 = sums[1] + e["re"] + target["mu"] / e["mu"]
            s21, s12, s11 = self.rows[1], self.rows[2], np.maximum(self.rows[3], 0.0) + e["we"] / e["mu"]
            step_t = (r2 - lay.group(s21 * r1 / s11)) / (s22 + lay.group(s21 * s12 / s11))
            out_e["mu"] = (r1 + s12 * step_t) / s11
            out_e["we"] = (target["mu"] - e["we"] * out_e["mu"]) / e["mu"]
            moved = out_e["mu"][lay.node]
            later = lay.entries(step_t)
            theta = d["kappa"] * (h - d["c2"] * moved - later)
            p = p0 - d["qp"] * theta - d["pp"] * d["xm"] * moved
            u = u0 - d["qu"] * theta - (d["up"] * d["xm"] * moved if self.crossed else 0.0)
        else:
            step_t = (r2 + lay.total(kh)) / s22
            later = lay.entries(step_t)
            theta = d["kappa"] * (h - later)
            p, u = p0, u0 - d["qu"] * theta
        out: Columns = {"p": p, "u": u, "theta": theta}
        out["wa"] = later - tp * p - d["way"] * u - d["ra"]
        if self.settings:
            out["wd"], out["sigma"] = -u, (target["sigma"] + d["sigma"] * u) / d["wd"]
        if self.late:
            out["wb"] = np.where(np.isfinite(d["most_s"]), -(tp * p + su * u) - d["rb"], 0.0)
            out["rho"] = (target["rho"] - d["rho"] * out["wb"]) / d["wb"]
        if self.hungry:
            out["wc"] = np.where(np.isfinite(d["most_j"]), -(jp * p + eu * u) - d["rc"], 0.0)
            out["nu"] = (target["nu"] - d["nu"] * out["wc"]) / d["wc"]
        return out, out_e, {"T": step_t, "phi": (target["phi"] - g["phi"] * step_t) / w_floor}

    def names(self) -> list[tuple[str, str]]:
        """Return the prices and slacks of entries."""
        chosen = [
            ("theta", "wa", True),
            ("sigma", "wd", self.settings),
            ("rho", "wb", self.late),
            ("nu", "wc", self.hungry),
        ]
        return [(price, slack) for price, slack, used in chosen if used]

    def lengths(self, step: tuple[Columns, Columns, Columns], most: float) -> tuple[FloatArray, FloatArray]:
        """Return how much of a step, (G,), the slacks and the prices can take."""
        (entry, edge, group), d, g, e, lay = step, self.d, self.g, self.e, self.layout
        far = np.maximum(np.abs(entry["p"]), np.abs(entry["u"])) if self.settings else np.abs(entry["p"])
        least = np.zeros((2, len(far)))
        np.divide(far, -2.0, out=least[0])
        for price, slack in self.names():
            for row, name in zip(least, (slack, price), strict=True):
                np.fmin(row, entry[name] / d[name], out=row)
        worst = -lay.total(least, np.minimum)
        worst_p = np.maximum(worst[0], -group["T"] / (g["T"] - g["floor"]))
        worst_d = np.maximum(worst[1], -group["phi"] / g["phi"])
        if self.shares:
            worst_p = np.maximum(worst_p, lay.group(-edge["we"] / e["we"], np.maximum))
            worst_d = np.maximum(worst_d, lay.group(-edge["mu"] / e["mu"], np.maximum))
        return np.minimum(1.0, most / np.maximum(worst_p, TINY)), np.minimum(1.0, most / np.maximum(worst_d, TINY))

    def step(self) -> None:
        """Take a step: the predictor aims at products of 0, and the corrector at those that the predictor deserves."""
        d, g, e, lay = self.d, self.g, self.e, self.layout
        self.factor()
        products: Columns = {price: -d[price] * d[slack] for price, slack in self.names()}
        products["phi"] = -g["phi"] * (g["T"] - g["floor"])
        if self.shares:
            products["mu"] = -e["mu"] * e["we"]
        entry, edge, group = self.direction(products)
        primal, dual = self.lengths((entry, edge, group), 1.0)
        at_p, at_d = lay.entries(primal), lay.entries(dual)
        left = lay.total(sum((d[z] + at_d * entry[z]) * (d[w] + at_p * entry[w]) for z, w in self.names()))
        left = left + (g["phi"] + dual * group["phi"]) * (g["T"] + primal * group["T"] - g["floor"])
        if self.shares:
            left = left + lay.group((e["mu"] + dual * edge["mu"]) * (e["we"] + primal * edge["we"]))
        centre = np.minimum(np.maximum(left / g["gap"], 1e-2), 1.0) ** 3 * g["gap"] / g["pairs"]
        centre = np.maximum(centre, 0.1 * self.tol * g["size"] / g["pairs"])
        of_entry = lay.entries(centre)
        weight = primal * dual  # a predictor that is cut short says little about what is left
        cut = lay.entries(weight)
        for price, slack in self.names():
            products[price] = products[price] - cut * entry[price] * entry[slack] + of_entry
            if price in ("rho", "nu"):
                products[price] = np.where(d[price] > 0, products[price], 0.0)
        products["phi"] = products["phi"] - weight * group["phi"] * group["T"] + centre
        if self.shares:
            of_edge = np.broadcast_to(centre, e["mu"].shape)
            products["mu"] = products["mu"] - weight * edge["mu"] * edge["we"] + of_edge
        entry, edge, group = self.direction(products)
        primal, dual = self.lengths((entry, edge, group), 0.99)
        at_p, at_d = lay.entries(primal), lay.entries(dual)
        for price, slack in self.names():
            d[price], d[slack] = d[price] + at_d * entry[price], d[slack] + at_p * entry[slack]
        g["T"], g["phi"] = g["T"] + primal * group["T"], g["phi"] + dual * group["phi"]
        if self.shares:
            # A part gets numbers even where a problem without a solution has led the iteration astray.
            d["x"] = np.fmin(np.fmax(d["x"] * np.exp(at_p * entry["p"]), LEAST), 1.0)
            e["mu"], e["we"] = e["mu"] + dual * edge["mu"], e["we"] + primal * edge["we"]
        if self.settings:
            d["u"] = np.fmin(np.fmax(d["u"] * np.exp(at_p * entry["u"]), LEAST * lay.most), lay.most)
