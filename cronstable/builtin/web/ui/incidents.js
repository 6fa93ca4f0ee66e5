// The view of what fails now: one line that says it, the failing jobs, what they wrote last, and all of it to pass on.

import { jobPath } from "./api.js";
import { coloured, plain } from "./ansi.js";
import { ask } from "./dialogs.js";
import { button, h, put, text } from "./dom.js";
import { ago, clock, exit, now, time, took, when } from "./format.js";
import { chip } from "./table.js";

const MOST = 20; // failing jobs that are looked into, those that failed last first
const EACH = 10; // lines that are kept of one
const LINES = 60; // lines of all of them
const REMEMBERED = 20; // rows that a node without a state store has of a job: more may have been before them
const READ = 5_000; // ms that one's output gets to be read

export class IncidentsView {
  title = "Incidents";
  #model;
  #api;
  #acts;
  #key = null;
  #busy = false;
  #found = [];

  constructor(model, api, acts) {
    this.#model = model;
    this.#api = api;
    this.#acts = acts;
  }

  open() {
    this.#key = null;
    this.#found = [];
    this.verdict = h("p", { class: "big", role: "status" }, "Looking…");
    this.copy = button(null, "Copy as Markdown", () => this.#copy());
    this.copy.hidden = true;
    this.list = h("ol", { class: "decisions" });
    this.tail = h("div", {});
    this.refresh("jobs");
    return h("section", { "aria-label": "Incidents" }, h("div", { class: "bar" }, this.verdict, this.copy), this.list, this.tail);
  }

  /** Looks again when another job fails, or one failed once more. */
  refresh(what) {
    if (!this.verdict || !this.#model.version) return;
    if (what === "zone") this.#draw();
    const failing = this.#failing();
    const key = JSON.stringify(failing.map((job) => [job.name, job.last_run?.finished_at]));
    if (key === this.#key || this.#busy) return;
    this.#key = key;
    this.#busy = true;
    this.#look(failing).then(() => {
      this.#busy = false;
      if (this.verdict.isConnected) this.refresh("jobs");
    }, (error) => {
      // What is not known is not fine. Asked again when the page hears of anything the next time.
      this.#busy = false;
      this.#key = null;
      text(this.verdict, `${failing.length === 1 ? "1 job fails" : `${failing.length} jobs fail`}; more is not known: ${error.message}`);
    });
  }

  tick() {
    for (const element of this.list?.querySelectorAll("[data-ago]") ?? []) text(element, ago(element.dataset.ago));
  }

  #failing() {
    const last = (job) => Date.parse(job.last_run?.finished_at ?? 0);
    return [...this.#model.jobs.values()].filter((job) => job.failing).sort((a, b) => last(b) - last(a) || a.name.localeCompare(b.name, "en", { numeric: true }));
  }

  async #look(failing) {
    const found = [];
    for (const { name } of failing.slice(0, MOST)) {
      const { runs } = await this.#api.get(jobPath(name, "/runs")).catch((error) => {
        if (error.status === 404) return { runs: [] }; // it was taken out of the configuration meanwhile
        throw error;
      });
      const one = incident(name, runs);
      if (one) found.push(one);
    }
    this.#found = found;
    this.more = failing.length - Math.min(failing.length, MOST);
    this.#draw();
    for (const one of found) {
      if (one.last.run_id) one.tail = await this.#tail(one.name, one.last.run_id);
    }
    this.#draw();
  }

  async #tail(name, run) {
    const lines = [];
    const hear = ({ event, data }) => {
      if (event === "end") return "over";
      if (event !== "line") return null;
      lines.push({ ...JSON.parse(data), job: name });
      if (lines.length > EACH) lines.shift();
      return null;
    };
    await this.#api.follow(jobPath(name, `/logs?run=${encodeURIComponent(run)}`), { signal: AbortSignal.timeout(READ), hear }).catch(() => {});
    return lines;
  }

  #draw() {
    text(this.verdict, verdict(this.#found, this.more ?? 0));
    this.copy.hidden = !this.#found.length;
    put(this.list, this.#found.map((one) => this.#one(one)));
    const lines = merged(this.#found);
    put(this.tail, lines.length ? [h("h2", {}, "What they wrote last"), h("ol", { class: "lines still", tabindex: "0", "aria-label": "The last lines of the failing jobs" }, lines.map(row))] : null);
  }

  #one({ name, last, since, earlier, count }) {
    return h("li", { class: "bad" },
      h("p", {}, h("button", { type: "button", class: "name", on: { click: () => this.#acts.open(name, "history") } }, name), " ", chip("failed"), " ", h("b", {}, exit(last)), last.duration === null ? null : h("span", { class: "dim" }, ` after ${took(last.duration)}`)),
      h("p", {}, count === 1 && !earlier ? "Once, " : `${count}${earlier ? " or more" : ""} times in a row since `, time(since), count === 1 && !earlier ? null : [", the last ", h("span", { data: { ago: last.finished_at } }, ago(last.finished_at))], last.node ? ` on ${last.node}` : null),
      last.fail_reason && last.fail_reason !== last.outcome ? h("p", { class: "dim" }, last.fail_reason) : null,
      last.run_id ? h("p", {}, h("button", { type: "button", class: "name mono", title: "the log of this run", on: { click: () => this.#acts.show(name, "log", last.run_id) } }, last.run_id)) : null);
  }

  async #copy() {
    const words = markdown(this.#found, this.more ?? 0, this.#model.summary);
    try {
      await navigator.clipboard.writeText(words);
      text(this.copy.lastChild, "Copied");
      setTimeout(() => text(this.copy.lastChild, "Copy as Markdown"), 2_000);
    } catch {
      // A page without TLS may not write there, unless it is of this machine: then by hand.
      const box = h("textarea", { readonly: true, rows: 12, autofocus: true, "aria-label": "The incident as Markdown" }, words);
      box.addEventListener("focus", () => box.select());
      await ask({ title: "Copy this", body: box, yes: "Close", no: null });
    }
  }
}

/** What failed since when, of the rows of a job's history (newest first); null when its last verdict is no failure. */
export function incident(name, rows) {
  const verdicts = rows.filter((row) => row.outcome === "success" || row.outcome === "failure");
  const end = verdicts.findIndex((row) => row.outcome === "success");
  const streak = end < 0 ? verdicts : verdicts.slice(0, end);
  if (!streak.length) return null;
  const first = streak.at(-1);
  return { name, last: streak[0], since: first.started_at ?? first.finished_at, earlier: end < 0 && rows.length >= REMEMBERED, count: streak.length, tail: [] };
}

/** One line for all of them. `more`: failing jobs that were not looked into. */
export function verdict(found, more) {
  if (!found.length) return "Nothing fails.";
  const since = clockOrDay(Math.min(...found.map((one) => Date.parse(one.since))));
  const exits = new Set(found.map((one) => exit(one.last)));
  const who = found.length + more === 1 ? `${found[0].name} fails` : `${found.length + more} jobs fail`;
  const how = exits.size === 1 ? `${found.length > 1 ? "all with" : "with"} ${[...exits][0]}` : "for different reasons";
  return `${who}, ${more ? `the last ${found.length} of them ` : ""}${how}, since ${since}`;
}

/** The last lines of all, in the order in which they were written. */
export function merged(found) {
  const lines = found.flatMap((one) => one.tail);
  return lines.sort((a, b) => Date.parse(a.at ?? 0) - Date.parse(b.at ?? 0)).slice(-LINES);
}

/** All of it as text that other programs show well. */
export function markdown(found, more, summary) {
  const cell = (words) => String(words ?? "").replace(/\s+/g, " ").replace(/[\\|`*_<>[\]]/g, "\\$&");
  const lines = merged(found).map(({ at, job, line }) => `${at ? when(at, "UTC").slice(11, 19) : ""} ${job}: ${plain(String(line))}`);
  const fence = "`".repeat(Math.max(3, ...lines.join("\n").match(/`+/g)?.map((run) => run.length + 1) ?? []));
  const table = found.map(({ name, last, since, earlier, count }) => `| ${[name, exit(last), when(since, "UTC"), `${count}${earlier ? " or more" : ""}`, when(last.finished_at, "UTC"), last.run_id, last.node, last.fail_reason].map(cell).join(" | ")} |`);
  return [
    `**${cell(verdict(found, more))}**`, "",
    `Seen on ${cell(summary?.node_name ?? "a node")} at ${when(now(), "UTC")}.`, "",
    "| job | exit | since | failures | last | run | node | reason |", "|---|---|---|---|---|---|---|---|", ...table, "",
    ...(lines.length ? [fence, ...lines, fence, ""] : []),
  ].join("\n");
}

function clockOrDay(at) {
  const words = when(at);
  return words.slice(0, 10) === when(now()).slice(0, 10) ? words.slice(11) : words;
}

function row({ at, stream, line, job }) {
  return h("li", { class: `line s-${stream === "stderr" ? "stderr" : "stdout"}` },
    h("span", { class: "t", title: at ? when(at) : null }, at ? clock(at) : ""),
    h("span", { class: "who" }, job), stream === "stderr" ? h("span", { class: "unseen" }, "stderr: ") : null,
    h("span", { class: "what" }, coloured(String(line))));
}
