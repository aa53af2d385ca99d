// Two jobs beside each other: their curves over the same steps, and where the time of each went.
import { bucketColour, bucketName, cost, duration, el, figure, share, show, whole } from "./dom.js";
import { ask, jobPath } from "./data.js";
import { CHARTS, plot } from "./curves.js";

export function compare(one, other) {
  let charts = [], draw_ = () => {};
  return {
    title: `${one} and ${other}`,
    async draw(main) {
      const told = await Promise.all([one, other].map((name) => ask(jobPath(name))));
      const last = Math.max(...told.map((job) => job.step || 0)), ask_ = (name) => ask(jobPath(name, `/figures/curve/0/${last}/800`));
      const curves = await Promise.all([one, other].map(ask_)), grid = el("div", { class: "charts" });
      const link = (name) => el("a", { href: `#/job/${encodeURIComponent(name)}` }, name);
      show(main, el("h1", {}, link(one), " and ", link(other)),
        el("section", {}, el("div", { class: "head" }, el("h2", {}, "Curves"), el("span", { class: "legend" },
          el("span", {}, el("span", { class: "swatch", style: { background: "var(--accent)" } }), one),
          el("span", {}, el("span", { class: "swatch", style: { background: "var(--mark-incident)" } }), other))), grid),
        el("section", { class: "tall" }, el("h2", {}, "Figures"), table(told)));
      draw_ = () => {
        charts.forEach((chart) => chart.destroy());
        const known = CHARTS.filter(([key]) => curves.some((curve) => (curve.mean[key] || []).some((value) => value !== null)));
        const boxes = known.map(([key, name, unit]) => [key, el("div", { class: "chart" }, el("h3", {}, name, el("span", {}, unit)))]);
        show(grid, boxes.map(([, box]) => box), !boxes.length && el("p", { class: "quiet" }, "Neither has a curve."));
        charts = boxes.map(([key, box]) => {
          const [x, a, b] = joined(curves, key), none = x.map(() => null);
          return plot(box, { x, low: none, high: none, mean: a, other: b, sync: "compare", high_px: 170 });
        });
      };
      draw_();
    },
    redraw: () => draw_(),
    leave: () => charts.forEach((chart) => chart.destroy()),
  };
}

// Points of both over the steps of both; where one has none at a step, its line goes on to the next.
function joined([a, b], key) {
  const steps = [...new Set([...a.step, ...b.step])].sort((x, y) => x - y);
  const on = (curve) => {
    const known = new Map(curve.step.map((step, n) => [step, (curve.mean[key] || [])[n]]));
    return steps.map((step) => (known.has(step) ? known.get(step) : undefined));
  };
  return [steps, on(a), on(b)];
}

function table(told) {
  const causes = (job) => {
    const sums = {};
    for (const incident of job.incidents) sums[incident.cause] = (sums[incident.cause] || 0) + 1;
    return Object.entries(sums).sort((x, y) => y[1] - x[1]).map(([cause, n]) => `${cause} ${n}`).join(", ") || "none";
  };
  const rows = [["state", (j) => (j.outcome || j.phase).replaceAll("_", " ")], ["ETTR", (j) => share(j.ettr)], ["step", (j) => whole(j.step)],
    ["loss", (j) => figure(j.loss)], ["wall time", (j) => duration(j.wall_s)], ["cost, about", (j) => cost(j.cost)], ["nodes", (j) => whole(j.nodes)],
    ["incidents", (j) => whole(j.incidents_count)], ["causes", causes], ["restarts", (j) => whole(j.restarts_count)]];
  const buckets = Object.keys(told[0].goodput.buckets).filter((name) => told.some((job) => job.goodput.buckets[name] > 0));
  const part = (job, name) => (job.goodput.buckets[name] || 0) / (job.goodput.wall_s || 1);
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), told.map((job) => el("th", {}, job.job)))),
    el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("td", { class: "quiet" }, name), told.map((job) => el("td", { class: "long" }, value(job))))),
      buckets.map((name) => el("tr", {}, el("td", { class: "quiet" }, bucketName(name)), told.map((job) => el("td", {},
        el("div", { class: "bar", style: { background: bucketColour(name), width: `${Math.max(0.2, part(job, name) * 100)}%` } }),
        `${share(part(job, name), 2)}, ${duration(job.goodput.buckets[name])}`)))))));
}
