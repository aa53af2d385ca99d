// Elements and words. Text is only ever set as text: whatever a log line or a job's name holds, a
// browser never reads it as markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) made.style.setProperty(key, v);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function show(place, ...children) {
  place.replaceChildren(...children.flat(9).filter(Boolean));
}

// The same, while somebody may be at work there: what is as it was stays, with its focus, and a
// list that was unfolded stays unfolded. Links and fields are the same where they lead to the same.
export function renew(place, ...children) {
  const holder = document.createElement("div");
  show(holder, ...children);
  merge(place, holder);
}

function merge(old, fresh) {
  const known = [...old.childNodes], next = [...fresh.childNodes];
  next.forEach((node, n) => {
    const before = known[n];
    if (!before) old.append(node);
    else if (!alike(before, node)) before.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) { if (before.data !== node.data) before.data = node.data; }
    else { dress(before, node); merge(before, node); }
  });
  known.slice(next.length).forEach((node) => node.remove());
}

function alike(a, b) {
  const same = (name) => a.getAttribute(name) === b.getAttribute(name);
  return a.nodeName === b.nodeName && (a.nodeType !== Node.ELEMENT_NODE || (same("href") && same("aria-label")));
}

// Styles by their own object: as an attribute the page's policy would refuse them.
function dress(old, fresh) {
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  for (const { name, value } of fresh.attributes) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  if ("checked" in fresh) old.checked = fresh.checked;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function share(part, digits = 1) {
  return part === null || part === undefined ? "–" : `${(part * 100).toFixed(digits)} %`;
}

export function count(number, noun, nouns = `${noun}s`) {
  return `${whole(number)} ${number === 1 ? noun : nouns}`;
}

export function whole(number) {
  return number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en-US");
}

export function figure(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return whole(value);
  return size && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export function bytes(size) {
  for (const [unit, least] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]])
    if (size >= least) return `${(size / least).toPrecision(3)} ${unit}`;
  return `${size} B`;
}

export function moment(at, withDay = true) {
  const when = new Date(at * 1000), two = (n) => String(n).padStart(2, "0");
  const time = `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  return withDay ? `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${time}` : time;
}

export function cost(value) {
  return value === null || value === undefined ? "–" : whole(value);
}

export function state(row) {
  const away = row.controller === "away" && !row.outcome;
  const word = row.error ? "unreadable" : away ? "no controller" : row.outcome || row.phase || "reading";
  return el("span", { class: `state ${word.replace(/[_ ]/g, "-")}` }, word.replaceAll("_", " "));
}

export function where(incident) {
  const rank = incident.rank === null ? "" : `rank ${incident.rank} on `;
  const step = incident.step === null ? "" : `, step ${whole(incident.step)}`;
  const nodes = [...new Set([incident.node, ...incident.nodes])].join(", ");
  return `${rank}${nodes}, attempt ${incident.attempt}${step}`;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The buckets of the ledger: what trains is green, what is redone amber, what is broken red, the
// steps of a restart blue, restoring violet.
const BUCKETS = {
  productive: "#3f8f6b", replay: "#cf9a34", detect: "#b8493f", hang: "#8e2f4d", teardown: "#a9755a",
  schedule: "#7f86ab", start: "#6c8ebf", rendezvous: "#55a0b6", restore_memory: "#8c6bb1",
  restore_peer: "#a087c8", restore_disk: "#7a58a3", restore_remote: "#63468a", first_step: "#4879a0",
  data_wait: "#b5a642", checkpoint_stall: "#8f9a45", evaluation: "#5f9ea0", degraded: "#c2703d",
  paused: "#9a9a9a", other: "#8d9599",
};
export const bucketColour = (name) => BUCKETS[name] || "#8d9599";
export const bucketName = (name) => name.replaceAll("_", " ");
export const swatch = (name) => el("span", { class: "swatch", style: { background: bucketColour(name) } });

// A canvas in device pixels; `draw(context, width, height)` in CSS pixels.
export function sharp(canvas, height, draw) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth, scale = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  draw(context, width, height);
}

export function tipAt(tip, picture, x, y, ...content) {
  show(tip, ...content);
  tip.hidden = false;
  const room = picture.clientWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(0, Math.min(x + 12, room))}px`;
  tip.style.top = `${y}px`;
}

// Times on an axis: round steps, and the day where it changes.
export function timeTicks(begin, end, most) {
  const steps = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000];
  const step = steps.find((s) => (end - begin) / s <= most) || 2592000;
  const offset = new Date(begin * 1000).getTimezoneOffset() * 60, ticks = [];
  for (let at = Math.ceil((begin - offset) / step) * step + offset; at <= end; at += step) {
    const when = moment(at);
    ticks.push([at, step >= 86400 || when.endsWith("00:00:00") ? when.slice(5, 10) : when.slice(11, step < 60 ? 19 : 16)]);
  }
  return ticks;
}
