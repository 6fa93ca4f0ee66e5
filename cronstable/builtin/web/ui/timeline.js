// The view of the last 24 hours: a strip for each job, in which every piece shows the worst that happened in it.

import { h, put } from "./dom.js";
import { clock, now, span, when } from "./format.js";
import { OUTCOMES } from "./model.js";
import { Rows } from "./rows.js";

const EVERY = 15; // seconds between two looks
const HOURS = 24;
const PIECES = 96; // of 15 minutes
const SPAN = (HOURS * 3_600_000) / PIECES; // ms
const WORST = ["failed", "unknown", "cancelled", "ok", "skipped"];

export class TimelineView {
  title = "Timeline";
  #api;
  #model;
  #acts;
  #activity = null;
  #strips = new Map();
  #count = 0;

  constructor(model, api, acts) {
    this.#model = model;
    this.#api = api;
    this.#acts = acts;
  }

  open() {
    this.#activity = null;
    this.#count = 0;
    this.all = h("div", { class: "strip all", role: "img", "aria-label": "all jobs: not known yet" });
    this.scale = h("div", { class: "scale", "aria-hidden": "true" });
    this.note = h("p", { class: "dim", role: "status" }, "Looking…");
    this.body = h("div", { role: "rowgroup", class: "rows" });
    this.rows = new Rows(this.body, { height: () => 34, make: (item) => this.#make(item), update: (element, item) => this.#update(element, item) });
    this.#look();
    return h("section", { "aria-label": "Timeline of the last 24 hours" },
      h("div", { class: "row lane head" }, h("b", { class: "c-name" }, "All jobs"), h("div", {}, this.all, this.scale)),
      this.note,
      h("div", { role: "table", class: "table lanes", "aria-label": "Runs of the last 24 hours, by job" }, this.body));
  }

  refresh(what) {
    if (what === "zone" && this.#activity) this.#draw();
  }

  tick() {
    this.#count += 1;
    if (this.#count % EVERY === 0) this.#look();
  }

  async #look() {
    let activity;
    try {
      activity = await this.#api.get("activity");
    } catch (error) {
      if (this.note) put(this.note, error.message);
      return;
    }
    if (!this.body?.isConnected) return;
    this.#activity = activity;
    this.#draw();
  }

  #draw() {
    const first = Math.floor(now() / SPAN) * SPAN - (PIECES - 1) * SPAN;
    const total = Array.from({ length: PIECES }, () => []);
    this.#strips = new Map();
    for (const [name, runs] of Object.entries(this.#activity.jobs)) {
      const pieces = Array.from({ length: PIECES }, () => []);
      for (const run of runs) {
        const index = Math.floor((Date.parse(run.started_at ?? run.finished_at) - first) / SPAN);
        if (index >= 0 && index < PIECES) { pieces[index].push(run); total[index].push(run); }
      }
      if (pieces.some((piece) => piece.length)) this.#strips.set(name, { pieces, failed: pieces.flat().filter((run) => run.outcome === "failure").length });
    }
    strip(this.all, total, first, "all jobs");
    put(this.scale, Array.from({ length: 7 }, (_, index) => h("span", {}, index === 6 ? "now" : clock(first + (index * HOURS * 3_600_000) / 6).slice(0, 5))));
    const oldest = Math.min(...Object.values(this.#activity.jobs).flat().map((run) => Date.parse(run.started_at ?? run.finished_at)), now());
    put(this.note, this.#strips.size ? `${this.#strips.size} jobs ran on this node; what it remembers reaches back ${span((now() - oldest) / 1000)}. A piece is 15 minutes and shows the worst of them.` : "Nothing ran on this node in the last 24 hours.");
    this.first = first;
    const items = [...this.#strips].sort(([a, one], [b, two]) => two.failed - one.failed || a.localeCompare(b, "en", { numeric: true }));
    this.rows.items = items.map(([name, found]) => ({ key: name, found }));
  }

  #make(item) {
    return h("div", { role: "row", class: "row lane", data: { job: item.key } },
      h("div", { role: "rowheader", class: "c-name" }, h("button", { type: "button", class: "name", on: { click: () => this.#acts.open(item.key, "history") } }, item.key)),
      h("div", { role: "cell" }, h("div", { class: "strip", role: "img" })));
  }

  #update(element, item) {
    if (element.found === item.found) return;
    element.found = item.found;
    strip(element.querySelector(".strip"), item.found.pieces, this.first, item.key);
  }
}

function strip(element, pieces, first, name) {
  const runs = pieces.flat();
  const failed = runs.filter((run) => run.outcome === "failure").length;
  element.setAttribute("aria-label", `${name}: ${runs.length} in 24 hours, ${failed} failed`);
  put(element, pieces.map((piece, index) => {
    const kinds = piece.map((run) => OUTCOMES[run.outcome] ?? "unknown");
    const worst = WORST.find((kind) => kinds.includes(kind));
    const title = worst ? `${when(first + index * SPAN).slice(0, 16)}: ${WORST.filter((kind) => kinds.includes(kind)).map((kind) => `${kinds.filter((one) => one === kind).length} ${kind}`).join(", ")}` : null;
    return h("span", { class: worst ? `o-${worst}` : null, title });
  }));
}
