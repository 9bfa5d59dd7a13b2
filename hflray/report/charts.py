"""The page's charts, drawn with Plotly from the numbers of `hflray.report.series`.

Plotly interprets some HTML in texts, so that names are escaped.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from hflray import metrics
from hflray.report import series
from hflray.report.labels import COLOURS, colour
from hflray.report.runs import Sweep
from hflray.text import as_html

LINES = ("solid", "dash", "dashdot", "dot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "star", "cross", "x")
# The quantities that can replace the rounds on a curve's horizontal axis, with their titles.
X_AXES = (
    (metrics.TOTAL_DELAY_S, "Simulated time"),
    (metrics.TOTAL_ENERGY_J, "Simulated energy"),
    (metrics.TOTAL_MESSAGE_BITS, "Messages"),
)


def _translucent(tint: str) -> str:
    red, green, blue = (int(tint[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _figure(height: int = 380) -> go.Figure:
    layout = {
        "template": "plotly_white", "height": height, "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 12}, "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip
    return go.Figure(layout=layout)


def curve(sweep: Sweep, metric: str) -> go.Figure | None:
    """Return a chart of a metric: means over the seeds, with the standard deviation shaded.

    Buttons above the chart switch its horizontal axis to the quantities of `X_AXES` that all curves have. The result is
    None if no run has the metric.
    """
    lines = [line for panel in series.curves(sweep, metric).values() for line in panel if line.logged]
    if not lines:
        return None
    figure = _figure()
    titles = ["Round", *(metrics.describe(key).axis_of(title) for key, title in X_AXES)]
    data: list[list[list[float]]] = [[] for _ in titles]  # of each horizontal axis, the x of all traces
    for number, line in enumerate(lines):
        label = ", ".join(part for part in (line.panel, line.name) if part)
        name, tint = as_html(label), colour(label, number)
        x = [line.rounds, *(line.against(key) for key, _ in X_AXES)]
        shade = [np.concatenate([values, values[::-1]]).tolist() for values in x]
        shared = {"legendgroup": name, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=shade[0], y=[*line.table["high"], *line.table["low"][::-1]], fill="toself",
                           fillcolor=_translucent(tint), line={"width": 0}, **shared)  # fmt: skip
        figure.add_scatter(x=x[0].tolist(), y=line.table["mean"].tolist(), name=name, legendgroup=name,
                           mode="lines+markers", line={"color": tint, "dash": LINES[number // len(COLOURS) % 4]},
                           marker={"size": 5, "symbol": SYMBOLS[number % 8]})  # fmt: skip
        for axis, (values, outline) in enumerate(zip(x, shade, strict=True)):
            data[axis] += [outline, values.tolist()]
    buttons = [
        {"label": title, "method": "update", "args": [{"x": traces}, {"xaxis.title.text": title}]}
        for traces, title in zip(data, titles, strict=True)
        if not any(np.isnan(values).any() for values in traces)
    ]
    if len(buttons) > 1:
        figure.update_layout(
            updatemenus=[{"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}]
        )
    figure.update_layout(xaxis_title=sweep.shown.step_label, yaxis_title=metrics.describe(metric).axis)
    return figure


def bars(sweep: Sweep, metric: str) -> go.Figure | None:
    """Return a chart with a bar for each group: the mean, with the standard deviation as a whisker.

    The result is None if no run has the metric.
    """
    groups = series.bars(sweep, metric)
    logged = [bar for bar in groups if bar.values]
    if not logged:
        return None
    figure = _figure(80 + 26 * len(groups))
    means, spreads = [bar.mean for bar in logged], [bar.spread for bar in logged]
    figure.add_bar(
        x=means, y=[as_html(bar.label or sweep.name) for bar in logged], orientation="h", textposition="outside",
        cliponaxis=False, marker={"color": [bar.colour for bar in logged]}, text=[f"{mean:,.4g}" for mean in means],
        error_x={"array": spreads} if any(spreads) else None, hovertemplate="%{y}: %{x:,.4g}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(
        xaxis_title=metrics.describe(metric).axis,
        showlegend=False,
        margin={"t": 10, "l": 10, "r": 60},
        yaxis={"autorange": "reversed", "automargin": True},
    )
    return figure


def pareto(sweep: Sweep) -> go.Figure | None:
    """Return a chart of energy against delay, a point for each group; None if no group has both."""
    table = series.points(sweep)
    if table.empty:
        return None
    figure = _figure(430)
    for number, (name, rows) in enumerate(series.fronts(table).items()):
        figure.add_scatter(
            x=rows["delay_s"].tolist(), y=rows["energy_j"].tolist(), name=as_html(name), text=rows["point"].tolist(),
            error_x={"array": rows["delay_std"].tolist(), "thickness": 1} if rows["delay_std"].any() else None,
            error_y={"array": rows["energy_std"].tolist(), "thickness": 1} if rows["energy_std"].any() else None,
            mode="lines+markers+text" if len(table) <= 30 else "lines+markers", textposition="top right",
            textfont={"size": 10, "color": "#666"},
            line={"color": colour(name, number), "width": 1, "dash": LINES[number % 4]},
            marker={"size": 9, "symbol": SYMBOLS[number % 8]},
            hovertemplate="%{text}<br>%{x:,.4g} s, %{y:,.4g} J<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    per = sweep.shown.per
    figure.update_layout(xaxis_title=f"Simulated time delay {per} (s)", yaxis_title=f"Simulated energy {per} (J)")
    return figure
