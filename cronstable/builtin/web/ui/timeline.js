// The view of the last 24 hours: a strip for each job, in which every piece shows the worst that happened in it.

import { h, put } from "./dom.js";
import { clock, now, when } from "./format.js";
import { Rows } from "./rows.js";

const EVERY = 15; // seconds between two looks
const HOURS = 24;
const PIECES = 96; // of 15 minutes
const SPAN = (HOURS * 3_600_000) / PIECES; // ms
const COUNTED = ["ok", "failed", "cancelled", "unknown", "skipped"]; // the order of the counts of a quarter
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
      activity = await this.#api.get("activity?limit=1");
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
    const total = { pieces: Array.from({ length: PIECES }, nothing), since: 0 };
    this.#strips = new Map();
    for (const [name, day] of Object.entries(this.#activity.days)) {
      const pieces = Array.from({ length: PIECES }, nothing);
      for (const [at, ...counts] of day.quarters) {
        const index = Math.floor((at * 1000 - first) / SPAN);
        if (!(index >= 0 && index < PIECES)) continue;
        COUNTED.forEach((kind, place) => {
          pieces[index][kind] += counts[place];
          total.pieces[index][kind] += counts[place];
        });
      }
      const since = Date.parse(day.since);
      total.since = Math.max(total.since, since); // of all of them: since when none is missing
      if (pieces.some(any)) this.#strips.set(name, { pieces, since, failed: sum(pieces, "failed") });
    }
    const { size } = this.#strips;
    strip(this.all, size ? total : { ...total, since: first }, first, "all jobs");
    put(this.scale, Array.from({ length: 7 }, (_, index) => h("span", {}, index === 6 ? "now" : clock(first + (index * HOURS * 3_600_000) / 6).slice(0, 5))));
    const from = total.since > first ? ` Hatched is what it does not know: all of it is complete since ${when(total.since).slice(0, 16)}.` : "";
    put(this.note, size ? `${size} ${size === 1 ? "job" : "jobs"} ran or were skipped on this node. A piece is 15 minutes and shows the worst that ended in it.${from}` : "Nothing is known to have run on this node in the last 24 hours.");
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
    strip(element.querySelector(".strip"), item.found, this.first, item.key);
  }
}

/** A piece without anything in it. */
function nothing() {
  return Object.fromEntries(COUNTED.map((kind) => [kind, 0]));
}

function any(piece) {
  return COUNTED.some((kind) => piece[kind]);
}

function sum(pieces, kind) {
  return pieces.reduce((count, piece) => count + piece[kind], 0);
}

/** Draw pieces; those before `since` are hatched where nothing is known of them. */
function strip(element, { pieces, since }, first, name) {
  const runs = COUNTED.filter((kind) => kind !== "skipped").reduce((count, kind) => count + sum(pieces, kind), 0);
  const skipped = sum(pieces, "skipped");
  const span = since > first ? `since ${when(since).slice(0, 16)}` : "in 24 hours";
  element.setAttribute("aria-label", `${name}: ${runs} ${span}, ${sum(pieces, "failed")} failed${skipped ? `, ${skipped} skipped` : ""}`);
  put(element, pieces.map((piece, index) => {
    const at = first + index * SPAN;
    const worst = WORST.find((kind) => piece[kind]);
    if (worst) return h("span", { class: `o-${worst}`, title: `${when(at).slice(0, 16)}: ${WORST.filter((kind) => piece[kind]).map((kind) => `${piece[kind]} ${kind}`).join(", ")}` });
    return at + SPAN <= since ? h("span", { class: "not-known", title: `not known: this node remembers since ${when(since).slice(0, 16)}` }) : h("span", {});
  }));
}
