// What a rank has printed: the end of it, as text.
import { el, show } from "./dom.js";
import { ask, jobPath } from "./data.js";

const AGAIN_MS = 3000;

export function output(name, rank) {
  let timer = 0, attempt = new URLSearchParams(location.hash.split("?")[1] || "").get("attempt"), filter = "";
  return {
    title: `${name}, rank ${rank}`,
    async draw(main, current) {
      const text = el("pre", { tabindex: 0 }), pick = el("select", { "aria-label": "attempt", onchange: () => { attempt = pick.value; load(); } });
      const search = el("input", { type: "search", placeholder: "filter lines", "aria-label": "filter lines", oninput: () => { filter = search.value.toLowerCase(); write(); } });
      let lines = [];
      const write = () => {
        const kept = filter ? lines.filter((line) => line.toLowerCase().includes(filter)) : lines, atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
        text.textContent = kept.join("\n") || (filter ? "no line matches" : "no output, or its log was removed");
        if (atEnd) text.scrollTop = text.scrollHeight;
      };
      async function load() {
        clearTimeout(timer);
        const found = await ask(jobPath(name, `/log/${rank}${attempt === null ? "" : `?attempt=${attempt}`}`));
        if (!current()) return;
        lines = found.lines;
        show(pick, found.attempts.map((n) => el("option", { value: n, selected: n === found.attempt }, `attempt ${n}`)));
        pick.hidden = !found.attempts.length;
        write();
        timer = setTimeout(() => current() && load().catch(() => {}), AGAIN_MS);
      }
      const job = el("a", { href: `#/job/${encodeURIComponent(name)}` }, name);
      show(main, el("section", { class: "tall" }, el("div", { class: "head" }, el("h1", {}, job, ` / rank ${rank}`), el("span", { class: "gap" }), pick, search), text));
      await load();
    },
    leave: () => clearTimeout(timer),
  };
}
