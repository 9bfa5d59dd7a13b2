"use strict";
// What a living world adds to the details of a round: what happened to each device, and charges and losses over the rounds.

// The sign at the end of a device that did not count, by the first words of its fate.
const SIGN_OF = [["left", "x"], ["ran out of charge", "diamond-open"], ["lost its edge", "square-open"], ["", "circle-open"]];
const signOf = (text) => SIGN_OF.find(([words]) => text.startsWith(words))[1];
const planHint = (run) => ["One edge iteration", `Each device computes (solid) and then uploads (hatched). ${run.stragglers} `
  + "Drag to zoom into a part of the chart or of the map; a double click shows all again."];
const LIVED = ["What happened in the round", "In each edge iteration a device computes (solid) and then uploads (hatched); a dotted line is the iteration’s end at its edge. "
  + "What is faint did not count. The sign at its end says why: ✕ the device left, ◇ its charge ran out, □ its edge failed, ○ it came too late. "
  + "⚑ marks the straggler of the plan. Drag to zoom; a double click shows all again."];

// The bars of a round as it happened, for devices in this order: four kinds of bars, and the signs at the ends.
function lived(run, round, order) {
  const rows = round.end.flatMap((ends, q) => order.map((k, y) => ({ k, y, q, end: ends[k] })).filter(({ end }) => end !== null)).map(({ k, y, q, end }) => {
    const start = round.start[q][k], received = round.received ? round.received[q][k] ?? end : start, computed = round.computed[q][k] ?? end, counts = Boolean(round.counts[q][k]);
    const about = `${deviceOf(run, round.device[k])}, ${edgeOf(run, round.edge[k])}, edge iteration ${q + 1}${counts ? "" : "<br>does not count"}`;
    return { k, y, counts, tint: edgeTone(round.edge[k]), about, receiving: [start, received], computing: [received, computed], sending: [computed, end], end };
  });
  const bars = (counts, part, verb, hatched) => {
    const some = rows.filter((row) => row.counts === counts && row[part][1] > row[part][0]), seconds = some.map((row) => row[part][1] - row[part][0]);
    const pattern = hatched ? { shape: "/", size: 5, fgcolor: ink("paper"), solidity: 0.25 } : undefined;
    return { type: "bar", orientation: "h", name: `${part}${counts ? "" : ", did not count"}`, x: seconds, base: some.map((row) => row[part][0]), y: some.map((row) => row.y),
      customdata: some.map((row) => row.about), textposition: "none", hovertemplate: `%{customdata}<br>${verb} %{x:.4g} s from %{base:.4g} s on<extra></extra>`,
      marker: { color: some.map((row) => row.tint), opacity: counts ? (hatched ? 0.55 : 1) : 0.28, line: { width: 0 }, pattern } };
  };
  const traces = [true, false].flatMap((counts) => [...(round.received ? [bars(counts, "receiving", "receives", false)] : []), bars(counts, "computing", "computes", false), bars(counts, "sending", "uploads", true)]);
  const ended = order.map((k, y) => ({ y, text: round.fate[k], end: Math.max(0, ...rows.filter((row) => row.k === k).map((row) => row.end)) })).filter(({ text }) => text);
  traces.push({ type: "scatter", mode: "markers", name: "did not count", x: ended.map(({ end }) => end), y: ended.map(({ y }) => y), text: ended.map(({ text }) => text),
    marker: { symbol: ended.map(({ text }) => signOf(text)), size: 8, color: ink("ink"), line: { width: 1.5, color: ink("ink") } }, hovertemplate: "%{text}<extra></extra>", cliponaxis: false });
  const shapes = round.edgeT.flatMap((_, e) => {
    const at = order.map((_, y) => y).filter((y) => round.edge[order[y]] === e);
    return at.length ? round.until.map((ends) => ({ type: "line", x0: ends[e], x1: ends[e], y0: at[0] - 0.5, y1: at[at.length - 1] + 0.5, line: { color: edgeTone(e), width: 1, dash: "dot" } })) : [];
  });
  return { traces, shapes, absent: [["away", round.away], ["low on charge", round.low]].filter(([, who]) => who.length)
    .map(([reason, who]) => [reason, who.map((i) => quoted(run.deviceNames[i]))]) };
}

// The devices that could not be scheduled, in as many characters as there is room for.
function listed(who, most) {
  const whole = `${who.length}: ${who.join(", ")}`;
  return whole.length <= most ? whole : `${whole.slice(0, whole.lastIndexOf(",", most - 2))}, …`;
}
const folded = (who) => who.map((i, p) => (p && p % 20 === 0 ? `<br>${i}` : `${i}`)).join(", ");

// Charges, absences and losses of a run over its rounds, with a line at the round that the reader looks at.
function drawOver(run, round) {
  const over = run.over, tint = (c) => tone(DATA.colours[c]);
  byId("over").hidden = !over;
  if (!over) return;
  const line = (name, y, colour, more = {}) => ({ type: "scatter", mode: "lines+markers", name, x: over.n, y, line: { color: colour, width: 1.8, ...more }, marker: { size: 4 },
    hovertemplate: `round %{x}: %{y:.4g}<extra>${name}</extra>` });
  const chart = (id, traces, title, settings = {}) => {
    byId(id).hidden = !traces.length;
    if (!traces.length) return;
    plot(id, traces, { height: 300, showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } }, margin: { l: 55, r: 20, t: 50, b: 45 }, uirevision: run.name, ...settings,
      shapes: [{ type: "line", yref: "paper", x0: round.n, x1: round.n, y0: 0, y1: 1, line: { color: ink("soft"), width: 1, dash: "dot" } }, ...(settings.shapes || [])],
      xaxis: { title: { text: "Round" }, nticks: 8 }, yaxis: { title: { text: title }, rangemode: "tozero" } });
  };
  const { p10, p90, median, least } = over, reserve = { type: "line", xref: "paper", x0: 0, x1: 1, y0: run.reserve, y1: run.reserve, line: { color: ink("soft"), width: 1 } };
  const back = over.n.map((_, k) => k).reverse();
  chart("charge", !median ? [] : [
    { type: "scatter", mode: "lines", name: "10 % to 90 %", x: [...over.n, ...back.map((k) => over.n[k])], y: [...p10, ...back.map((k) => p90[k])], fill: "toself", fillcolor: `${tint(0)}2e`, line: { width: 0 }, hoverinfo: "skip" },
    line("median", median, tint(0)), ...(least ? [line("least", least, tint(1), { dash: "dash" })] : []),
  ], "Charge of the devices (J)", { shapes: run.reserve ? [reserve] : [] });
  const counts = [["away", over.away, 0], ["low on charge", over.low, 1], ["vanished", over.vanished, 2], ["edges down or failed", over.edges, 3]].filter(([, y]) => y && y.some((value) => value));
  chart("absent", counts.map(([name, y, c]) => line(name, y, tint(c), name.startsWith("edges") ? { dash: "dash" } : {})), "Number");
  chart("lost", [
    { type: "bar", name: "wasted", x: over.n, y: over.wasted, marker: { color: tint(1), opacity: 0.75 }, hovertemplate: "round %{x}: %{y:.4g} J wasted<extra></extra>" },
    { ...line("discarded uploads", over.discarded.map((share) => (share === null ? null : 100 * share)), tint(0)), yaxis: "y2", hovertemplate: "round %{x}: %{y:.3g} % of the uploads discarded<extra></extra>" },
  ], "Energy of discarded uploads (J)", { margin: { l: 55, r: 55, t: 50, b: 45 }, yaxis2: { overlaying: "y", side: "right", title: { text: "Discarded (%)" }, rangemode: "tozero", showgrid: false, automargin: true } });
}
