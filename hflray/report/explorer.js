"use strict";
const edgeTone = (edge) => tone(DATA.colours[edge % DATA.colours.length]);
const CIVIDIS = [[0, "#00224e"], [0.25, "#404c6b"], [0.5, "#7b7b78"], [0.75, "#bcae6c"], [1, "#fee838"]];
const ordinal = (n) => (n === 1 ? "" : n === 2 ? "2nd-" : n === 3 ? "3rd-" : `${n}th-`);

function cell(value) {
  const td = document.createElement("td");
  td.textContent = value;
  return td;
}

function fillTable(id, heads, rows) {
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  heads.forEach((text) => { const th = document.createElement("th"); th.textContent = text; head.append(th); });
  rows.forEach(({ cells, late, edge }) => {
    const tr = body.insertRow();
    if (late) tr.className = "late";
    cells.forEach((value) => tr.append(cell(value)));
    if (edge !== undefined) {
      const dot = document.createElement("span");
      dot.className = "dot"; dot.style.background = edgeTone(edge);
      tr.cells[0].prepend(dot);
    }
  });
  byId(id).replaceChildren(table);
}

// Plotly reads tags, entities and %{…} in its texts.
const quoted = (text) => text.replace(/[&<>{]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "&#123;" })[sign]);
const deviceOf = (run, i) => quoted(`device ${run.deviceNames[i]}`), edgeOf = (run, e) => quoted(`edge ${run.edgeNames[e]}`);

// What became of a scheduled device in a living world; empty if it counts, or if the world is off.
const fate = (round, i) => (round.fate ? round.fate[round.device.indexOf(i)] || "" : "");
const down = (round, e) => (round.down || []).includes(e);

function drawMap(run, round) {
  const size = (i) => 5 + 13 * Math.sqrt(run.samples[i] / Math.max(...run.samples));
  const scheduled = new Set(round.device), idle = run.x.map((_, i) => i).filter((i) => !scheduled.has(i));
  const describe = (i) => `${deviceOf(run, i)}<br>${run.samples[i]} samples, majority class ${quoted(run.classNames[run.majority[i]])}`
    + (run.cluster ? `<br>cluster ${run.cluster[i]}` : "") + (fate(round, i) ? `<br>${fate(round, i)}` : "")
    + (round.charge ? `<br>charge ${number(round.charge[i])} J` : "");
  // Devices that move have places of their own in each round.
  const xs = round.x || run.x, ys = round.y || run.y;
  const traces = run.edgeX.map((x, e) => {
    const members = round.device.filter((_, k) => round.edge[k] === e), lines = { x: [], y: [] };
    members.forEach((i) => { lines.x.push(xs[i], x, null); lines.y.push(ys[i], run.edgeY[e], null); });
    return [
      { x: lines.x, y: lines.y, mode: "lines", line: { color: edgeTone(e), width: 0.7 }, opacity: 0.5, hoverinfo: "skip" },
      { x: members.map((i) => xs[i]), y: members.map((i) => ys[i]), mode: "markers", name: edgeOf(run, e),
        text: members.map(describe), hovertemplate: `%{text}<extra>${edgeOf(run, e)}</extra>`,
        marker: { symbol: members.map((i) => (fate(round, i) ? "circle-x-open" : "circle")), color: edgeTone(e), size: members.map(size), line: { color: members.map((i) => round.late.includes(i) ? ink("ink") : ink("paper")), width: members.map((i) => round.late.includes(i) ? 2 : 0.5) } } },
      { x: [x], y: [run.edgeY[e]], mode: "markers+text", text: [edgeOf(run, e)], textposition: "top center",
        marker: { symbol: down(round, e) ? "square-x-open" : "square", size: 13, color: edgeTone(e), line: { color: ink("ink"), width: 1.5 } },
        hovertemplate: `${edgeOf(run, e)}<br>${run.edgeMhz[e] === null ? "" : `${run.edgeMhz[e]} MHz<br>`}${members.length} devices${down(round, e) ? "<br>its model did not reach the cloud" : ""}<extra></extra>` },
    ];
  }).flat();
  const reason = (i) => ((round.away || []).includes(i) ? "away" : (round.low || []).includes(i) ? "low on charge" : "not scheduled");
  traces.push({ x: idle.map((i) => xs[i]), y: idle.map((i) => ys[i]), mode: "markers", text: idle.map((i) => `${describe(i)}<br>${reason(i)}`),
    hovertemplate: "%{text}<extra></extra>", marker: { symbol: idle.map((i) => ({ away: "x-thin", "low on charge": "cross-thin" }[reason(i)] || "circle")), color: "rgba(0,0,0,0)", size: idle.map(size), line: { color: ink("idle"), width: 1 } } });
  // What lies above the edges: regions and their hops, or the links among edges in place of the cloud.
  const above = run.above;
  traces.push({ x: above.x, y: above.y, mode: "lines", line: { color: ink("ink"), width: 1.2, dash: "dash" }, hoverinfo: "skip" });
  traces.push({ x: above.nodeX, y: above.nodeY, mode: "markers+text", text: above.names, textposition: "top center", hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: "diamond", size: 13, color: ink("paper"), line: { color: ink("ink"), width: 1.5 } } });
  if (above.cloud) traces.push({ x: [run.side / 2], y: [run.side / 2], mode: "markers", marker: { symbol: "x-thin", size: 13, line: { width: 2, color: ink("ink") } },
    hovertemplate: "cloud<extra></extra>" });
  const axis = { range: [-0.04 * run.side, 1.06 * run.side], zeroline: false, title: { text: "m" } };
  plot("map", traces, { height: Math.min(560, widthOf("map") + 40), margin: { l: 55, r: 10, t: 30, b: 45 }, uirevision: run.name,
    xaxis: { ...axis, constrain: "domain", nticks: Math.max(3, Math.floor(widthOf("map") / 90)) }, yaxis: { ...axis, scaleanchor: "x", constrain: "domain" } }, true).then(drawScale);
}

// The map's scale: a bar of a round number of metres, about a quarter of what the map shows.
function drawScale() {
  const map = byId("map"), [left, right] = map._fullLayout.xaxis.range, [bottom, top] = map._fullLayout.yaxis.range;
  const quarter = (right - left) / 4, power = 10 ** Math.floor(Math.log10(quarter));
  const metres = [5, 2, 1].find((factor) => factor * power <= quarter) * power;
  const x = left + 0.04 * (right - left), y = bottom + 0.05 * (top - bottom), tick = 0.012 * (top - bottom), line = { color: ink("ink"), width: 2 };
  const stroke = (x0, x1, y0, y1) => ({ type: "line", xref: "x", yref: "y", x0, x1, y0, y1, line });
  const text = metres >= 1000 ? `${metres / 1000} km` : `${metres} m`;
  return Plotly.relayout(map, {
    shapes: [stroke(x, x + metres, y, y), stroke(x, x, y - tick, y + tick), stroke(x + metres, x + metres, y - tick, y + tick)],
    annotations: [{ x: x + metres / 2, y, yshift: 10, text, showarrow: false, font: { size: 12, color: ink("ink") }, bgcolor: ink("paper"), borderpad: 1 }],
  });
}

function drawGantt(run, round) {
  const order = round.device.map((_, k) => k).sort((a, b) => round.edge[a] - round.edge[b] || round.device[a] - round.device[b]);
  const name = (k) => (fate(round, round.device[k]) ? "✕ " : "") + (round.late.includes(round.device[k]) ? "⚑ " : "") + quoted(run.deviceNames[round.device[k]]);
  const y = order.map((_, row) => row), { traces, shapes, absent } = round.end ? lived(run, round, order) : { traces: planned(run, round, order), shapes: [], absent: [] };
  const annotations = [], width = widthOf("gantt");
  run.edgeX.forEach((_, e) => {
    const rows = y.filter((row) => round.edge[order[row]] === e);
    if (rows.length) annotations.push({ xref: "paper", x: 1.01, xanchor: "left", y: (rows[0] + rows[rows.length - 1]) / 2, text: `${edgeOf(run, e)}<br>${number(round.edgeT[e])} s`,
      showarrow: false, align: "left", font: { color: edgeTone(e), size: 11 } });
  });
  absent.forEach(([, who], row) => annotations.push({ xref: "paper", x: 0.005, xanchor: "left", y: y.length + row + 0.5, text: listed(who, Math.floor((width - 190) / 6)), hovertext: folded(who),
    showarrow: false, align: "left", font: { color: ink("soft"), size: 11 } }));
  if (!order.length) annotations.push({ xref: "paper", yref: "paper", x: 0.5, y: 0.6, text: `nobody was ${round.dropped ? "left" : "available"}`, showarrow: false, font: { color: ink("soft"), size: 14 } });
  const [title, hint] = round.end ? LIVED : planHint(run);
  byId("gantt-title").textContent = title; byId("gantt-hint").textContent = hint;
  const last = y.length + (absent.length ? absent.length + 0.5 : 0);
  plot("gantt", traces, { height: Math.max(560, 60 + 13 * last), barmode: "overlay", bargap: 0.15, annotations, shapes, uirevision: run.name,
    margin: { l: 60, r: Math.min(200, Math.max(75, 12 + 6.5 * Math.max(...run.edgeNames.map((text) => 5 + text.length)))), t: 30, b: 45 }, xaxis: { title: { text: round.end ? "Seconds of the round" : "Seconds of one edge iteration" }, zeroline: false, rangemode: "tozero" },
    yaxis: { tickvals: [...y, ...absent.map((_, row) => y.length + row + 0.5)], ticktext: [...order.map(name), ...absent.map(([reason]) => reason)], range: [last - 0.5, -0.7],
      tickfont: { size: 10 }, title: { text: "Device" }, zeroline: false } }, true);
}

// The bars of one edge iteration as planned.
function planned(run, round, order) {
  const y = order.map((_, row) => row), edge = order.map((k) => edgeTone(round.edge[k]));
  const labels = order.map((k) => `${deviceOf(run, round.device[k])}, ${edgeOf(run, round.edge[k])}`);
  const bar = (values, base, style) => ({ type: "bar", orientation: "h", x: values, base, y, text: labels, textposition: "none", ...style });
  const compute = order.map((k) => round.compute[k]), upload = order.map((k) => round.upload[k]);
  const download = order.map((k) => (round.download ? round.download[k] : 0)), computed = compute.map((seconds, k) => download[k] + seconds);
  const received = round.download ? [bar(download, 0, { name: "download", marker: { color: edge, opacity: 0.3 }, hovertemplate: "%{text}<br>receives %{x:.4g} s<extra></extra>" })] : [];
  return [
    ...received,
    bar(compute, download, { name: "computation", marker: { color: edge }, hovertemplate: "%{text}<br>computes %{x:.4g} s<extra></extra>" }),
    bar(upload, computed, { name: "upload", marker: { color: edge, opacity: 0.55, pattern: { shape: "/", size: 5, fgcolor: ink("paper"), solidity: 0.25 } },
      customdata: upload, hovertemplate: "%{text}<br>uploads %{customdata:.4g} s<extra></extra>" }),
  ];
}

function drawLabels(run, round) {
  const order = run.x.map((_, i) => i).sort((a, b) => run.majority[a] - run.majority[b]
    || (run.cluster ? run.cluster[a] - run.cluster[b] : 0) || a - b);
  const column = new Map(order.map((i, p) => [i, p])), classes = run.counts.map((_, c) => c);
  // Plotly's basic bundle has no heat map: each cell is a bar of height 1, whose colour is the number of samples.
  const traces = run.counts.map((row, c) => ({
    type: "bar", x: order.map((_, p) => p), y: order.map(() => 1), base: order.map(() => c - 0.5), width: 1, customdata: order.map((i) => [deviceOf(run, i), row[i]]),
    marker: { color: order.map((i) => row[i]), coloraxis: "coloraxis", line: { width: 0 } }, hovertemplate: `%{customdata[0]}<br>class ${quoted(run.classNames[c])}: %{customdata[1]} samples<extra></extra>`,
  }));
  traces.push({ type: "scatter", x: round.device.map((i) => column.get(i)), y: round.device.map(() => run.counts.length - 0.1), mode: "markers", hoverinfo: "skip",
    marker: { symbol: "triangle-up", size: 8, color: round.edge.map(edgeTone) } });
  plot("labels", traces, { height: 330, margin: { l: 45, r: 10, t: 10, b: 45 }, barmode: "overlay", bargap: 0, uirevision: run.name,
    coloraxis: { colorscale: CIVIDIS, colorbar: { title: { text: "samples" }, thickness: 12, outlinewidth: 0 } },
    xaxis: { title: { text: "Devices, ordered by majority class" }, showticklabels: false, ticks: "", zeroline: false, showgrid: false, range: [-0.5, order.length - 0.5] },
    yaxis: { title: { text: "Class" }, range: [-0.5, run.counts.length + 0.4], tickvals: classes, ticktext: run.classNames.map(quoted), zeroline: false, showgrid: false } });
}

function drawTables(run, round) {
  const cards = [[run.metric, round.score === null ? "–" : round.score], ["T, delay", `${number(round.T)} s`], ["E, energy", `${number(round.E)} J`],
    ["E + λT", `${number(round.objective)} J`], round.ended, ["scheduled", `${round.device.length} of ${run.x.length}`]];
  if (round.fate) cards.push(["away", round.away.length], ...(round.charge ? [["low on charge", round.low.length]] : []), ["did not count", round.fate.filter((text) => text).length], ["wasted", `${number(round.wasted)} J`]);
  byId("cards").replaceChildren(...cards.map(([label, value]) => {
    const card = document.createElement("div"), b = document.createElement("b"), span = document.createElement("span");
    card.className = "card"; b.textContent = value; span.textContent = label; card.append(b, span);
    return card;
  }));
  const straggler = (e) => round.late.find((i) => round.edge[round.device.indexOf(i)] === e);
  fillTable("edges", ["edge", "devices", "bandwidth, MHz", "delay, s", "energy, J", run.turns ? "hop up, s (of each update)" : "of which hop up, s", "straggler"], run.edgeX.map((_, e) => ({
    edge: e, late: e === round.slowest, cells: [run.edgeNames[e] + (e === round.slowest ? " (slowest)" : ""), round.edge.filter((x) => x === e).length, run.edgeMhz[e] ?? "–", number(round.edgeT[e], 4),
      number(round.edgeE[e], 4), number(round.cloud[e]), straggler(e) === undefined ? "no devices" : `device ${run.deviceNames[straggler(e)]}`] })));
  const share = new Map();
  if (run.cluster) round.device.forEach((i) => share.set(run.cluster[i], (share.get(run.cluster[i]) || 0) + 1));
  const clusters = [...share].sort((a, b) => a[0] - b[0]).map(([c, n]) => `${n} of ${c}`).join(", ");
  byId("why").textContent = `Scheduled by ${run.scheduler}${clusters ? `, by cluster: ${clusters}` : ""}; assigned by ${run.assigner}. `
    + `${run.allocated} Joules are those of ${run.joulesOf}.`;
  const heads = ["device", "cluster", "majority class", "times scheduled", "edge", "rank of that edge", "samples", "bandwidth, MHz", "frequency, GHz", "compute, s", "upload, s", "joules"];
  if (round.download) heads.splice(9, 0, "download, s");
  if (round.fate) heads.splice(1, 0, "what became of it");
  const order = round.device.map((_, k) => k).sort((a, b) => round.edge[a] - round.edge[b] || round.device[a] - round.device[b]);
  fillTable("devices", heads, order.map((k) => {
    const i = round.device[k];
    const cells = [`${run.deviceNames[i]}${round.late.includes(i) ? " ⚑" : ""}`, run.cluster ? run.cluster[i] : "–", run.classNames[run.majority[i]], round.times[k], run.edgeNames[round.edge[k]],
      `${ordinal(round.nearest[k])}nearest, ${ordinal(round.strongest[k])}strongest`, run.samples[i], number(round.mhz[k]), number(round.ghz[k]), number(round.compute[k]), number(round.upload[k]), number(round.joules[k])];
    if (round.download) cells.splice(9, 0, number(round.download[k]));
    if (round.fate) cells.splice(1, 0, round.fate[k] || "counts");
    return { edge: round.edge[k], late: round.late.includes(i), cells };
  }));
}

function explore() {
  const choice = byId("run"), slider = byId("round");
  const show = () => {
    const run = DATA.runs[choice.value];
    slider.max = run.rounds.length - 1;
    slider.value = Math.min(slider.value, slider.max);
    const round = run.rounds[slider.value];
    byId("number").textContent = `${round.n} of ${run.rounds[run.rounds.length - 1].n}`;
    drawMap(run, round); drawGantt(run, round); drawOver(run, round); drawTurns(run, round); drawLabels(run, round); drawTables(run, round);
  };
  // The menu offers the runs of the groups that the reader's words and settings leave; it keeps the run that is open.
  const offer = () => {
    const left = DATA.runs.map((_, i) => i).filter((i) => matches(DATA.runs[i].group)), offered = left.length ? left : DATA.runs.map((_, i) => i);
    const open = offered.includes(+choice.value) && choice.value !== "" ? choice.value : offered[0];
    choice.replaceChildren(...offered.map((i) => new Option(DATA.runs[i].label, i)));
    choice.value = open;
    show();
  };
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; byId("play").textContent = "▶ play"; };
  byId("play").addEventListener("click", () => {
    if (timer) return stop();
    byId("play").textContent = "❚❚ stop";
    timer = setInterval(() => {
      if (+slider.value >= +slider.max) return stop();
      slider.value = +slider.value + 1;
      show();
    }, 700);
  });
  choice.addEventListener("change", show);
  slider.addEventListener("input", show);
  details.push(offer);
  // A zoom of the map, and no change that the scale itself makes, has the range of an axis.
  return () => byId("map").on("plotly_relayout", (change) => {
    if (Object.keys(change).some((key) => key.startsWith("xaxis"))) drawScale();
  });
}

const afterwards = DATA.runs.length ? explore() : () => {};
listen();
redraw();
afterwards();
document.body.dataset.ready = "yes";
