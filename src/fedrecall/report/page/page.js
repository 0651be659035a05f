"use strict";
// Draws the figures of the page's data with Plotly, in the colours of the reader's light or dark scheme.

const page = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const byId = (id) => document.getElementById(id);
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

// Both ends are told apart by colour-blind readers; the middle is the colour of nothing. Forgetting gets darker (in
// the dark: brighter) than gaining, so that the two also differ in grey.
const SCALES = {
  light: {
    diverging: [[0, "#3a86c8"], [0.25, "#9cc7e8"], [0.5, "#f7f6f3"], [0.75, "#e88a4a"], [1, "#7a2600"]],
    sequential: [[0, "#f2f4f6"], [0.5, "#5fa8a0"], [1, "#0b3d4a"]],
    shares: [[0, "#f4f3f0"], [0.15, "#b9cfe4"], [1, "#143d6b"]],
  },
  dark: {
    diverging: [[0, "#4f9bdc"], [0.25, "#2c5577"], [0.5, "#23272e"], [0.75, "#b5561b"], [1, "#ffc48f"]],
    sequential: [[0, "#20252b"], [0.5, "#2e7f82"], [1, "#c9f2e3"]],
    shares: [[0, "#22262d"], [0.15, "#274a6e"], [1, "#bfe0ff"]],
  },
};
const hidden = new Set();

function theme() {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  return { ink: colour("--ink"), soft: colour("--soft"), line: colour("--line"), card: colour("--card"),
           scales: SCALES[dark.matches ? "dark" : "light"] };
}

function colourAxis(kind, look) {
  const bar = { thickness: 10, outlinewidth: 0, len: 1, tickfont: { color: look.soft, size: 11 } };
  if (kind === "diverging") {
    const end = 100 * page.largest, shown = String(Math.round(end));  // points
    return { colorscale: look.scales.diverging, cmin: -end, cmax: end, cmid: 0,
             colorbar: { ...bar, tickvals: [-end, 0, end], ticktext: ["−" + shown, "0", "+" + shown] } };
  }
  return { colorscale: look.scales[kind], cmin: 0, cmax: 100,
           colorbar: { ...bar, tickvals: [0, 50, 100], ticktext: ["0 %", "50 %", "100 %"] } };
}

function takeRoom(div, { height, layout }) {
  const slanted = height && layout.xaxis.type === "category" && innerWidth < 600 ? 70 : 0;  // labels on end
  div.style.height = (height || 320) + slanted + "px";
}

function draw(div, figure) {
  const look = theme(), layout = figure.layout || {};
  const axis = (given = {}) => ({
    automargin: true, gridcolor: look.line, linecolor: look.line, zerolinecolor: look.soft, fixedrange: true,
    ticks: "", ...given,
    title: { text: given.title || "", standoff: 8, font: { size: 12, color: look.soft } },
  });
  const traces = figure.data.map((trace) =>
    figure.curves ? { ...trace, visible: !hidden.has(trace.meta) } : trace);
  const methods = figure.curves ? figure.data.filter((trace) => trace.name).length : 0;
  takeRoom(div, figure);
  return Plotly.react(div, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false,
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: look.ink },
    margin: { l: 12, r: 8, t: 8, b: 12 },
    // A list of twenty methods would cover a phone.
    hovermode: figure.curves && !figure.closest ? (methods > 6 ? "closest" : "x unified") : "closest",
    hoverlabel: { bgcolor: look.card, bordercolor: look.line, align: "left", namelength: 40,
                  font: { color: look.ink, size: 12 } },
    legend: { orientation: "h", y: -0.25, font: { size: 11 } },
    ...layout,
    ...(figure.scale ? { coloraxis: colourAxis(figure.scale, look) } : {}),
    xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
  }, CONFIG);
}

// The matrices.

const percent = (whole) => (whole === null ? null : whole / 100);  // of the ten-thousandths in the page's data
const inPoints = (value) =>
  value === null ? "no validation data" : (value <= -0.05 ? "−" : "+") + Math.abs(value).toFixed(1) + " points";
const inPercent = (value) => (value === null ? "–" : value.toFixed(1) + " %");

function rowsOf(heatmap, choice, columns) {
  // One probe, or all of them below each other; the columns are those of the round's clients, or all.
  const probes = choice === "all" ? heatmap.probes : heatmap.probes.filter((probe) => probe.round === Number(choice));
  const rows = probes.flatMap((probe) => probe.models.map((model, place) => ({ probe, model, place })));
  const clients = new Set(columns === "round" ? probes.flatMap((probe) => probe.models) : []);
  const ids = [...new Set(probes.flatMap((probe) => probe.data))].filter((k) => !clients.size || clients.has(k));
  if (probes.length > 1) ids.sort((a, b) => a - b);  // one probe has its own clients first
  return { rows, ids, several: probes.length > 1 };
}

function matrixFigure(heatmap, kind, choice, columns, width) {
  const { rows, ids, several } = rowsOf(heatmap, choice, columns);
  const z = [], text = [], frames = [];
  const labels = (client) => heatmap.labels[client] || "not recorded";
  const title = (client) => heatmap.names[client] || `client ${client}`;
  const tick = (client) => heatmap.ticks[client] || String(client);
  const named = Object.keys(heatmap.ticks).length > 0;
  rows.forEach(({ probe, model, place }, row) => {
    const where = new Map(probe.data.map((client, column) => [client, column]));
    const values = ids.map((client) => {
      const column = where.get(client);
      const before = column === undefined ? null : percent(probe.before[column]);
      const after = column === undefined ? null : percent(probe.after[place][column]);
      const f = column === undefined ? null : percent(probe.forgotten[place][column]);
      return { before, after, f };
    });
    z.push(values.map((value) => (kind === "after" ? value.after : value.f)));
    text.push(values.map((value, column) =>
      `model of ${title(model)}: ${labels(model)}<br>data of ${title(ids[column])}: ${labels(ids[column])}` +
      `<br><b>F = ${inPoints(value.f)}</b> (before ${inPercent(value.before)}, after ${inPercent(value.after)})` +
      `<br>round ${probe.round}`));
    const own = ids.indexOf(model);
    if (own >= 0) {
      frames.push({ type: "rect", x0: own - 0.5, x1: own + 0.5, y0: row - 0.5, y1: row + 0.5,
                    line: { color: theme().ink, width: 1.5 } });
    }
  });
  const room = Math.max(4, named ? (width - 200) / 17 : (width - 110) / 20);  // labels that fit beside each other
  const every = Math.ceil(ids.length / Math.min(room, named ? 60 : 20)), everyRow = Math.ceil(rows.length / 16);
  const rowName = ({ probe, model }) => (several ? `${probe.round} · ${tick(model)}` : tick(model));
  const ticks = (list, step, name) => ({
    tickvals: list.map((_, place) => place).filter((place) => place % step === 0),
    ticktext: list.filter((_, place) => place % step === 0).map(name),
  });
  return {
    data: [{ type: "heatmap", z, text, coloraxis: "coloraxis", hovertemplate: "%{text}<extra></extra>",
             xgap: ids.length > 60 ? 0 : 1, ygap: rows.length > 60 ? 0 : 1 }],
    layout: {
      shapes: frames,
      xaxis: { title: "data of client k", showgrid: false, zeroline: false, tickangle: named ? -45 : 0,
               ...ticks(ids, every, tick) },
      yaxis: { title: several ? "round · client i" : "model of client i", autorange: "reversed", showgrid: false,
               zeroline: false, ...ticks(rows, everyRow, rowName) },
    },
    scale: kind === "after" ? "sequential" : "diverging",
    height: Math.min(560, Math.max(170, 90 + rows.length * 18)) + (named ? 60 : 0),
  };
}

// What is drawn, and when: a chart is drawn when it comes near the screen, and again when its choice changes.

const drawn = new Map();  // element -> a function that says what it shows
function show(div, figure) {
  drawn.set(div, figure);
  takeRoom(div, figure(div));  // without a height all charts of the page would be near the screen
  near.observe(div);
}
function redraw(wanted = () => true) {
  for (const [div, figure] of drawn) {
    if (div.dataset.drawn && wanted(div)) draw(div, figure(div));
  }
}
function drawNow(div) {
  near.unobserve(div);
  div.dataset.drawn = "yes";
  draw(div, drawn.get(div)(div));
}
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
  { rootMargin: "300px" });
addEventListener("beforeprint", () => [...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow));
dark.addEventListener("change", () => redraw());
let resized;
addEventListener("resize", () => {  // Plotly shrinks a chart; the labels that fit and the height are the page's
  clearTimeout(resized);
  resized = setTimeout(() => redraw(), 150);
});

function options(select, choices, chosen) {
  for (const [value, name] of choices) select.add(new Option(name, value, false, value === chosen));
}
// Texts in the data are escaped for Plotly; elsewhere on the page they are text.
const asText = (escaped) => new DOMParser().parseFromString(escaped, "text/html").body.textContent;

function showMatrices() {
  const rounds = [...new Set(page.heatmaps.flatMap((heatmap) => heatmap.probes.map((probe) => probe.round)))];
  rounds.sort((a, b) => a - b);
  const first = page.heatmaps[0].probes, widest = Math.max(...first.map((probe) => probe.data.length));
  const stacked = Math.max(...page.heatmaps.map((h) => h.probes.reduce((sum, probe) => sum + probe.models.length, 0)));
  const few = rounds.length > 1 && stacked <= 40;
  options(byId("round"), [...(rounds.length > 1 && stacked <= 200 ? [["all", "all probed"]] : []),
                          ...rounds.map((round) => [String(round), String(round)])],
          few ? "all" : String(rounds[rounds.length - 1]));
  options(byId("columns"), [["all", "all clients"], ["round", "the round's own clients"]],
          widest > 40 && !few ? "round" : "all");
  const kinds = { f: "Forgetting F[i, k]", after: "Accuracy after training, %" };
  const pairs = page.heatmaps.flatMap((heatmap) => Object.keys(kinds).map((kind) => [heatmap, kind]));
  // Two methods stand side by side, more below each other.
  if (page.heatmaps.length === 2) pairs.sort((a, b) => (a[1] === b[1] ? 0 : a[1] === "f" ? -1 : 1));
  for (const [heatmap, kind] of pairs) {
    const box = document.createElement("div"), title = document.createElement("h3"), about = document.createElement("p");
    const chart = document.createElement("div");
    box.className = "heat"; chart.className = "chart";
    title.textContent = asText(page.methods[heatmap.method]);
    about.textContent = kinds[kind] + (kind === "f" ? heatmap.about : "");
    box.append(title, about, chart);
    byId("heatmaps").append(box);
    show(chart, (div) => matrixFigure(heatmap, kind, byId("round").value, byId("columns").value, div.clientWidth));
  }
  for (const id of ["round", "columns"]) {
    byId(id).addEventListener("change", () => redraw((div) => div.closest("#heatmaps")));
  }
  const leftOut = Math.max(...page.heatmaps.map((heatmap) => heatmap.left_out));
  byId("left-out").hidden = !leftOut;
  byId("left-out").textContent = `Of ${leftOut + page.heatmaps[0].probes.length} probed rounds, ` +
    "some are left out here to keep the page small; the run's folder has all.";
}

function showClients() {
  const choice = byId("client-method");
  options(choice, Object.keys(page.clients).map((place) => [place, asText(page.methods[place])]));
  for (const id of ["suffers", "causes"]) show(byId(id), () => page.clients[choice.value][id]);
  choice.addEventListener("change", () => redraw((div) => div.id === "suffers" || div.id === "causes"));
}

function showCurves() {
  const choice = byId("metric"), define = () => { byId("definition").textContent = page.metrics[choice.value]; };
  show(byId("metric-chart"), () => page.figures["metric:" + choice.value]);
  choice.addEventListener("change", () => { define(); redraw((div) => div.id === "metric-chart"); });
  define();
}

function listenToLegends() {
  const buttons = [...document.querySelectorAll(".legend button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const method = Number(button.dataset.method);
      if (!hidden.delete(method)) hidden.add(method);
      for (const same of buttons.filter((other) => other.dataset.method === button.dataset.method)) {
        same.setAttribute("aria-pressed", String(!hidden.has(method)));
      }
      redraw((div) => drawn.get(div)(div).curves);
    });
  }
}

// The table as text, onto the clipboard; where a browser refuses, into a field to copy from by hand.

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = byId("to-copy");
    field.value = text;
    field.hidden = false;
    field.select();
    const copied = document.execCommand("copy");
    field.hidden = copied;
    return copied;
  }
}

function listenToCopies() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const copied = await copyText(page.copies[button.dataset.copy]);
      byId("copied").textContent = copied ? "Copied." : "Your browser does not allow it: copy it from here.";
    });
  }
}

if (page.heatmaps.length) { showMatrices(); showClients(); }
if (byId("metric")) showCurves();
listenToLegends();
listenToCopies();
for (const div of document.querySelectorAll("[data-figure]")) {
  const figure = page.figures[div.dataset.figure];
  if (figure) show(div, () => figure); else div.remove();
}
