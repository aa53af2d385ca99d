// Questions to the server and its news. Everything is relative to this page's address, so that it
// also works behind a proxy that gives it a folder of its own.

export class Refused extends Error {
  constructor(error) {
    super(error.what);
    this.error = error;
  }
}

export async function ask(path, how = "json") {
  const answer = await fetch(`api/${path}`, { headers: { Accept: "*/*" } });
  if (!answer.ok) {
    const text = await answer.text();
    let error = { slug: String(answer.status), what: text.slice(0, 300), why: "", help: "" };
    try { error = JSON.parse(text).error; } catch { /* plain text */ }
    throw new Refused(error);
  }
  return how === "json" ? answer.json() : answer.arrayBuffer();
}

export const jobPath = (name, rest = "") => `jobs/${encodeURIComponent(name)}${rest}`;

let source = null;

// News until something else is listened to. A browser reconnects by itself and says what it heard
// last; until it has, the page says that it is not up to date.
export function listen(name, hear, connected) {
  stop();
  source = new EventSource(name === null ? "api/stream" : `api/stream/${encodeURIComponent(name)}`);
  source.onmessage = (event) => hear(JSON.parse(event.data));
  source.onopen = () => connected(true);
  source.onerror = () => connected(false);
}

export function stop() {
  if (source) source.close();
  source = null;
}
