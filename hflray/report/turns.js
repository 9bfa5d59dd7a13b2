"use strict";
// The turns of edges under an asynchronous cloud, over the rounds of a run, and how stale their updates were.

const SHOWN_ROUNDS = 8; // that the chart of turns shows before the reader zooms out

// Jain's index of how evenly the edges contribute: 1 if all send equally often, 1 / M if one edge sends alone.
const jain = (counts) => counts.reduce((a, b) => a + b, 0) ** 2 / (counts.length * counts.reduce((a, b) => a + b * b, 0));

function drawTurns(run, round) {
  const turns = run.turns;
  byId("turns").hidden = !turns;
  if (!turns) return;
  const about = turns.edge.map((e, i) => `${edgeOf(run, e)}, from version ${turns.version[i]}<br>staleness ${turns.stale[i]}, share ${number(turns.share[i])}`);
  const until = turns.rounds[Math.min(SHOWN_ROUNDS, turns.rounds.length) - 1];
  const newest = Math.max(1, ...turns.version.filter((_, i) => turns.start[i] < until)); // later versions have the last colour
  const hops = { x: [], y: [] };
  turns.edge.forEach((e, i) => { hops.x.push(turns.sent[i], turns.end[i], null); hops.y.push(e, e, null); });
  const stale = turns.edge.map((_, i) => i).filter((i) => turns.stale[i] > 0);
  plot("turns-gantt", [
    { type: "bar", orientation: "h", x: turns.edge.map((_, i) => turns.sent[i] - turns.start[i]), base: turns.start, y: turns.edge, customdata: about, textposition: "none", name: "turn",
      marker: { color: turns.version, cmin: 0, cmax: newest, colorscale: CIVIDIS, line: { width: 0.5, color: ink("paper") }, colorbar: { title: { text: "version" }, thickness: 12, outlinewidth: 0 } },
      hovertemplate: "%{customdata}<br>trains %{x:.4g} s from %{base:.4g} s on<extra></extra>" },
    { type: "scatter", mode: "lines", x: hops.x, y: hops.y, line: { color: ink("soft"), width: 2 }, name: "upload to the cloud", hoverinfo: "skip" },
    { type: "scatter", mode: "text", x: stale.map((i) => turns.end[i]), y: stale.map((i) => turns.edge[i] - 0.43), text: stale.map((i) => `${turns.stale[i]}`), textfont: { size: 9, color: ink("ink") }, hoverinfo: "skip" },
  ], { height: Math.max(260, 90 + 34 * run.edgeX.length), barmode: "overlay", bargap: 0.35, uirevision: run.name, margin: { l: 60, r: 20, t: 20, b: 45 }, showlegend: false,
    shapes: turns.rounds.map((end, n) => ({ type: "line", yref: "paper", x0: end, x1: end, y0: 0, y1: 1, line: { color: ink("soft"), width: n + 1 === round.n ? 2 : 0.7, dash: "dot" } })),
    xaxis: { title: { text: "Simulated seconds" }, range: [0, until], zeroline: false },
    yaxis: { title: { text: "Edge" }, range: [run.edgeX.length - 0.4, -0.8], tickvals: run.edgeX.map((_, e) => e), ticktext: run.edgeNames.map(quoted), zeroline: false } }, true);
  const most = Math.max(0, ...turns.stale), bins = Array.from({ length: most + 1 }, (_, s) => s);
  plot("turns-stale", run.edgeX.map((_, e) => ({ type: "bar", name: edgeOf(run, e), x: bins, y: bins.map((s) => turns.stale.filter((value, i) => value === s && turns.edge[i] === e).length),
    marker: { color: edgeTone(e) }, hovertemplate: "%{y} updates of staleness %{x}<extra>%{fullData.name}</extra>" })),
  { height: 300, barmode: "stack", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } }, margin: { l: 55, r: 20, t: 50, b: 45 }, uirevision: run.name,
    xaxis: { title: { text: "Staleness (versions)" }, dtick: most > 20 ? undefined : 1 }, yaxis: { title: { text: "Updates" } } });
  const idle = run.over && run.over.idle;
  byId("turns-idle").hidden = !idle;
  if (idle) plot("turns-idle", [{ type: "bar", x: run.over.n, y: idle, marker: { color: tone(DATA.colours[0]), opacity: 0.75 }, hovertemplate: "round %{x}: edges idle for %{y:.4g} s<extra></extra>" }],
    { height: 300, margin: { l: 55, r: 20, t: 50, b: 45 }, uirevision: run.name, xaxis: { title: { text: "Round" }, nticks: 8 }, yaxis: { title: { text: "Idle seconds of the edges" }, rangemode: "tozero" } });
  const counts = run.edgeX.map((_, e) => turns.edge.filter((edge) => edge === e).length), mean = turns.stale.reduce((a, b) => a + b, 0) / Math.max(1, turns.stale.length);
  byId("turns-about").textContent = `${turns.edge.length} updates in ${turns.rounds.length} rounds; mean staleness ${number(mean)}; Jain’s index of the edges’ numbers of updates ${number(jain(counts))} (1: all send equally often).`;
}
