// Who is slow? Ranks by time as a heat map. Rows that share a pixel show the slowest of them, so one
// rank among 16,384 is seen; zooming and sorting happen here, nothing is asked for again.
import { colour, duration, el, moment, renew, share, sharp, show, timeTicks, tipAt } from "./dom.js";
import { ask, jobPath } from "./data.js";

const QUANTITIES = {
  step_s: ["Step time", "relative to the median of all ranks at that time"],
  wait: ["Waiting for data and copies", "share of the time"],
  late: ["Others wait for it", "share of the time, from when it enters collectives"],
};
const LEVELS = [["best", "all that fits"], ["0", "the last minutes"], ["1", "hours"], ["2", "days"], ["3", "weeks"]];
const DIMENSIONS = ["tp", "cp", "dp_shard", "dp_replicate", "pp"]; // innermost first
const LEFT = 62, AXIS = 18, HIGH = 380, AGAIN_MS = 8000, TICK_WIDE = 60, TICKS_MAX = 1000;
const HALVES = halves();

export class Heat {
  constructor(name, place, head) {
    Object.assign(this, { name, place, quantity: "late", level: "best", sort: "rank", rows: null, asked: 0, view: null });
    this.quantity_ = choice(Object.entries(QUANTITIES).map(([key, [text]]) => [key, text]), "quantity", (key) => { this.quantity = key; this.asked_for = true; this.load(); });
    this.quantity_.value = this.quantity;
    this.level_ = choice(LEVELS, "span of time", (key) => { this.level = key; this.load(); });
    this.sort_ = choice([["rank", "by rank"], ["value", "slowest first"], ["node", "by node"]], "order", (key) => { this.sort = key; this.view = null; this.order(); this.redraw(); });
    this.rank_ = el("input", { type: "number", min: 0, placeholder: "rank", "aria-label": "find a rank", style: { width: "5.5rem" }, oninput: () => this.find(this.rank_.value) });
    head.append(this.quantity_, this.sort_, this.level_, this.rank_);
    this.canvas = el("canvas", { tabindex: 0, role: "img" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.picture = el("div", { class: "picture" }, this.canvas, this.tip);
    this.says = el("p", { class: "quiet" });
    this.slowest = el("div", { class: "legend" });
    show(place, this.picture, this.slowest, this.says);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => this.open(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  async update(told) {
    const first = !this.told;
    this.told = told;
    if (first) this.sortBy(told);
    if (first || (performance.now() - this.asked > AGAIN_MS && !told.outcome)) await this.load();
  }

  sortBy(told) {
    const known = DIMENSIONS.filter((name) => told.dimensions && told.dimensions[name] > 1);
    for (const name of known) this.sort_.append(el("option", { value: name }, `by ${name.replace("_", " ")}`));
    if (told.racks) this.sort_.append(el("option", { value: "rack" }, "by rack"));
  }

  async load() {
    this.asked = performance.now();
    const data = await ask(jobPath(this.name, `/figures/ranks/${this.quantity}/${this.level}`), "bytes");
    const bytes = new Uint8Array(data), end = bytes.indexOf(10);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
    this.values = decoded(data.slice(end + 1));
    if (!this.asked_for && this.quantity === "late" && head.at.length && this.values.every((v) => v !== v)) {
      this.quantity = this.quantity_.value = "step_s"; // nothing is known of collectives
      await this.load();
      return;
    }
    if (!this.head || this.head.ranks !== head.ranks) this.view = null;
    this.head = head;
    this.scale();
    this.order();
    this.redraw();
  }

  // Step times as what is above the median of their column; shares as they are.
  scale() {
    const { values, head } = this;
    if (this.quantity === "step_s") {
      for (let c = 0; c < head.at.length; c += 1) {
        const column = values.subarray(c * head.ranks, (c + 1) * head.ranks);
        const known = column.filter((v) => v === v).sort(), middle = known[known.length >> 1] || 1;
        for (let r = 0; r < column.length; r += 1) column[r] = column[r] / middle - 1;
      }
    }
    this.mean = new Float32Array(head.ranks);
    for (let r = 0; r < head.ranks; r += 1) {
      let sum = 0, count = 0;
      for (let c = 0; c < head.at.length; c += 1) {
        const value = values[c * head.ranks + r];
        if (value === value) { sum += value; count += 1; }
      }
      this.mean[r] = count ? sum / count : 0;
    }
    let most = 0;
    for (let i = 0; i < values.length; i += 1) if (values[i] > most) most = values[i];
    this.most = Math.max(0.05, Math.min(most, 1));
  }

  order() {
    const count = this.head.ranks, rows = Uint32Array.from({ length: count }, (_, rank) => rank);
    const key = this.sort;
    if (key === "value") rows.sort((a, b) => this.mean[b] - this.mean[a]);
    else if (key === "node" || key === "rack") {
      const names = this.names(key);
      rows.sort((a, b) => names[a].localeCompare(names[b], "en", { numeric: true }) || a - b);
    } else if (key !== "rank") {
      const at = (rank) => coordinates(rank, this.told.dimensions)[key];
      rows.sort((a, b) => at(a) - at(b) || a - b);
    }
    this.rows = rows;
    this.place_ = null;
  }

  names(kind) {
    const each = this.told.workers_per_node || 1, nodes = {};
    for (const node of this.told.status.nodes) if (node.rank !== null) nodes[node.rank] = node.name;
    const racks = this.told.racks || {};
    return Array.from({ length: this.head.ranks }, (_, rank) => {
      const name = nodes[Math.floor(rank / each)] || `node ${Math.floor(rank / each)}`;
      return kind === "rack" ? racks[name] || "" : name;
    });
  }

  redraw() {
    if (!this.head) return;
    const { head } = this, empty = !head.at.length;
    this.canvas.hidden = empty;
    const [, unit] = QUANTITIES[this.quantity];
    this.says.textContent = empty ? "No times of ranks are recorded yet: they are recorded while a controller runs."
      : `${head.ranks} ranks, ${head.at.length} samples, ${duration(head.span_s.at(-1))} each; ${unit}; darkest at ${share(this.most, 0)}. `
        + "Wheel zooms, arrow keys move, a click opens the rank's output.";
    if (empty) { show(this.slowest); return; }
    const high = Math.max(60, Math.min(HIGH, head.ranks * 12));
    sharp(this.canvas, high + AXIS, (context, width) => this.paint(context, width, high));
    const slow = [...this.mean.keys()].sort((a, b) => this.mean[b] - this.mean[a]).slice(0, 6).filter((rank) => this.mean[rank] > 0.02);
    renew(this.slowest, slow.length ? el("b", {}, "most:") : "no rank stands out", slow.map((rank) =>
      el("a", { href: this.link(rank) }, `rank ${rank} ${share(this.mean[rank], 0)}`)));
    this.canvas.setAttribute("aria-label", `${QUANTITIES[this.quantity][0]}: ${slow.map((rank) => `rank ${rank} ${share(this.mean[rank], 0)}`).join(", ") || "no rank stands out"}`);
  }

  paint(context, width, high) {
    const { head, values, rows } = this, [top, bottom] = this.view || [0, head.ranks];
    const columns = head.at.length, lines = Math.max(1, Math.min(high * (devicePixelRatio || 1) | 0, bottom - top));
    const image = new ImageData(columns, lines), pixels = new Uint32Array(image.data.buffer);
    const shades = palette(), scale = 255 / this.most;
    for (let y = 0; y < lines; y += 1) {
      const from = top + Math.floor((y * (bottom - top)) / lines), to = Math.max(from + 1, top + Math.floor(((y + 1) * (bottom - top)) / lines));
      for (let c = 0; c < columns; c += 1) {
        let most = NaN;
        for (let n = from; n < to; n += 1) {
          const value = values[c * head.ranks + rows[n]];
          if (value > most || most !== most) most = value;
        }
        pixels[y * columns + c] = most === most ? shades[Math.max(0, Math.min(255, (most * scale) | 0))] : 0;
      }
    }
    this.sheet ||= document.createElement("canvas");
    this.sheet.width = columns;
    this.sheet.height = lines;
    this.sheet.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.sheet, LEFT, 0, width - LEFT, high);
    this.axes(context, width, high, top, bottom);
  }

  axes(context, width, high, top, bottom) {
    const { head } = this;
    context.fillStyle = colour("--soft");
    context.font = "11px system-ui, sans-serif";
    const labels = Math.min(bottom - top, Math.floor(high / 22)), names = this.sort === "node" || this.sort === "rack" ? this.names(this.sort) : null;
    for (let n = 0; n < labels; n += 1) {
      const at = top + Math.floor((n * (bottom - top)) / labels), rank = this.rows[at];
      context.fillText(names ? names[rank].slice(-9) : String(rank), 0, ((at - top + 0.5) / (bottom - top)) * high + 4, LEFT - 4);
    }
    const begin = head.at[0] - head.span_s[0], end = head.at.at(-1), room = width - LEFT;
    const covered = head.span_s.reduce((sum, one) => sum + one, 0) || 1, most = Math.max(2, room / 90);
    let free = LEFT;
    for (const [at, text] of timeTicks(begin, end, Math.min(TICKS_MAX, (most * (end - begin)) / covered))) {
      const place = placeOf(at, head), x = LEFT + (place / head.at.length) * room;
      if (place === null || x < free) continue;
      free = x + TICK_WIDE;
      context.fillRect(x, high, 1, 4);
      context.fillText(text, Math.min(x + 3, width - 40), high + 14);
    }
    if (this.found !== undefined) {
      const row = this.rows.indexOf(this.found), y = ((row - top + 0.5) / (bottom - top)) * high;
      context.strokeStyle = colour("--ink");
      context.strokeRect(LEFT - 2, y - Math.max(3, high / (bottom - top) / 2), room + 2, Math.max(6, high / (bottom - top)));
    }
  }

  find(text) {
    const rank = text === "" ? undefined : Number(text);
    this.found = rank < this.head.ranks ? rank : undefined;
    if (this.found !== undefined && this.head.ranks > 200) {
      const row = this.rows.indexOf(this.found);
      this.view = [Math.max(0, row - 40), Math.min(this.head.ranks, row + 40)];
    }
    this.redraw();
  }

  under(event) {
    const high = this.canvas.clientHeight - AXIS, [top, bottom] = this.view || [0, this.head.ranks];
    const column = Math.floor(((event.offsetX - LEFT) / (this.canvas.clientWidth - LEFT)) * this.head.at.length);
    const lines = Math.min(high * (devicePixelRatio || 1) | 0, bottom - top), line = Math.floor((event.offsetY / high) * lines);
    if (column < 0 || line < 0 || line >= lines) return null;
    const from = top + Math.floor((line * (bottom - top)) / lines), to = Math.max(from + 1, top + Math.floor(((line + 1) * (bottom - top)) / lines));
    let best = this.rows[from];
    for (let n = from; n < to; n += 1) if (this.value(column, this.rows[n]) > this.value(column, best)) best = this.rows[n];
    return { column, rank: best, others: to - from - 1 };
  }

  value(column, rank) {
    return this.values[column * this.head.ranks + rank];
  }

  hover(event) {
    const found = this.head && this.under(event);
    if (!found) { this.tip.hidden = true; return; }
    const { rank, column, others } = found, value = this.value(column, rank);
    const place = this.told.dimensions ? Object.entries(coordinates(rank, this.told.dimensions)).filter(([name]) => this.told.dimensions[name] > 1).map(([name, at]) => `${name} ${at}`).join(", ") : "";
    tipAt(this.tip, this.picture, event.offsetX, Math.max(0, event.offsetY - 60), el("b", {}, `rank ${rank}`), `, ${this.names("node")[rank]}`,
      el("div", { class: "quiet" }, place), el("div", {}, `${value === value ? share(value) : "not known"} at ${moment(this.head.at[column])}`),
      others > 0 && el("div", { class: "quiet" }, `most of ${others + 1} ranks here`));
  }

  link(rank) {
    return `#/job/${encodeURIComponent(this.name)}/rank/${rank}`;
  }

  open(event) {
    const found = this.under(event);
    if (found) location.hash = this.link(found.rank);
  }

  zoom(factor, row) {
    const [top, bottom] = this.view || [0, this.head.ranks], size = Math.max(8, Math.min(this.head.ranks, Math.round((bottom - top) * factor)));
    const from = Math.max(0, Math.min(this.head.ranks - size, Math.round(row - ((row - top) * size) / (bottom - top))));
    this.view = size >= this.head.ranks ? null : [from, from + size];
    requestAnimationFrame(() => this.redraw());
  }

  wheel(event) {
    if (!this.head || this.head.ranks < 16 || (!event.ctrlKey && !this.view && event.deltaY > 0)) return;
    event.preventDefault();
    const [top, bottom] = this.view || [0, this.head.ranks];
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, top + (event.offsetY / (this.canvas.clientHeight - AXIS)) * (bottom - top));
  }

  pressed(event) {
    const [top, bottom] = this.view || [0, this.head.ranks], step = Math.max(1, (bottom - top) >> 2);
    const move = { ArrowUp: -step, ArrowDown: step }[event.key];
    if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? 0.5 : 2, (top + bottom) / 2);
    else if (move && this.view) {
      const from = Math.max(0, Math.min(this.head.ranks - (bottom - top), top + move));
      this.view = [from, from + bottom - top];
      this.redraw();
    } else return;
    event.preventDefault();
  }

  reset() {
    this.view = null;
    this.found = undefined;
    this.redraw();
  }
}

// Where among the columns a moment is, which are equally wide whatever they cover; null in a pause.
export function placeOf(at, head) {
  const column = head.at.findIndex((one) => one >= at), part = column < 0 ? -1 : 1 - (head.at[column] - at) / head.span_s[column];
  return part < 0 ? null : column + part;
}

function choice(options, label, chosen) {
  return el("select", { "aria-label": label, onchange: (event) => chosen(event.target.value) },
    options.map(([value, text]) => el("option", { value }, text)));
}

export function coordinates(rank, dimensions) {
  const found = {};
  for (const name of DIMENSIONS) {
    found[name] = rank % dimensions[name];
    rank = Math.floor(rank / dimensions[name]);
  }
  return found;
}

function palette() {
  const stops = ["--heat-0", "--heat-1", "--heat-2", "--heat-3"].map((name) => {
    const text = colour(name).slice(1);
    return [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16));
  });
  return Uint32Array.from({ length: 256 }, (_, n) => {
    const at = (n / 255) * 3, low = Math.min(2, Math.floor(at)), part = at - low;
    const [r, g, b] = [0, 1, 2].map((c) => Math.round(stops[low][c] * (1 - part) + stops[low + 1][c] * part));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}

// Floats of two bytes by their bits.
function halves() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    table[bits] = exponent === 31 ? (fraction ? NaN : sign * Infinity)
      : sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  }
  return table;
}

function decoded(buffer) {
  const bits = new Uint16Array(buffer, 0, buffer.byteLength >> 1), values = new Float32Array(bits.length);
  for (let n = 0; n < bits.length; n += 1) values[n] = HALVES[bits[n]];
  return values;
}
