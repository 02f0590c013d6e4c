"use strict";
// Everything shown is made with textContent from the numbers and strings below: nothing of a record is ever parsed as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, text, attributes) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  return node;
}

function figure(value) { return value === null || value === undefined ? "" : value.toFixed(2); }
function label(method) { return data.labels[method] || method; }

// --- filters ---------------------------------------------------------------------------------------------------------

const filters = { protocol: "", group: "", method: "" };

function choices(key) {
  const seen = new Map();
  for (const row of [...data.cells, ...data.runs]) seen.set(row[key], key === "method" ? label(row[key]) : row[key]);
  return seen;
}

for (const key of Object.keys(filters)) {
  const select = document.getElementById("filter-" + key);
  select.append(make("option", "all", { value: "" }));
  for (const [value, text] of choices(key)) select.append(make("option", text, { value }));
  select.addEventListener("change", () => { filters[key] = select.value; show(); });
}

function passes(row) {
  return Object.entries(filters).every(([key, value]) => !value || row[key] === value);
}

// --- tables ----------------------------------------------------------------------------------------------------------

// A table that sorts by any column: columns are {title, value(row), draw(row)?, text?}.
function sortable(place, columns, rows) {
  let by = null, down = false;
  const table = make("table"), head = make("tr"), body = make("tbody"), headers = [];
  columns.forEach((column, k) => {
    const cell = make("th", null, { scope: "col" }), button = make("button", column.title, { type: "button" });
    button.addEventListener("click", () => { down = by === k ? !down : !column.text; by = k; draw(); });
    cell.append(button); head.append(cell); headers.push(cell);
  });
  const top = make("thead"); top.append(head); table.append(top, body);
  const box = make("div", null, { class: "wide", tabindex: "0", role: "region", "aria-label": place.dataset.name });
  box.append(table); place.append(box);
  const none = make("p", "Nothing passes the filters.", { class: "soft" });
  place.append(none);

  function compare(a, b) {
    const x = columns[by].value(a), y = columns[by].value(b);
    const empty = (v) => v === null || v === undefined || v === "";
    if (empty(x) || empty(y)) return empty(x) - empty(y);  // what is not there stays last, whichever way
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return down ? -order : order;
  }

  function draw() {
    const shown = rows.filter(passes);
    if (by !== null) shown.sort(compare);
    headers.forEach((cell, k) => { if (k === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending"); else cell.removeAttribute("aria-sort"); });
    body.replaceChildren(...shown.map((row) => {
      const line = make("tr");
      for (const column of columns) {
        const drawn = column.draw ? column.draw(row) : column.value(row);
        const cell = make("td", drawn instanceof Node ? null : drawn, column.kind ? { class: column.kind(row) } : {});
        if (drawn instanceof Node) cell.append(drawn);
        line.append(cell);
      }
      return line;
    }));
    none.hidden = shown.length > 0;
  }
  return draw;
}

function metricColumn(metric) {
  return {
    title: metric.title,
    value: (row) => row.diverged ? null : row[metric.name].mean,
    draw: (row) => row.diverged ? "div (" + row.diverged + "/" + row.runs + ")" : row[metric.name].mean === null ? "" :
      figure(row[metric.name].mean) + (row[metric.name].deviation === null ? " (one seed)" : " ± " + figure(row[metric.name].deviation)),
    kind: (row) => ["", "best", "second"][row[metric.name].rank],
  };
}

const accuracy = data.metrics[0].name;
const drawCells = sortable(document.getElementById("cells"), [
  { title: "Protocol", value: (row) => row.protocol, text: true },
  { title: "Method", value: (row) => label(row.method), text: true },
  { title: "Group", value: (row) => row.group, text: true, kind: () => "group" },
  ...data.metrics.map(metricColumn),
  { title: "Runs", value: (row) => row.runs, draw: (row) => row.runs + row.marks },
  { title: "Stored per class", value: (row) => row.stored, text: true },
  { title: "Extra weights", value: (row) => row.extra_weights },
  { title: "Paper", value: (row) => row[accuracy].paper, draw: (row) => figure(row[accuracy].paper) },
  { title: "Status", value: (row) => row[accuracy].status, text: true, kind: (row) => row[accuracy].status.replace(" ", "-") },
], data.cells);

const drawRuns = sortable(document.getElementById("runs"), [
  { title: "Run", value: (row) => row.name, text: true, draw: (row) => {
    const button = make("button", row.name, { type: "button" });
    button.addEventListener("click", () => open(row));
    return button;
  } },
  { title: "Method", value: (row) => label(row.method), text: true },
  { title: "Seed", value: (row) => row.seed },
  { title: "Status", value: (row) => row.status, text: true },
  ...data.metrics.map((metric) => ({ title: metric.title, value: (row) => row.metrics[metric.name], draw: (row) => figure(row.metrics[metric.name]) })),
  { title: "Group", value: (row) => row.group, text: true, kind: () => "group" },
], data.runs);

// --- one run ---------------------------------------------------------------------------------------------------------

const panel = document.getElementById("run");

function grid(header, rows) {
  const box = make("div", null, { class: "wide", tabindex: "0", role: "region", "aria-label": header[0] }), table = make("table"), top = make("thead"), line = make("tr"), body = make("tbody");
  for (const title of header) line.append(make("th", title, { scope: "col" }));
  for (const row of rows) { const tr = make("tr"); row.forEach((value) => tr.append(make("td", value))); body.append(tr); }
  top.append(line); table.append(top, body); box.append(table);
  return box;
}

// A small chart: a line for each session, from [epoch, value] pairs.
function chart(title, lines) {
  const box = make("div"), all = lines.flatMap((line) => line.points);
  const [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  const last = Math.max(...all.map((p) => p[0]));
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 220 100"); svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title + " from " + low + " to " + high);
  lines.forEach((line, k) => {
    const path = document.createElementNS(SVG, "polyline");
    const place = ([epoch, value]) => (5 + 210 * (last > 1 ? (epoch - 1) / (last - 1) : .5)).toFixed(1) + "," + (95 - 90 * (high > low ? (value - low) / (high - low) : .5)).toFixed(1);
    path.setAttribute("points", line.points.map(place).join(" "));
    path.setAttribute("fill", "none"); path.setAttribute("stroke-width", "1.5");
    path.setAttribute("stroke", "hsl(" + (210 + 140 * k / Math.max(1, lines.length - 1)) + " 75% 48%)");
    const name = document.createElementNS(SVG, "title"); name.textContent = line.name; path.append(name); svg.append(path);
  });
  box.append(make("div", title), svg, make("div", low.toPrecision(3) + " to " + high.toPrecision(3) + ", " + last + " epochs", { class: "soft" }));
  return box;
}

function charts(run, kind, first) {
  const names = [...new Set(run.curves.flatMap((curve) => Object.keys(curve[kind])))];
  names.sort((a, b) => (b === first) - (a === first));
  const place = make("div", null, { class: "curves" });
  for (const name of names) {
    const lines = run.curves.filter((curve) => (curve[kind][name] || []).length)
      .map((curve) => ({ name: "session " + curve.session + ", " + curve.phase, points: curve[kind][name] }));
    if (lines.length) place.append(chart(name, lines));
  }
  return place;
}

function copyButton(text) {
  const button = make("button", "Copy", { type: "button" });
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(button.previousSibling); button.textContent = "Selected: press Ctrl+C"; }
  });
  return button;
}

function open(run) {
  const close = make("button", "Close", { type: "button" });
  close.addEventListener("click", () => { panel.hidden = true; document.getElementById("runs-title").focus(); });
  const title = make("h2", run.name, { tabindex: "-1" });
  const command = make("div", null, { class: "command" });
  command.append(make("code", run.command), copyButton(run.command));
  const matrix = run.accuracy.map((row, t) => ["session " + t, ...run.accuracy.map((_, j) => figure(row[j])), figure(run.overall[t])]);
  const nodes = [title, close, make("p", label(run.method) + ", seed " + run.seed + ", " + run.group + ": " + run.status + (run.reason ? " (" + run.reason + ")" : "")),
    make("h3", "The same run again"), command,
    make("p", "At its commit; DIR and FILE, where they stand, are the folder of the data and the file of the weights.", { class: "soft" }),
    make("h3", "Accuracy by session (rows) of each session's classes (columns), in %"),
    grid(["after", ...run.accuracy.map((_, j) => "C" + j + " (" + run.sizes[j] + ")"), "overall"], matrix),
    make("h3", "Novel share and other diagnostics by epoch"), charts(run, "diagnostics", "share_on_new_rows"),
    make("h3", "Loss terms by epoch, a line a session"), charts(run, "terms", ""),
    make("h3", "Provenance"), grid(["what", "value"], [["record", run.file], ["optimiser steps", run.optimiser_steps], ["stored per class", run.stored], ["extra weights", run.extra_weights],
      ...Object.entries(run.provenance).map(([key, value]) => [key, typeof value === "object" && value !== null ? JSON.stringify(value) : String(value)])])];
  panel.replaceChildren(...nodes);
  panel.hidden = false;
  title.focus();
  panel.scrollIntoView();
}

// --- all together ----------------------------------------------------------------------------------------------------

function show() {
  drawCells(); drawRuns();
  for (const node of document.querySelectorAll("#figures figure")) {
    const { group, protocols, methods } = node.dataset;
    node.hidden = (filters.group && filters.group !== group) || (filters.protocol && !JSON.parse(protocols).includes(filters.protocol)) ||
      (filters.method && !JSON.parse(methods).includes(filters.method));
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
document.getElementById("clear").addEventListener("click", () => {
  for (const key of Object.keys(filters)) { filters[key] = ""; document.getElementById("filter-" + key).value = ""; }
  show();
});
show();
