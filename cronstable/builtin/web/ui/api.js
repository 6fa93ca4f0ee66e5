// The HTTP API of the node that served this page: requests with the token, entity tags, and event streams.

const PATIENCE = 10_000; // ms that an answer may take
const SILENCE = 45_000; // ms that a stream may be silent: the node sends a comment every 15 s
const AGAIN = [250, 500, 1000, 2000, 5000]; // ms before a stream is opened again
const KEPT = "cronstable-token";

/** An answer other than success. `status` is 0 when there was none. */
export class Refusal extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export class Api extends EventTarget {
  #base = new URL(".", document.baseURI);
  #kept = new Map();

  /** The token lives as long as this tab, and is sent to this node only. */
  get token() {
    return sessionStorage.getItem(KEPT);
  }

  set token(token) {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
    this.#kept.clear();
  }

  /** The JSON at `path`. Of what did not change the very object that was given before. */
  async get(path) {
    const kept = this.#kept.get(path);
    const answer = await this.#ask("GET", path, kept ? { "If-None-Match": kept.etag } : {});
    if (answer.status === 304) return kept.body;
    const body = await whole(answer);
    const etag = answer.headers.get("ETag");
    if (etag) this.#kept.set(path, { etag, body });
    return body;
  }

  /** The text at `path`. */
  async text(path) {
    const answer = await this.#ask("GET", path, { Accept: "*/*" });
    return answer.text().catch((error) => { throw lost(error); });
  }

  /** Do something; `body` is sent as JSON. */
  async post(path, body = null) {
    const headers = body === null ? {} : { "Content-Type": "application/json" };
    const answer = await this.#ask("POST", path, headers, body === null ? null : JSON.stringify(body));
    return whole(answer);
  }

  /** Follow a stream until `signal` ends it, across lost connections; `hear` gets {event, data, id}.
   *
   * Ends by itself when `hear` returns "over", or when the node refuses (then with a Refusal). `state` is told
   * whether the connection stands. */
  async follow(path, { signal, hear, state = () => {} }) {
    let last = null;
    for (let tries = 0; !signal.aborted; tries += 1) {
      const watch = new AbortController();
      const stop = () => watch.abort();
      signal.addEventListener("abort", stop, { once: true });
      try {
        const headers = { Accept: "text/event-stream", ...(last === null ? {} : { "Last-Event-ID": last }) };
        const answer = await this.#ask("GET", path, headers, null, watch.signal);
        state(true);
        for await (const message of messages(answer.body, () => watch.abort())) {
          tries = 0;
          if (message.id !== null) last = message.id;
          if (message.event !== "ping" && hear(message) === "over") return;
        }
      } catch (error) {
        if (error instanceof Refusal && error.status >= 400 && error.status < 500) throw error;
      } finally {
        signal.removeEventListener("abort", stop);
        watch.abort();
      }
      if (signal.aborted) return;
      state(false);
      await pause(AGAIN[Math.min(tries, AGAIN.length - 1)], signal);
    }
  }

  async #ask(method, path, headers, body = null, signal = AbortSignal.timeout(PATIENCE)) {
    const token = this.token;
    const all = { Accept: "application/json", ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let answer;
    try {
      answer = await fetch(new URL(path, this.#base), { method, headers: all, body, signal, cache: "no-store", credentials: "same-origin" });
    } catch (error) {
      throw lost(error);
    }
    if (answer.ok || answer.status === 304) return answer;
    const said = await answer.json().catch(() => ({}));
    if (answer.status === 401) this.dispatchEvent(new Event("unauthorized"));
    throw new Refusal(answer.status, typeof said.error === "string" ? said.error : `status ${answer.status}`);
  }
}

/** The JSON of an answer, whose end may be lost like its beginning. */
async function whole(answer) {
  try {
    return await answer.json();
  } catch (error) {
    throw lost(error);
  }
}

function lost(error) {
  return new Refusal(0, error.name === "TimeoutError" ? "the node does not answer" : "the node cannot be reached");
}

/** The messages of a text/event-stream (HTML standard, 9.2.6), and `ping` for a comment. */
async function* messages(body, silent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let message = fresh();
  try {
    for (;;) {
      const timer = setTimeout(silent, SILENCE);
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (message.event !== "message" || message.data.length) yield { ...message, data: message.data.join("\n") };
          message = fresh(message.id);
        } else if (line.startsWith(":")) {
          yield { event: "ping", data: "", id: null };
        } else {
          take(message, line);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function fresh(id = null) {
  return { event: "message", data: [], id };
}

function take(message, line) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (name === "data") message.data.push(value);
  else if (name === "event") message.event = value;
  else if (name === "id") message.id = value;
}

function pause(delay, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, delay);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** The path of a job's resource: names may hold anything. */
export function jobPath(name, rest = "") {
  return `jobs/${encodeURIComponent(name)}${rest}`;
}
