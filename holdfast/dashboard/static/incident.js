// One incident: its story in order, what is known of it, what was decided and against what else.
import { duration, el, moment, share, show, where } from "./dom.js";
import { ask, jobPath } from "./data.js";
import { bill } from "./ribbon.js";

export function incident(name, number) {
  const job = `#/job/${encodeURIComponent(name)}`;
  return {
    title: `${name}, incident ${number}`,
    async draw(main) {
      const told = await ask(jobPath(name, `/incidents/${number}`)), one = told.incident;
      const sure = one.confidence === null ? "" : `, confidence ${share(one.confidence, 0)}`;
      const panel = (title, ...content) => content.flat(9).some(Boolean) && el("section", { class: "tall" }, el("h2", {}, title), ...content);
      show(main, el("p", {}, el("a", { href: job }, name), " / ", number > 1 && el("a", { href: `${job}/incident/${number - 1}` }, "previous"), " ",
        el("a", { href: `${job}/incident/${Number(number) + 1}` }, "next")),
      el("h1", {}, `Incident ${one.id}: ${one.summary}`),
      el("p", {}, el("b", {}, one.cause), `${sure}; ${where(one)}`, one.also_failed ? `; ${one.also_failed} more ranks failed after it` : ""),
      told.known_problem && el("div", { class: "note warn" }, el("b", {}, `${told.known_problem.slug} (${told.known_problem.blame})`), `: ${told.known_problem.cause}`, el("div", {}, told.known_problem.remedy)),
      told.advice && el("div", { class: "note" }, told.advice),
      el("div", { class: "columns" }, panel("Story", story(one)), panel("Cost", bill(name, one))),
      panel("Decisions and alternatives", one.choices.length > 0 && one.choices.map((choice) => weighed(one, choice))),
      panel("Evidence", one.health.map((text) => el("div", { class: "note" }, text)), one.network.map((text) => el("div", { class: "note" }, text)),
        evidence(one.evidence), one.missing.length > 0 && el("p", { class: "quiet" }, `no report from: ${one.missing.join(", ")}`)),
      one.traceback && panel(`Traceback of rank ${one.rank}`, el("pre", {}, one.traceback)),
      told.log_tail.length > 0 && panel(`Last lines of ${one.log}`, el("pre", {}, told.log_tail.join("\n")),
        one.rank !== null && el("a", { href: `${job}/rank/${one.rank}?attempt=${one.attempt}` }, `all that rank ${one.rank} printed`)),
      one.collected.map(node));
    },
    key(key) {
      const next = { j: Number(number) + 1, k: Number(number) - 1 }[key];
      if (next > 0) location.hash = `${job}/incident/${next}`;
      return Boolean(next);
    },
  };
}

function story(one) {
  const events = [[one.started_at, "it began"]];
  if (one.detected_at) events.push([one.detected_at, "noticed"]);
  for (const fact of one.facts) events.push([fact.at, fact.text]);
  for (const action of one.actions) events.push([action.at, `${words(action.action)}${action.reason && action.reason !== one.summary ? `: ${action.reason}` : ""}`]);
  for (const choice of one.choices) events.push([choice.at, `chosen for ${choice.about}: ${choice.step}`]);
  if (one.ended_at !== null) events.push([one.ended_at, one.overtaken ? "the next incident begins" : "training is productive again"]);
  events.sort((a, b) => a[0] - b[0]);
  return [el("p", { class: "quiet" }, `began ${moment(one.started_at + one.ahead_s)}${one.ended_at === null ? ", not over" : ""}`),
    el("ol", { class: "story" }, events.map(([at, text]) => el("li", {}, el("time", {}, `+ ${duration(Math.max(0, at - one.started_at))}`), text)))];
}

const words = (name) => name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();

function weighed(one, choice) {
  const line = (other) => el("tr", { class: other.step === choice.step ? "current" : "" }, el("td", {}, other.step === choice.step ? el("b", {}, other.step) : other.step),
    el("td", { class: "n" }, duration(other.cost_s)), el("td", {}, other.step === choice.step ? "taken" : other.sufficient ? "would do" : "not enough"), el("td", { class: "long" }, other.why));
  return [el("p", {}, `After ${duration(Math.max(0, choice.at - one.started_at))}, for ${choice.about}: `, el("b", {}, choice.step), `: ${choice.reason}`),
    choice.alternatives.length > 0 && el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "step"), el("th", { class: "n" }, "expected cost"), el("th", {}, ""), el("th", {}, "why"))),
      el("tbody", {}, choice.alternatives.map(line))))];
}

// Lines such as "ranks 0-3 (sleeping, still): innermost < outer < outermost" are places in stacks:
// drawn as a tree from the outermost frame, where those that stand together part.
export function evidence(lines) {
  const places = [], rest = [];
  for (const line of lines) {
    const found = /^(.*?\([^)]*\)|[^:]+): (.+ < .+)$/.exec(line);
    found ? places.push([found[1], found[2].split(" < ").reverse()]) : rest.push(line);
  }
  return [rest.map((line) => el("div", { class: "note" }, line)), places.length > 0 && el("div", { class: "tree" }, branch(places, 0))];
}

function branch(places, depth) {
  const ended = places.filter(([, frames]) => frames.length === depth), ways = new Map();
  for (const place of places) if (place[1].length > depth) ways.set(place[1][depth], [...(ways.get(place[1][depth]) || []), place]);
  return el("ul", {}, ended.map(([who]) => el("li", { class: "who" }, who)),
    [...ways].map(([frame, below]) => el("li", {}, frame, branch(below, depth + 1))));
}

function node(found) {
  return el("section", { class: "tall" }, el("h2", {}, found.node), el("pre", {}, [...found.host,
    ...found.ranks.flatMap((one) => [[`rank ${one.rank}`, one.ended, one.page].filter(Boolean).join(", "), ...one.stacks.map((line) => `  ${line}`), ...one.output.map((line) => `  ${line}`)]),
    ...(found.kernel_unread ? [`kernel log: not readable: ${found.kernel_unread}`] : found.kernel.map((line) => `kernel: ${line}`))].join("\n")));
}
