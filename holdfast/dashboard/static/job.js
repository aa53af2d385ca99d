// One job: how it stands, then the five pictures, each under the question that it answers.
import { cost, count, duration, el, figure, moment, renew, share, show, state, whole } from "./dom.js";
import { ask, jobPath, Refused } from "./data.js";
import { Ribbon } from "./ribbon.js";
import { Curves } from "./curves.js";
import { Heat } from "./heat.js";
import { incidents } from "./incidents.js";
import { places } from "./places.js";

const PICTURES = [
  ["time", "Where did the time go?"], ["learning", "Is it learning?"], ["slow", "Who is slow?"],
  ["happened", "What happened?"], ["where", "What is where?"],
];
const AGAIN_MS = 5000;

export function job(name) {
  let place = null, told = null, parts = [], timer = 0, current = () => true, at = 0;
  const more = { all: false, show: () => { more.all = true; list(); } };
  const list = () => renew(place.happened, incidents(name, told.incidents, at, more));

  async function refresh() {
    told = await ask(jobPath(name));
    if (!current()) return;
    renew(place.facts, facts(told));
    list();
    renew(place.where, places(name, told));
    await Promise.all(parts.map((part) => part.update(told).catch((error) => missing(part, error))));
  }

  function follow() {
    timer = setTimeout(async () => {
      if (!current()) return;
      if (!told.outcome && !document.hidden) await refresh().catch(() => {});
      follow();
    }, AGAIN_MS);
  }

  return {
    title: name,
    listens: name,
    async draw(main, isCurrent) {
      current = isCurrent;
      place = Object.fromEntries(["facts", ...PICTURES.map(([id]) => id)].map((id) => [id, el("div")]));
      const tabs = PICTURES.map(([id, question], n) => el("a", { href: `#/job/${encodeURIComponent(name)}`,
        onclick: (event) => { event.preventDefault(); go(n); } }, el("kbd", {}, n + 1), question));
      show(main, place.facts, el("nav", { class: "tabs", "aria-label": "Pictures" }, tabs),
        PICTURES.map(([id, question]) => el("section", { id, class: id === "happened" || id === "where" ? "tall" : "", "aria-label": question },
          el("div", { class: "head" }, el("h2", {}, question), el("span", { class: "gap" })), place[id])));
      show(place.facts, el("h1", {}, name), el("p", { class: "quiet" }, "Reading its journal …"));
      const heads = Object.fromEntries(PICTURES.map(([id]) => [id, main.querySelector(`#${id} > .head`)]));
      parts = [new Ribbon(name, place.time, heads.time), new Curves(name, place.learning, heads.learning),
        new Heat(name, place.slow, heads.slow)];
      await refresh();
      follow();
      return current();
    },
    hear(news) {
      if (news.error || !told) return;
      const changed = ["phase", "outcome", "attempt", "incidents_count"].some((key) => news[key] !== told[key]);
      const step = told.step;
      Object.assign(told, news);
      told.step = step; // of the last refresh, by which the pictures know whether there is more
      told.status.step = news.step;
      renew(place.facts, facts(told));
      if (changed) refresh().catch(() => {});
    },
    leave() {
      clearTimeout(timer);
      parts.forEach((part) => part.leave && part.leave());
    },
    redraw: () => parts.forEach((part) => part.redraw()),
    key(key) {
      if (key >= "1" && key <= "5") { go(Number(key) - 1); return true; }
      if (key === "r") parts.forEach((part) => part.reset && part.reset());
      if ((key === "j" || key === "k") && told && told.incidents.length) {
        at = Math.max(0, Math.min(told.incidents.length - 1, at + (key === "j" ? 1 : -1)));
        list();
        parts[0].choose(told.incidents[told.incidents.length - 1 - at].id);
        return true;
      }
      if (key === "Enter" && told && told.incidents.length && document.activeElement === document.body) {
        const id = told.incidents[told.incidents.length - 1 - at].id;
        location.hash = `#/job/${encodeURIComponent(name)}/incident/${id}`;
      }
      return false;
    },
  };
}

// A controller that is gone has no figures: that is said where they would be, and hinders no other.
function missing(part, error) {
  if (!part.says || !(error instanceof Refused)) throw error;
  part.says.textContent = `${error.error.what}: ${error.error.why}`;
}

function go(number) {
  const section = document.getElementById(PICTURES[number][0]);
  section.scrollIntoView();
  section.setAttribute("tabindex", "-1");
  section.focus({ preventScroll: true });
}

function facts(told) {
  const { status } = told;
  const fact = (name, value, small = "") => el("div", {}, el("dt", {}, name), el("dd", {}, value, small && el("small", {}, ` ${small}`)));
  const loss = status.loss_is || (told.loss === null ? "–" : told.loss.toFixed(4));
  const left = told.outcome ? "" : `attempt ${told.attempt}`;
  return [
    el("h1", {}, told.job),
    el("dl", { class: "facts" },
      fact("state", state(told), left),
      fact("ETTR", share(told.ettr), `last hour ${share(told.ettr_1h)}`),
      fact("step", whole(status.step), status.step_time_s ? `${duration(status.step_time_s)} each` : ""),
      fact("loss", loss),
      fact("nodes", whole(told.nodes), told.spares ? `+ ${count(told.spares, "spare")}` : ""),
      fact("incidents", whole(told.incidents_count), count(told.restarts_count, "restart")),
      fact("age", duration(told.wall_s), `since ${moment(told.started_at).slice(5, 16)}`),
      told.cost !== null && fact("cost, about", cost(told.cost), `${figure(told.cost_per_hour)} an hour`)),
    told.trouble && el("p", { class: "note alarm" }, `Incomplete: ${told.trouble}`),
    status.incomplete && el("p", { class: "note alarm" }, status.incomplete),
    told.controller === "away" && el("p", { class: "note alarm" }, `Its controller has died: holdfast resume ${told.job}`),
    status.waiting_for && el("p", { class: "note warn" }, `Waiting for ${status.waiting_for}`),
    status.outcome && status.why && el("p", { class: "note" }, status.why),
    status.notes.slice(-3).map((note) => el("p", { class: "note" }, `${moment(note.at)}: ${note.text}`)),
  ];
}
