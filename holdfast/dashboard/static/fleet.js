// All jobs: how each stands, what share of its time it trains, what it costs. Two can be compared.
import { cost, duration, el, renew, share, show, state, whole } from "./dom.js";
import { ask } from "./data.js";

const COLUMNS = [
  ["", null], ["job", (r) => r.job], ["state", (r) => r.outcome || r.phase || ""], ["ETTR", (r) => r.ettr],
  ["last hour", (r) => r.ettr_1h], ["step", (r) => r.step], ["loss", (r) => r.loss], ["nodes", (r) => r.nodes],
  ["incidents", (r) => r.incidents_count], ["restarts", (r) => r.restarts_count], ["age", (r) => -r.started_at],
  ["cost", (r) => r.cost], ["waiting for", (r) => r.waiting_for || ""],
];
const NUMBERS = new Set(["ETTR", "last hour", "step", "loss", "nodes", "incidents", "restarts", "age", "cost"]);

export function fleet() {
  let rows = [], sorted = null, up = false, filter = "", at = -1, title = "", place = null;
  const chosen = new Set();

  function shown() {
    const found = rows.filter((row) => row.job.toLowerCase().includes(filter));
    if (sorted === null) return found;
    const value = COLUMNS[sorted][1];
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    return [...found].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return up ? order(x, y) : order(y, x);
    });
  }

  function line(row, number) {
    const name = el("a", { href: `#/job/${encodeURIComponent(row.job)}` }, row.job);
    const box = el("input", { type: "checkbox", "aria-label": `compare ${row.job}`, onchange: () => {
      chosen.has(row.job) ? chosen.delete(row.job) : chosen.add(row.job);
      draw();
    } });
    box.checked = chosen.has(row.job);
    if (row.error || row.phase === undefined) {
      const why = row.error ? `${row.error.what}: ${row.error.why}` : "";
      return el("tr", {}, el("td", {}), el("td", {}, name), el("td", {}, state(row)),
        el("td", { class: "long quiet", colspan: 10 }, why));
    }
    const numbers = [share(row.ettr), share(row.ettr_1h), whole(row.step),
      row.loss === null ? "–" : row.loss.toFixed(4), row.spares ? `${row.nodes} + ${row.spares}` : row.nodes,
      row.incidents_count, row.restarts_count, duration(row.wall_s), cost(row.cost)];
    return el("tr", { class: number === at ? "current" : "" }, el("td", { class: "noprint" }, box),
      el("td", {}, name), el("td", {}, state(row)), numbers.map((n) => el("td", { class: "n" }, String(n))),
      el("td", { class: "long quiet" }, row.controller === "away" ? "holdfast resume" : row.waiting_for || ""));
  }

  function draw() {
    const head = COLUMNS.map(([name, value], number) => el("th", { class: NUMBERS.has(name) ? "n" : "",
      "aria-sort": sorted === number ? (up ? "ascending" : "descending") : null },
    value && el("button", { onclick: () => { up = sorted === number ? !up : false; sorted = number; draw(); } }, name)));
    const two = [...chosen];
    renew(place.body, el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, head)),
      el("tbody", {}, shown().map(line)))),
    !rows.length && el("p", { class: "quiet" }, "No job has been run here yet: holdfast run train.py"));
    place.compare.disabled = two.length !== 2;
    place.compare.onclick = () => { location.hash = `#/compare/${two.map(encodeURIComponent).join("/")}`; };
    place.sum.textContent = summary(rows);
  }

  return {
    title: "All jobs",
    listens: null,
    async draw(main) {
      const found = await ask("fleet");
      rows = found.jobs;
      title = found.title;
      const search = el("input", { type: "search", placeholder: "filter", "aria-label": "filter jobs",
        oninput: (event) => { filter = event.target.value.toLowerCase(); draw(); } });
      place = { body: el("div"), compare: el("button", {}, "Compare two"), sum: el("span", { class: "quiet" }) };
      show(main, el("section", { class: "tall" }, el("div", { class: "head" }, el("h1", {}, title), place.sum,
        el("span", { class: "gap" }), search, place.compare), place.body));
      draw();
    },
    hear(news) {
      if (Array.isArray(news)) { rows = news; draw(); }
    },
    key(key) {
      const known = shown();
      if (key === "j" || key === "k") {
        at = Math.max(0, Math.min(known.length - 1, at + (key === "j" ? 1 : -1)));
        draw();
        return true;
      }
      if (key === "Enter" && known[at]) location.hash = `#/job/${encodeURIComponent(known[at].job)}`;
      return false;
    },
  };
}

function summary(rows) {
  const known = rows.filter((row) => row.phase !== undefined), live = known.filter((row) => !row.outcome && row.controller !== "away");
  const spent = known.map((row) => row.cost).filter((value) => value !== null);
  const wall = known.reduce((sum, row) => sum + row.wall_s * Math.max(1, row.nodes), 0);
  const good = known.reduce((sum, row) => sum + row.ettr * row.wall_s * Math.max(1, row.nodes), 0);
  return [`${live.length} live of ${rows.length}`, wall ? `ETTR ${share(good / wall)} by node` : "",
    spent.length ? `cost ${whole(spent.reduce((a, b) => a + b, 0))}` : ""].filter(Boolean).join(" · ");
}
