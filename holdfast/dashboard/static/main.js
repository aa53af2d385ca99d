// What is shown follows from the address; what is under way when it changes is dropped.
import { el, show } from "./dom.js";
import { listen, stop, Refused } from "./data.js";
import { fleet } from "./fleet.js";
import { job } from "./job.js";
import { incident } from "./incident.js";
import { output } from "./output.js";
import { compare } from "./compare.js";

const main = document.getElementById("main"), shown = document.getElementById("shown");
const link = document.getElementById("link");
let page = null;

const PAGES = [
  [/^$/, () => fleet()],
  [/^job\/([^/]+)$/, (name) => job(name)],
  [/^job\/([^/]+)\/incident\/(\d+)$/, (name, number) => incident(name, number)],
  [/^job\/([^/]+)\/rank\/(\d+)$/, (name, rank) => output(name, rank)],
  [/^compare\/([^/]+)\/([^/]+)$/, (one, other) => compare(one, other)],
];

async function route() {
  const path = location.hash.replace(/^#\/?/, "").split("?")[0];
  const found = PAGES.map(([shape, make]) => [words(shape.exec(path)), make]).find(([match]) => match);
  if (page && page.leave) page.leave();
  stop();
  const made = found ? found[1](...found[0]) : fleet();
  page = made;
  shown.textContent = made.title;
  document.title = made.title ? `${made.title} · Holdfast` : "Holdfast";
  link.textContent = "";
  try {
    if ((await made.draw(main, () => page === made)) === false || page !== made) return;
    if (made.hear) listen(made.listens, (news) => page === made && made.hear(news), connected);
    main.dataset.drawn = path || "fleet";
  } catch (error) {
    if (page === made) show(main, failure(error));
  }
}

// The names in an address; null where it is none of ours.
function words(match) {
  try { return match && match.slice(1).map(decodeURIComponent); } catch { return null; }
}

function connected(yes) {
  link.className = yes ? "" : "lost";
  link.textContent = yes ? "live" : "not connected: the data shown are old";
}

export function failure(error) {
  if (!(error instanceof Refused)) {
    console.error(error);
    return el("p", { class: "note alarm" }, `The page failed: ${error.message}`);
  }
  const { slug, what, why, help } = error.error;
  return el("div", { class: "note alarm" }, el("b", {}, `error[${slug}]: ${what}`),
    why && el("div", {}, `why: ${why}`), help && el("div", {}, "help: ", el("span", { class: "mono" }, help)));
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("holdfast-theme", theme); } catch { /* not kept */ }
  if (page && page.redraw) page.redraw();
}

const KEYS = [
  ["1 – 5", "the five pictures of a job"], ["g", "all jobs"], ["j / k", "next, previous incident or row"],
  ["Enter", "open it"], ["r", "reset zoom"], ["t", "light or dark"], ["?", "this list"],
];

function help() {
  const dialog = document.getElementById("help");
  show(dialog, el("table", {}, el("tbody", {}, KEYS.map(([key, what]) =>
    el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, what))))),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  dialog.open ? dialog.close() : dialog.showModal();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
  if (event.key === "t") toggleTheme();
  else if (event.key === "?") help();
  else if (event.key === "g") location.hash = "#/";
  else if (page && page.key && page.key(event.key)) event.preventDefault();
});
let resized = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => page && page.redraw && page.redraw());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page && page.redraw && page.redraw());
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("keys").addEventListener("click", help);
addEventListener("hashchange", () => { scrollTo(0, 0); route(); });
route();
