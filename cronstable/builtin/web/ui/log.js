// The output of a job's run, live: numbered lines with terminal colours, a search, and what to do with them.

import { jobPath } from "./api.js";
import { coloured, plain } from "./ansi.js";
import { button, h, put, text } from "./dom.js";
import { clock, when } from "./format.js";

const MOST = 5_000; // lines that are kept on the page
const STILL = 40; // px from the end within which the log counts as followed

export class Log {
  #api;
  #name;
  #only;
  #ending = null;
  #lines = []; // { number, stream, line, at, element }
  #waiting = [];
  #pattern = null;
  #hits = [];
  #hit = -1;
  #dropped = 0;
  #run = null;
  #says = "Connecting…"; // what stands above the lines while the connection does
  #over = false;
  #frame = 0;

  /** `only`: the id of the run to show; null for the one that lives or was the last, and then those that follow. */
  constructor(api, name, only) {
    this.#api = api;
    this.#name = name;
    this.#only = only;
  }

  /** The elements; the stream is open until `close`. */
  open() {
    this.find = h("input", { type: "search", placeholder: "Search (regex)", "aria-label": "Search the log with a regular expression", spellcheck: "false", on: { input: () => this.#search(), keydown: (event) => this.#step(event) } });
    this.found = h("span", { class: "dim found", role: "status" });
    this.following = h("input", { type: "checkbox", id: "follow", checked: true, on: { change: () => this.#toEnd() } });
    this.wrap = h("input", { type: "checkbox", id: "wrap", checked: true, on: { change: () => this.list.classList.toggle("nowrap", !this.wrap.checked) } });
    this.which = h("p", { class: "dim which", role: "status" }, this.#says);
    this.list = h("ol", { class: "lines", tabindex: "0", "aria-label": `Output of ${this.#name}` });
    this.list.addEventListener("scroll", () => {
      const end = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < STILL;
      if (!end && this.following.checked && !this.steering) this.following.checked = false;
      this.steering = false;
    }, { passive: true });
    this.begin();
    return h(
      "div",
      { class: "log" },
      h("div", { class: "bar" }, this.find, this.found, h("label", { for: "follow" }, this.following, "follow"), h("label", { for: "wrap" }, this.wrap, "wrap"), button("down", "Download", () => this.#download(), { quiet: true })),
      this.which,
      this.list,
    );
  }

  close() {
    this.#ending?.abort();
  }

  /** Times are shown in another zone from now on. */
  rezone() {
    for (const { at, element } of this.#lines) {
      if (!at) continue;
      element.querySelector(".n").title = when(at);
      text(element.querySelector(".t"), clock(at));
    }
  }

  /** A run of the job began: go on with it when the one before is over. */
  started() {
    if (this.#only === null && this.#over && this.following.checked) this.begin();
  }

  /** Read the run that lives, or the last one. */
  begin() {
    this.close();
    this.#ending = new AbortController();
    this.#over = false;
    const { signal } = this.#ending;
    const hear = (message) => this.#hear(message);
    const state = (ok) => text(this.which, ok ? this.#says : "Connection lost; coming back…");
    this.#api.follow(jobPath(this.#name, `/logs${this.#only === null ? "" : `?run=${encodeURIComponent(this.#only)}`}`), { signal, hear, state }).catch((error) => text(this.which, `No log: ${error.message}`));
  }

  #hear({ event, data }) {
    const fact = JSON.parse(data || "{}");
    if (event === "run") this.#newRun(fact.run_id, fact.started_at);
    else if (event === "line") this.#add(fact);
    else if (event === "gap") this.#add({ number: "", stream: "note", line: `lines ${fact.from} to ${fact.to} were overwritten before they could be read` });
    else if (event === "end") {
      this.#over = true;
      const none = fact.reason === "no-output" || !(this.#lines.length + this.#waiting.length);
      const words = fact.reason === "forgotten" ? "what followed is not kept any more" : none ? "no output was kept" : "the output is complete";
      text(this.which, `${this.#called()}: ${words}.`);
      return "over";
    }
    return null;
  }

  #newRun(run, startedAt) {
    if (run && this.#run && run !== this.#run && this.#lines.length + this.#waiting.length) this.#add({ number: "", stream: "note", line: `run ${run}${startedAt ? ` of ${when(startedAt)}` : ""}` });
    else this.#clear(); // another run, or the same one from its first line
    this.#run = run;
    this.#says = run ? `${this.#called()}: ${this.#only === null ? "live" : "reading"}` : "No run yet.";
    text(this.which, this.#says);
  }

  #called() {
    return this.#run ? `Run ${this.#run}` : "No run yet";
  }

  #clear() {
    this.#lines = [];
    this.#waiting = [];
    this.#dropped = 0;
    put(this.list);
    this.#mark();
  }

  #add(line) {
    this.#waiting.push(line);
    if (this.#waiting.length > MOST) this.#waiting.shift();
    if (!this.#frame) this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.#flush(); });
  }

  #flush() {
    const fresh = this.#waiting.splice(0).map((line) => ({ ...line, element: this.#row(line) }));
    this.#lines.push(...fresh);
    const extra = this.#lines.length - MOST;
    if (extra > 0) {
      for (const gone of this.#lines.splice(0, extra)) gone.element.remove();
      this.#dropped += extra;
    }
    this.list.append(...fresh.map((line) => line.element));
    if (this.#pattern) {
      this.#hits.push(...fresh.filter((line) => this.#test(line)));
      this.#mark();
    }
    if (this.following.checked) this.#toEnd();
  }

  #row({ number, stream, line, at }) {
    return h(
      "li",
      { class: `line s-${stream === "stderr" || stream === "note" ? stream : "stdout"}` },
      h("span", { class: "n", title: at ? when(at) : null }, String(number ?? "")),
      h("span", { class: "t" }, at ? clock(at) : ""),
      stream === "stderr" ? h("span", { class: "unseen" }, "stderr: ") : null,
      h("span", { class: "what" }, coloured(String(line))),
    );
  }

  #toEnd() {
    if (!this.following.checked) return;
    this.steering = true;
    this.list.scrollTop = this.list.scrollHeight;
  }

  // -- search ---------------------------------------------------------------------------------------------------------

  #search() {
    const words = this.find.value;
    try {
      this.#pattern = words ? new RegExp(words, "i") : null;
      this.find.setAttribute("aria-invalid", "false");
    } catch {
      this.#pattern = null; // not finished yet, or none: nothing is marked
      this.find.setAttribute("aria-invalid", "true");
    }
    this.#hits = [];
    this.#hit = -1;
    for (const line of this.#lines) if (this.#test(line)) this.#hits.push(line);
    this.#mark();
    if (this.#hits.length) this.#show(this.#hits.length - 1);
  }

  #test(line) {
    const hit = this.#pattern !== null && this.#pattern.test(plain(String(line.line)));
    line.element.classList.toggle("hit", hit);
    line.element.classList.remove("now");
    return hit;
  }

  #mark() {
    const count = this.#hits.length;
    const note = this.#dropped ? `${this.#dropped} earlier lines not shown` : "";
    text(this.found, this.#pattern ? `${this.#hit >= 0 ? `${this.#hit + 1} of ` : ""}${count} ${count === 1 ? "line" : "lines"}` : note);
  }

  #step(event) {
    if (event.key !== "Enter" || !this.#hits.length) return;
    event.preventDefault();
    const by = event.shiftKey ? -1 : 1;
    this.#show((this.#hit + by + this.#hits.length) % this.#hits.length);
  }

  #show(index) {
    this.#hits[this.#hit]?.element.classList.remove("now");
    this.#hit = index;
    const { element } = this.#hits[index];
    element.classList.add("now");
    this.following.checked = false;
    element.scrollIntoView({ block: "center" });
    this.#mark();
  }

  #download() {
    const words = this.#lines.map(({ at, stream, line }) => `${at ?? ""}\t${stream}\t${plain(String(line))}`).join("\n");
    const link = h("a", { href: URL.createObjectURL(new Blob([`${words}\n`], { type: "text/plain" })), download: `${this.#name.replace(/[^\w.-]+/g, "_")}-${this.#run ?? "log"}.txt` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
}
