// Is it learning? Four curves over one axis. The server gives as many points as there are pixels:
// least, greatest and mean of each stretch, so that no spike is lost; zooming asks for finer ones.
import { colour, el, figure, moment, show, whole } from "./dom.js";
import { ask, jobPath } from "./data.js";

export const CHARTS = [
  ["loss", "Loss", ""], ["grad_norm", "Gradient norm", ""],
  ["tokens_per_s", "Throughput", "tokens/s of rank 0"], ["mfu", "Model FLOPs utilisation", ""],
  ["step_s", "Step time", "s"], ["lr", "Learning rate", ""],
];
const HIGH = 150, WAIT_MS = 120;

export class Curves {
  constructor(name, place, head) {
    Object.assign(this, { name, place, charts: [], span: null, log: false, axis: "step", data: null });
    this.log_ = el("button", { "aria-pressed": "false", onclick: () => { this.log = !this.log; this.set(this.log_, this.log); this.build(); } }, "log");
    this.time_ = el("button", { "aria-pressed": "false", onclick: () => { this.axis = this.axis === "step" ? "at" : "step"; this.set(this.time_, this.axis === "at"); this.build(); } }, "by time");
    this.whole = el("button", { onclick: () => this.reset(), hidden: true, title: "All steps (r)" }, "All steps");
    head.append(el("span", { class: "legend" }, legend("--mark-incident", "incident"), legend("--mark-update", "update"), legend("--mark-save", "checkpoint")),
      this.log_, this.time_, this.whole);
    this.says = el("p", { class: "quiet" });
    this.grid = el("div", { class: "charts" });
    show(place, this.grid, this.says);
    this.grid.addEventListener("pointerdown", () => { this.held = true; });
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, this.free = () => { this.held = false; });
  }

  set(button, on) {
    button.setAttribute("aria-pressed", String(on));
  }

  // Not under the hand of whoever selects a stretch, and only where there is something new.
  async update(told) {
    const before = this.told;
    this.told = told;
    const news = !before || before.step !== told.step || before.incidents.length !== told.incidents.length;
    if (this.span === null && news && !this.held) await this.load();
  }

  async load() {
    const [first, last] = this.span || [0, "end"], points = Math.max(300, Math.min(1600, this.place.clientWidth));
    this.data = await ask(jobPath(this.name, `/figures/curve/${first}/${last}/${points}`));
    this.whole.hidden = this.span === null;
    this.build();
  }

  reset() {
    this.span = null;
    if (this.told) this.load();
  }

  leave() {
    for (const end of ["pointerup", "pointercancel"]) removeEventListener(end, this.free);
    this.clear();
  }

  clear() {
    clearTimeout(this.timer);
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
  }

  redraw() {
    if (this.data) this.build();
  }

  build() {
    this.clear();
    const data = this.data, known = CHARTS.filter(([key]) => (data.mean[key] || []).some((value) => value !== null));
    const detail = data.width > 1 ? `each point covers up to ${whole(data.width)} steps: band from minimum to maximum, line at the mean` : "every step";
    this.says.textContent = known.length ? `Steps ${whole(data.first)} to ${whole(data.last)}, ${detail}. Drag to zoom, double click for all.`
      : "No curves: the script reports no steps (docs/guides/your-script.md), or the job was run by a version without curves.";
    const boxes = known.map(([key, name, unit]) => {
      const value = el("span");
      return { key, value, box: el("div", { class: "chart" }, el("h3", {}, name, el("span", {}, unit), value)) };
    });
    show(this.grid, boxes.map((one) => one.box));
    this.charts = boxes.map((one) => this.chart(one, data));
  }

  chart({ key, value, box }, data) {
    const chart = plot(box, {
      x: data[this.axis], low: data.low[key], high: data.high[key], mean: data.mean[key],
      log: this.log && key === "loss", byTime: this.axis === "at", sync: `curves-${this.name}`, high_px: HIGH,
      marks: () => this.marks(), zoomed: (from, to) => this.zoom(from, to), reset: () => this.reset(),
      pointed: (n) => { value.textContent = n === null ? "" : `${figure(data.mean[key][n], 5)} at step ${whole(data.step[n])}, ${moment(data.at[n])}`; },
    });
    box.firstChild.nextSibling.querySelector("canvas").setAttribute("role", "img");
    box.querySelector("canvas").setAttribute("aria-label", `${key} from ${figure(first(data.mean[key]))} to ${figure(last(data.mean[key]))}`);
    return chart;
  }

  // What is marked: where the axis is steps, by the step that was known then.
  marks() {
    const axis = this.axis === "at" ? (one) => one.at : (one) => one.step;
    const faults = this.told.incidents.map((one) => ({ kind: "incident", at: one.started_at + one.ahead_s, step: one.step }));
    return [...faults, ...this.told.marks.filter((one) => one.kind === "update" || one.kind === "checkpoint")]
      .map((one) => [one.kind, axis(one)]).filter(([, at]) => at !== null);
  }

  zoom(from, to) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const { step, at } = this.data;
      if (this.axis === "at") [from, to] = [from, to].map((t) => step[Math.max(0, at.findIndex((one) => one >= t))]);
      const span = [Math.max(0, Math.floor(from)), Math.ceil(to)];
      if (span[1] - span[0] < 4) return;
      this.span = span;
      this.load();
    }, WAIT_MS);
  }
}

const first = (values) => values.find((value) => value !== null);
const last = (values) => values.findLast((value) => value !== null);

function legend(name, text) {
  return el("span", {}, el("span", { class: "swatch", style: { background: `var(${name})` } }), text);
}

// One chart: a band and a line, or with `other` a second line over the same steps.
export function plot(box, { x, low, high, mean, other, log, byTime, sync, high_px, marks, zoomed, reset, pointed }) {
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const line = (label, stroke, extra = {}) => ({ label, stroke, width: 1.3, points: { show: mean.length < 3 }, ...extra });
  const edge = { stroke: colour("--band"), points: { show: false }, width: 1 };
  const series = [{}, { ...edge, label: "minimum" }, { ...edge, label: "maximum" }, line("mean", colour("--accent"))];
  const data = [x, low, high, mean];
  if (other) {
    series.push(line("other", colour("--mark-incident")));
    data.push(other);
  }
  return new uPlot({
    width: box.clientWidth || 400, height: high_px, series, legend: { show: false },
    bands: [{ series: [2, 1], fill: colour("--band") }],
    scales: { x: { time: Boolean(byTime) }, y: { distr: log ? 3 : 1 } },
    axes: [{ ...axis, size: 24 }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick, 3))) }],
    cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: sync }, points: { size: 5 }, bind: { dblclick: () => () => { reset && reset(); return null; } } },
    hooks: {
      setSelect: [(chart) => {
        if (chart.select.width < 4 || !zoomed) return;
        zoomed(chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x"));
      }],
      setCursor: [(chart) => pointed && pointed(chart.cursor.idx ?? null)],
      drawAxes: [(chart) => mark(chart, marks ? marks() : [])],
    },
  }, data, box);
}

function mark(chart, marks) {
  const { ctx, bbox } = chart;
  ctx.save();
  for (const [kind, at] of marks) {
    const x = Math.round(chart.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const save = kind === "checkpoint";
    ctx.fillStyle = colour(save ? "--mark-save" : kind === "update" ? "--mark-update" : "--mark-incident");
    ctx.globalAlpha = save ? 0.9 : 0.4;
    ctx.fillRect(x, save ? bbox.top + bbox.height - 6 : bbox.top, 1, save ? 6 : bbox.height);
  }
  ctx.restore();
}
