// What is where? Nodes with their ranks, spares, and where the state of training is safe.
import { bytes, duration, el, share, whole } from "./dom.js";
import { coordinates } from "./heat.js";

const CARDS = 96;

export function places(name, told) {
  const { status } = told, ours = status.nodes.filter((node) => node.rank !== null).sort((a, b) => a.rank - b.rank);
  const others = status.nodes.filter((node) => node.rank === null);
  return [tiers(status), el("h3", {}, "Layout"), el("p", { class: "quiet" }, layout(told)),
    el("h3", {}, `Nodes that train: ${ours.length}`),
    el("div", { class: "nodes" }, ours.slice(0, CARDS).map((node) => card(name, told, node))),
    ours.length > CARDS && rest(name, told, ours.slice(CARDS)),
    others.length > 0 && [el("h3", {}, `Spares and others: ${others.length}`), el("div", { class: "nodes" }, others.slice(0, CARDS).map((node) => card(name, told, node)))],
    !status.nodes.length && el("p", { class: "quiet" }, "None: the job has ended, or waits for its first node.")];
}

function layout(told) {
  if (!told.dimensions) return "not known";
  const sizes = Object.entries(told.dimensions).filter(([, size]) => size > 1).map(([key, size]) => `${key} ${size}`);
  const ranks = Object.values(told.dimensions).reduce((a, b) => a * b, 1);
  return `${whole(ranks)} ranks, ${told.workers_per_node} on a node: ${sizes.join(" × ") || "a single rank"}; tp is innermost, so its ranks are neighbours`;
}

function card(name, told, node) {
  const each = told.workers_per_node, first = node.rank === null ? null : node.rank * each;
  const ranks = first === null ? [] : Array.from({ length: each }, (_, n) => first + n);
  return el("div", { class: "node" }, el("b", {}, node.name), " ", el("span", { class: "quiet" }, node.rank === null ? node.state : `node rank ${node.rank}`),
    node.conditions.map((one) => el("div", { class: one.severity === "warn" ? "warn" : "alarm", title: one.advice }, one.detail)),
    ranks.length > 0 && el("div", { class: "ranks" }, ranks.map((rank) => rankLink(name, told, rank))));
}

function rankLink(name, told, rank) {
  const at = told.dimensions ? Object.entries(coordinates(rank, told.dimensions)).filter(([key]) => told.dimensions[key] > 1) : [];
  return el("a", { href: `#/job/${encodeURIComponent(name)}/rank/${rank}`, title: `rank ${rank}${at.map(([key, n]) => `, ${key} ${n}`).join("")}: its output` }, String(rank));
}

function rest(name, told, nodes) {
  const each = told.workers_per_node;
  return el("details", {}, el("summary", {}, `${nodes.length} more`), el("div", { class: "legend" }, nodes.map((node) =>
    el("span", {}, node.name, " ", el("a", { href: `#/job/${encodeURIComponent(name)}/rank/${node.rank * each}` }, `ranks ${node.rank * each}–${(node.rank + 1) * each - 1}`)))));
}

function tiers(status) {
  const every = status.snapshot_every ? `every ${status.snapshot_every === 1 ? "step" : `${status.snapshot_every} steps`}` : "";
  const behind = status.snapshot_step === null || status.step === null ? "" : `${whole(Math.max(0, status.step - status.snapshot_step))} steps behind`;
  const copies = status.copies ? `any ${status.copies.survives === 1 ? "node" : `${status.copies.survives} nodes`} may be lost without a checkpoint`
    + (status.copies.next_loss === null ? "" : `, one more with probability ${share(status.copies.next_loss)}`) : "";
  const memory = status.snapshot_step === null ? [] : [el("tr", {}, el("td", {}, "memory"), el("td", { class: "n" }, whole(status.snapshot_step)),
    el("td", { class: "n", title: behind }, status.snapshot_age_s === null ? "–" : duration(status.snapshot_age_s)), el("td", { class: "n" }, every),
    el("td", { class: "n" }, status.snapshot_bytes === null ? "–" : bytes(status.snapshot_bytes)), el("td", { class: "n" }, duration(status.snapshot_took_s)), el("td", { class: "long quiet" }, copies))];
  const rows = status.checkpoints.map((tier) => el("tr", {}, el("td", {}, tier.tier), el("td", { class: "n" }, whole(tier.step)),
    el("td", { class: "n" }, tier.age_s === null ? "–" : duration(tier.age_s)), el("td", { class: "n" }, tier.every_s === null ? "" : duration(tier.every_s)),
    el("td", { class: "n" }, bytes(tier.bytes)), el("td", { class: "n" }, duration(tier.seconds)),
    el("td", { class: `long ${tier.failures ? "alarm" : "quiet"}` }, tier.failures ? `the last ${tier.failures} failed: ${tier.why}` : `${tier.commits_count} committed`)));
  const heads = ["tier", "step", "age", "every", "size", "took", ""];
  return [el("h3", {}, "Where the state is safe"), memory.length + rows.length === 0 ? el("p", { class: "quiet" }, "No snapshot and no checkpoint is known.")
    : el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((text, n) => el("th", { class: n && n < 6 ? "n" : "" }, text)))), el("tbody", {}, memory, rows)))];
}
