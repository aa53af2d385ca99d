// What happened? All incidents, the newest first; each opens its story.
import { duration, el, moment, share, where } from "./dom.js";

const SHOWN = 12, ALL = 500;

export function incidents(name, found, at, more) {
  if (!found.length) return el("p", { class: "quiet" }, "No incidents.");
  const link = (one, text) => el("a", { href: `#/job/${encodeURIComponent(name)}/incident/${one.id}` }, text);
  const shown = more.all ? ALL : Math.max(SHOWN, at + 1);
  const rows = [...found].reverse().slice(0, shown).map((one, number) => el("tr", { class: number === at ? "current" : "" },
    el("td", { class: "n" }, link(one, String(one.id))), el("td", { class: "time" }, moment(one.started_at + one.ahead_s)), el("td", { class: "time" }, link(one, one.cause)),
    el("td", { class: "n" }, one.confidence === null ? "" : share(one.confidence, 0)), el("td", { class: "long" }, one.summary, " ", el("span", { class: "quiet" }, where(one))),
    el("td", { class: "n" }, one.ended_at === null ? "open" : duration(one.ended_at - one.started_at)),
    el("td", { class: "n" }, duration(one.lost_s)), el("td", { class: "n" }, String(one.steps_lost))));
  const heads = ["", "began", "cause", "confidence", "summary and place", "duration", "lost time", "lost steps"];
  return [causes(found), el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((text, n) =>
    el("th", { class: n === 0 || n === 3 || n > 4 ? "n" : "" }, text)))), el("tbody", {}, rows))),
  found.length > shown && el("p", { class: "quiet" }, `The newest ${shown} of ${found.length}. `,
    !more.all && el("button", { onclick: more.show }, `Show ${Math.min(ALL, found.length)}`))];
}

function causes(found) {
  const sums = new Map();
  for (const one of found) {
    const [count, lost] = sums.get(one.cause) || [0, 0];
    sums.set(one.cause, [count + 1, lost + one.lost_s]);
  }
  return el("div", { class: "legend" }, [...sums].sort((a, b) => b[1][1] - a[1][1]).map(([cause, [count, lost]]) =>
    el("span", {}, el("b", {}, cause), ` ${count === 1 ? "once" : `${count} times`}, ${duration(lost)}`)));
}
