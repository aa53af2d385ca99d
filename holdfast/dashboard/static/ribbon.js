// Where did the time go? The ledger as a ribbon over the job's life, with its incidents above it.
// Hovering tells the stretch and the incident; the bill of the chosen one stands below.
import { bucketColour, bucketName, colour, count, duration, el, moment, renew, share, sharp, show, swatch, timeTicks, tipAt, where } from "./dom.js";
import { ask, jobPath } from "./data.js";

const TOP = 18, HIGH = 40, AXIS = 18;

export class Ribbon {
  constructor(name, place, head) {
    this.name = name;
    this.canvas = el("canvas", { tabindex: 0, role: "img" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.picture = el("div", { class: "picture" }, this.canvas, this.tip);
    this.bill = el("div");
    this.sum = el("div");
    this.whole = el("button", { onclick: () => this.reset(), title: "Whole job (r)" }, "Whole job");
    head.append(el("span", { class: "quiet noprint" }, "drag to zoom"), this.whole);
    show(place, this.picture, el("div", { class: "columns" }, el("div", {}, this.bill), el("div", {}, this.sum)));
    this.span = null;
    this.chosen = null;
    this.stretches = [];
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", (event) => { this.from = event.offsetX; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointerup", (event) => this.dropped(event.offsetX));
    this.canvas.addEventListener("dblclick", () => this.reset());
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  async update(told) {
    this.told = told;
    if (this.chosen === null && told.incidents.length) this.chosen = told.incidents.at(-1).id;
    await this.load();
  }

  async load() {
    const [from, to] = this.span || [this.told.from_ms, this.told.to_ms];
    this.stretches = await ask(jobPath(this.name, `/ribbon?from=${from}&to=${to}`));
    this.shown = [from, to];
    this.whole.hidden = this.span === null;
    this.redraw();
  }

  reset() {
    this.span = null;
    if (this.told) this.load();
  }

  choose(id) {
    this.chosen = id;
    this.redraw();
  }

  at(x) {
    const [from, to] = this.shown;
    return from + (x / this.canvas.clientWidth) * (to - from);
  }

  redraw() {
    if (!this.shown) return;
    const { incidents, goodput } = this.told;
    sharp(this.canvas, TOP + HIGH + AXIS, (context, width) => this.paint(context, width, incidents));
    this.canvas.setAttribute("aria-label", `${share(goodput.ettr)} of ${duration(goodput.wall_s)} productive, `
      + `${incidents.length} incidents. Arrow keys choose an incident, Enter opens it.`);
    renew(this.sum, ledger(goodput));
    renew(this.bill, bill(this.name, incidents.find((one) => one.id === this.chosen)));
  }

  paint(context, width, incidents) {
    const [from, to] = this.shown, x = (ms) => ((ms - from) / (to - from || 1)) * width;
    for (const [begin, end, bucket] of this.stretches) {
      context.fillStyle = bucketColour(bucket);
      context.fillRect(x(begin), TOP, Math.max(bucket === "productive" ? 0.3 : 0.8, x(end) - x(begin)), HIGH);
    }
    for (const one of incidents) {
      const at = x(one.started_at * 1000);
      if (at < -5 || at > width + 5) continue;
      const chosen = one.id === this.chosen;
      context.fillStyle = colour(chosen ? "--ink" : "--mark-incident");
      context.beginPath();
      context.moveTo(at, TOP - 2);
      context.lineTo(at - (chosen ? 5 : 3), TOP - (chosen ? 13 : 9));
      context.lineTo(at + (chosen ? 5 : 3), TOP - (chosen ? 13 : 9));
      context.fill();
    }
    context.fillStyle = colour("--soft");
    context.font = "11px system-ui, sans-serif";
    for (const [at, text] of timeTicks(from / 1000, to / 1000, Math.max(2, width / 90))) {
      context.fillRect(x(at * 1000), TOP + HIGH, 1, 4);
      context.fillText(text, Math.min(x(at * 1000) + 3, width - 34), TOP + HIGH + 14);
    }
    if (this.from !== undefined && this.to !== undefined) {
      context.fillStyle = colour("--band");
      context.fillRect(Math.min(this.from, this.to), TOP, Math.abs(this.to - this.from), HIGH);
    }
  }

  near(x) {
    const [from, to] = this.shown, width = this.canvas.clientWidth;
    const place = (one) => Math.abs(((one.started_at * 1000 - from) / (to - from)) * width - x);
    const best = this.told.incidents.reduce((a, b) => (a && place(a) <= place(b) ? a : b), null);
    return best && place(best) < 6 ? best : null;
  }

  hover(event) {
    if (!this.shown) return;
    const ms = this.at(event.offsetX);
    if (this.from !== undefined && event.buttons) {
      this.to = event.offsetX;
      this.redraw();
    }
    const stretch = this.stretches.find(([begin, end]) => begin <= ms && ms < end);
    const pointed = event.offsetY < TOP ? this.near(event.offsetX) : null;
    const id = pointed ? pointed.id : stretch && stretch[4];
    const incident = this.told.incidents.find((one) => one.id === id);
    if (incident && this.chosen !== id) this.choose(id);
    tipAt(this.tip, this.picture, event.offsetX, TOP + HIGH + 4,
      el("div", { class: "quiet" }, moment(ms / 1000)),
      stretch && el("div", {}, swatch(stretch[2]), bucketName(stretch[2]), ` ${duration((stretch[1] - stretch[0]) / 1000)}`, stretch[5] ? ", and more" : ""),
      incident && el("div", {}, el("b", {}, `${incident.id}  ${incident.cause}`), el("div", {}, incident.summary)));
  }

  dropped(x) {
    const [from, to] = [this.from, this.to];
    this.from = this.to = undefined;
    if (to !== undefined && Math.abs(to - from) > 5) {
      this.span = [Math.round(this.at(Math.min(from, x))), Math.round(this.at(Math.max(from, x)))];
      this.load();
      return;
    }
    const found = this.near(x);
    if (found) location.hash = `#/job/${encodeURIComponent(this.name)}/incident/${found.id}`;
  }

  pressed(event) {
    const ids = this.told.incidents.map((one) => one.id), at = ids.indexOf(this.chosen);
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const next = ids[at + (event.key === "ArrowLeft" ? -1 : 1)];
      if (next !== undefined) this.choose(next);
      event.preventDefault();
    } else if (event.key === "Enter" && at >= 0) {
      location.hash = `#/job/${encodeURIComponent(this.name)}/incident/${this.chosen}`;
    }
  }
}

function ledger(goodput) {
  const wall = goodput.wall_s || 1;
  const rows = Object.entries(goodput.buckets).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  const line = ([name, s]) => el("tr", {}, el("td", {}, swatch(name), bucketName(name)),
    el("td", { class: "n" }, duration(s)), el("td", { class: "n" }, share(s / wall, 2)));
  return [el("h3", {}, "The whole account"),
    el("table", {}, el("tbody", {}, rows.map(line),
      el("tr", {}, el("td", {}, el("b", {}, "wall time")), el("td", { class: "n" }, duration(goodput.wall_s)), el("td", { class: "n" }, "100 %")))),
    !goodput.observed && el("p", { class: "quiet" }, "The script reports no steps, so all running time of its workers counts as productive.")];
}

export function bill(name, incident) {
  if (!incident) return el("p", { class: "quiet" }, "There has been no incident.");
  const parts = Object.entries(incident.bill).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  return [el("h3", {}, el("a", { href: `#/job/${encodeURIComponent(name)}/incident/${incident.id}` }, `Incident ${incident.id}`), `: ${incident.cause}`),
    el("div", {}, incident.summary), el("div", { class: "quiet" }, `${moment(incident.started_at + incident.ahead_s)}, ${where(incident)}`),
    parts.length > 0 && el("div", { class: "stack", "aria-hidden": "true" }, parts.map(([bucket, s]) =>
      el("div", { style: { background: bucketColour(bucket), flex: `${(100 * s) / incident.lost_s} 0 1px` } }))),
    el("table", {}, el("tbody", {}, parts.map(([bucket, s]) => el("tr", {}, el("td", {}, swatch(bucket), bucketName(bucket)),
      el("td", { class: "n" }, duration(s)), el("td", { class: "n" }, share(s / (incident.lost_s || 1), 0)))),
    el("tr", {}, el("td", {}, el("b", {}, "its bill")), el("td", { class: "n" }, duration(incident.lost_s)),
      el("td", { class: "n" }, count(incident.steps_lost, "step")))))];
}
