"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const number = (value, digits = 3) => (value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: digits }));

// The theme: the system's, or the reader's choice, which the browser keeps where it may. Paper is always light.
const THEME = "hflray-theme", PRINTED_WIDTH = 690, PRINTED_HALF = 335;
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const remembered = () => { try { return localStorage.getItem(THEME); } catch { return null; } };
const remember = (choice) => { try { localStorage.setItem(THEME, choice); } catch { /* a page without storage */ } };
const printing = () => "print" in root.dataset;
const isDark = () => !printing() && (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);
const chosenTheme = (choice) => { if (choice === "auto") delete root.dataset.theme; else root.dataset.theme = choice; };
// The colours that are too dark on a dark page, and what replaces them there.
const BRIGHTER = { "#0072B2": "#3FA2DD", "#D55E00": "#F0782A", "#009E73": "#22BE94", "#000000": "#DDE2E9", "#8A8A00": "#BDBD3A" };
const tone = (colour) => (isDark() && BRIGHTER[colour.toUpperCase()]) || colour;
const ink = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

// A chart's place in the page: how wide it is, and how it is drawn again when the theme, the width or the groups change.
const printedWidth = (id) => (byId(id).closest("#explorer, .wide") ? PRINTED_WIDTH : PRINTED_HALF);
const widthOf = (id) => (printing() ? printedWidth(id) : byId(id).clientWidth);
const drawings = [], details = [];
const drawCharts = () => drawings.forEach((draw) => draw());
const redraw = () => [...drawings, ...details].forEach((draw) => draw());
function plot(id, traces, settings, modebar = false) {
  const axis = { gridcolor: ink("line"), linecolor: ink("line"), zerolinecolor: ink("line"), automargin: true };
  const layout = {
    font: { family: "system-ui, sans-serif", size: 12, color: ink("ink") }, hovermode: "closest", showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 60, r: 20, t: 12, b: 50 },
    hoverlabel: { bgcolor: ink("tint"), bordercolor: ink("idle"), font: { color: ink("ink") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("soft"), activecolor: ink("ink") },
    ...settings, xaxis: { ...axis, ...settings.xaxis }, yaxis: { ...axis, ...settings.yaxis },
    width: printing() ? printedWidth(id) : undefined, autosize: !printing(),
  };
  const zoom = { displayModeBar: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  return Plotly.react(id, traces, layout, { responsive: true, ...(modebar && !printing() ? zoom : { displayModeBar: false }) });
}

// Which groups the reader sees: those that match the words and the settings, without those that a click hid.
const GROUPS = DATA.groups, hidden = new Set(), pressed = new Map();
const plain = (text) => text.toLowerCase().replace(/\s*=\s*/g, "=");  // "h = 30" is one word, like "h=30"
let words = [];
const matches = (g) => words.every((word) => plain(GROUPS[g].label).includes(word))
  && [...pressed].every(([place, labels]) => !labels.size || labels.has(GROUPS[g].values[place]));
const shows = (g) => matches(g) && !hidden.has(g);
// A line's colour is its group's, or that of its value of a setting; with many groups the setting shows more.
let coloured = null;
const colourOf = (g) => {
  const at = coloured ? coloured.labels.indexOf(GROUPS[g].values[coloured.place]) : -1;
  return tone(at < 0 ? GROUPS[g].colour : coloured.colours[at]);
};
const shown = () => GROUPS.map((_, g) => g).filter(shows);

const DASHES = { solid: "", dash: "6 3", dashdot: "6 3 2 3", dot: "2 3" };
const SIGNS = { circle: "●", square: "■", "triangle-up": "▲", diamond: "◆", "triangle-down": "▼", star: "★", cross: "✚", x: "✖" };
function swatch(g) {
  const group = GROUPS[g], colour = colourOf(g);
  const NS = "http://www.w3.org/2000/svg", svg = document.createElementNS(NS, "svg");
  const add = (name, attributes, text = "") => {
    const part = document.createElementNS(NS, name);
    Object.entries(attributes).forEach(([key, value]) => part.setAttribute(key, value));
    part.textContent = text;
    svg.append(part);
  };
  svg.setAttribute("width", 30); svg.setAttribute("height", 12); svg.setAttribute("aria-hidden", "true");
  add("line", { x1: 0, x2: 30, y1: 6, y2: 6, stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[group.dash] });
  add("text", { x: 15, y: 10, "text-anchor": "middle", "font-size": 11, fill: colour }, SIGNS[group.symbol]);
  return svg;
}

// While the pointer is on an entry of the legend, the other lines are faint. Plotly's class of a line has its uid.
const emphasis = document.head.appendChild(document.createElement("style"));
const emphasise = (g) => {
  emphasis.textContent = g === null ? ""
    : `.curves .scatterlayer .trace { opacity: 0.12 !important; } .curves .scatterlayer .trace.traceg${g}x { opacity: 1 !important; }`;
};

function drawLegend() {
  if (!byId("legend")) return;
  const entries = GROUPS.map((group, g) => {
    if (!matches(g)) return null;
    const entry = document.createElement("button");
    entry.type = "button";
    entry.setAttribute("aria-pressed", String(!hidden.has(g)));
    entry.append(swatch(g), group.label);
    entry.addEventListener("click", () => { if (!hidden.delete(g)) hidden.add(g); drawCharts(); });
    entry.addEventListener("mouseenter", () => emphasise(g));
    entry.addEventListener("mouseleave", () => emphasise(null));
    return entry;
  });
  emphasise(null);
  byId("legend").replaceChildren(...entries.filter(Boolean));
  byId("count").textContent = `${shown().length} of ${GROUPS.length} shown`;
  document.querySelectorAll("#summary tr[data-group]").forEach((row) => { row.hidden = !matches(+row.dataset.group); });
}

function drawCurve(chart, i) {
  const axis = +byId("axis").value, groups = shown().filter((g) => chart.lines[g]);
  const points = groups.reduce((sum, g) => sum + chart.lines[g].mean.length, 0);
  const traces = groups.flatMap((g) => {
    const { mean, std } = chart.lines[g], { dash, symbol, label } = GROUPS[g], colour = colourOf(g), x = DATA.curves.x[g][axis];
    const line = { uid: `g${g}x`, type: "scatter", x, y: mean, name: escaped(label), connectgaps: true, mode: points > 1500 ? "lines" : "lines+markers",
      line: { color: colour, dash, width: groups.length > 20 ? 1.3 : 2 }, marker: { size: 5, symbol },
      hovertemplate: "%{x:,.4g}: %{y:,.4g}<extra>%{fullData.name}</extra>", hoverlabel: { namelength: -1 } };
    if (!std) return [line];
    const at = mean.map((_, k) => k).filter((k) => mean[k] !== null), back = [...at].reverse();
    return [{ uid: `g${g}x shade`, type: "scatter", x: [...at, ...back].map((k) => x[k]), y: [...at.map((k) => mean[k] + std[k]), ...back.map((k) => mean[k] - std[k])],
      mode: "lines", fill: "toself", fillcolor: `${colour}2e`, line: { width: 0 }, hoverinfo: "skip" }, line];
  });
  plot(`curve-${i}`, traces, { height: printing() ? 260 : 360, xaxis: { title: { text: DATA.curves.axes[axis] } }, yaxis: { title: { text: chart.title } } });
}

// Plotly interprets some HTML in texts, so names are escaped for it.
const escaped = (text) => String(text ?? "").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// Break a label at its commas into lines of at most this many characters, as far as the commas allow.
function broken(label, most) {
  const lines = [""];
  label.split(", ").forEach((part, i, parts) => {
    const text = part + (i < parts.length - 1 ? ", " : ""), last = lines[lines.length - 1];
    if (last && (last + text).trim().length > most) lines.push(text); else lines[lines.length - 1] += text;
  });
  return lines.map((line) => line.trim()).join("<br>");
}

function drawBars(chart, i) {
  const id = `bar-${i}`, groups = shown().filter((g) => chart.mean[g] !== null), width = widthOf(id);
  const labels = groups.map((g) => broken(escaped(GROUPS[g].label), Math.max(12, Math.floor(width / 18))));
  const lines = Math.max(1, ...labels.map((label) => label.split("<br>").length)), many = groups.length > 20;
  const spread = groups.map((g) => chart.std[g]), size = many ? 10 : 12;
  const traces = [{ type: "bar", orientation: "h", x: groups.map((g) => chart.mean[g]), y: groups.map((_, row) => row),
    customdata: groups.map((g) => escaped(GROUPS[g].label)), marker: { color: groups.map(colourOf) },
    error_x: spread.some((value) => value) ? { type: "data", array: spread, color: ink("soft"), thickness: 1 } : undefined,
    hovertemplate: "%{customdata}: %{x:,.4g}<extra></extra>" },
  // The number stands behind the whisker, which would strike it through.
  { type: "scatter", mode: "text", x: groups.map((g) => chart.mean[g] + (chart.std[g] || 0)), y: groups.map((_, row) => row), text: groups.map((g) => ` ${number(chart.mean[g], 4)}`),
    textposition: "middle right", textfont: { size }, cliponaxis: false, hoverinfo: "skip", showlegend: false }];
  plot(id, traces, { height: 70 + groups.length * (many ? 14 : 26) * (1 + (lines - 1) * 0.55), margin: { t: 6, l: 10, r: 64, b: 46 }, xaxis: { title: { text: chart.title }, rangemode: "tozero", nticks: Math.max(3, Math.floor(width / 90)) },
    yaxis: { tickvals: groups.map((_, row) => row), ticktext: labels, range: [groups.length - 0.4, -0.6], showgrid: false, tickfont: { size } } });
}

function drawFront() {
  const { lines, x, y } = DATA.front, seen = shown().length, names = seen <= 30 && widthOf("front") > 600;
  const traces = lines.flatMap((line, n) => {
    const at = line.group.map((_, k) => k).filter((k) => shows(line.group[k])), of = (key) => at.map((k) => line[key][k]);
    if (!at.length) return [];
    const tints = at.map((k) => colourOf(line.group[k]));
    const spread = (key) => (of(key).some((value) => value) ? { type: "data", array: of(key), thickness: 1, color: ink("soft") } : undefined);
    return [{ type: "scatter", x: of("delay_s"), y: of("energy_j"), name: escaped(line.name), text: of("point").map(escaped), error_x: spread("delay_std"), error_y: spread("energy_std"),
      mode: names ? "lines+markers+text" : "lines+markers", textposition: "top right", textfont: { size: 10, color: ink("soft") }, cliponaxis: false,
      line: { color: tints[0], width: 1, dash: Object.keys(DASHES)[n % 4] }, marker: { size: 9, symbol: Object.keys(SIGNS)[n % 8], color: tints },
      customdata: at.map((k) => escaped(GROUPS[line.group[k]].label)), hovertemplate: "%{customdata}<br>%{x:,.4g} s, %{y:,.4g} J<extra></extra>" }];
  });
  plot("front", traces, { height: 430, xaxis: { title: { text: x } }, yaxis: { title: { text: y } } });
}

// A click on a heading of the summary sorts its rows by the first number of the cells, or by their text.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, column) => {
    const text = row.cells[column].textContent, parsed = parseFloat(text.replaceAll(",", ""));
    return column && !Number.isNaN(parsed) ? parsed : text;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    body.append(...[...body.rows].sort((a, b) => sign * compare(value(a, column), value(b, column))));
  }));
}

function listen() {
  const theme = byId("theme");
  theme.value = remembered() || "auto";
  chosenTheme(theme.value);
  theme.addEventListener("change", () => { chosenTheme(theme.value); remember(theme.value); redraw(); });
  systemIsDark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => { root.dataset.print = ""; redraw(); });
  addEventListener("afterprint", () => { delete root.dataset.print; redraw(); });
  let width = innerWidth, timer = null;
  addEventListener("resize", () => {
    if (width === innerWidth || printing()) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 150);
  });
  sortable(byId("summary"));
  if (byId("axis")) byId("axis").addEventListener("change", drawCharts);
  if (!byId("legend")) return;
  const colour = byId("colour");
  if (colour) {
    // With many groups, start with the setting that has the most values, as far as each has a colour of its own.
    const few = DATA.choices.filter((choice) => choice.labels.length <= DATA.colours.length).sort((a, b) => b.labels.length - a.labels.length);
    if (GROUPS.length > 16 && few.length) colour.value = DATA.choices.indexOf(few[0]);
    const choose = () => { coloured = DATA.choices[colour.value] || null; };
    choose();
    colour.addEventListener("change", () => { choose(); drawCharts(); });
  }
  byId("search").addEventListener("input", (event) => {
    words = plain(event.target.value).split(/[\s,]+/).filter(Boolean);
    redraw();
  });
  byId("all").addEventListener("click", () => { hidden.clear(); drawCharts(); });
  byId("none").addEventListener("click", () => { GROUPS.forEach((_, g) => { if (matches(g)) hidden.add(g); }); drawCharts(); });
  document.querySelectorAll(".choice").forEach((button) => button.addEventListener("click", () => {
    const place = +button.dataset.place, labels = pressed.get(place) || new Set();
    if (!labels.delete(button.textContent)) labels.add(button.textContent);
    pressed.set(place, labels);
    button.setAttribute("aria-pressed", String(labels.has(button.textContent)));
    redraw();
  }));
}

drawings.push(drawLegend);
if (DATA.curves) drawings.push(() => DATA.curves.charts.forEach(drawCurve));
drawings.push(() => DATA.bars.forEach(drawBars));
if (DATA.front) drawings.push(drawFront);
