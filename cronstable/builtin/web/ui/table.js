// The view of all jobs: pills that count and filter, a search, and the table.

import { button, h, icon, put, text } from "./dom.js";
import { ago, exit, now, span, time, took, when } from "./format.js";
import { STATES } from "./model.js";
import { Rows } from "./rows.js";
import { sparkline } from "./spark.js";

const FILTERS = [
  ["all", "all", () => true],
  ["failing", "failing", (job) => job.failing || job.late],
  ["running", "running", (job) => job.running],
  ["ok", "ok", (job) => job.state === "ok"],
  ["paused", "paused", (job) => Boolean(job.paused)],
  ["off", "off", (job) => !job.enabled || job.never_fires],
];
const URGENCY = ["failed", "retrying", "running", "waiting", "unknown", "cancelled", "paused", "skipped", "pending", "ok", "off"];
const last = (job) => (job.last_run ? Date.parse(job.last_run.finished_at) : 0);
const COLUMNS = [
  ["state", "State", (a, b) => URGENCY.indexOf(a.state) - URGENCY.indexOf(b.state)],
  ["name", "Job", (a, b) => a.name.localeCompare(b.name, "en", { numeric: true })],
  ["schedule", "Schedule", (a, b) => a.schedule_words.localeCompare(b.schedule_words)],
  ["last", "Last run", (a, b) => last(b) - last(a)],
  ["next", "Next", (a, b) => (a.due ?? Infinity) - (b.due ?? Infinity) || 0],
  ["recent", "Recent runs", null],
  ["acts", "", null],
];
const WIDE = window.matchMedia("(min-width: 62rem)");

export class JobsView {
  title = "Jobs";
  #model;
  #acts;
  #filter = "all";
  #words = "";
  #sort = { by: "name", down: false };
  #rows = null;
  #order = [];
  #pointed = false;

  /** `acts`: open, run, cancel, pause, resume, each with a job's name; opened: which one is open. */
  constructor(model, acts) {
    this.#model = model;
    this.#acts = acts;
  }

  /** The elements of the view. */
  open() {
    this.pills = h("div", { class: "pills", role: "group", "aria-label": "Filter by state" });
    this.search = h("input", {
      type: "search", id: "search", placeholder: "Search jobs", "aria-label": "Search by name, command or schedule", autocomplete: "off", spellcheck: "false",
      value: this.#words, on: { input: () => { this.#words = this.search.value; this.#anew(); }, keydown: (event) => this.#leave(event) },
    });
    this.count = h("p", { class: "unseen", role: "status" });
    this.head = h("div", { role: "row", class: "row head" });
    this.body = h("div", { role: "rowgroup", class: "rows" });
    this.empty = h("div", { class: "empty", hidden: true });
    this.table = h(
      "div",
      { role: "table", class: "table jobs", "aria-label": "Jobs", "aria-colcount": COLUMNS.length },
      h("div", { role: "rowgroup", class: "thead" }, this.head),
      this.body,
    );
    this.body.addEventListener("pointerenter", () => { this.#pointed = true; });
    this.body.addEventListener("pointerleave", () => { this.#pointed = false; this.refresh("jobs"); });
    this.#rows = new Rows(this.body, {
      height: () => (WIDE.matches ? 52 : 118),
      make: (item) => this.#make(item.key),
      update: (element, item, index) => this.#update(element, item.key, index),
    });
    this.#heads();
    const view = h("section", { "aria-label": "Jobs" }, h("div", { class: "bar" }, this.pills, h("label", { class: "search" }, icon("search"), this.search)), this.count, this.table, this.empty);
    requestAnimationFrame(() => this.#arrange());
    return view;
  }

  /** Take in what changed; the order stays while a pointer or the keyboard is in the table. */
  refresh(what) {
    if (!this.body?.isConnected) return;
    if (what === "set" || (what === "jobs" && !this.#busy())) this.#arrange();
    else if (what === "jobs" || what === "zone" || what === "who") { this.#count(); this.#rows.draw(); }
  }

  /** Once a second: the countdowns of the rows in sight; what came due is asked for. */
  tick() {
    if (!this.body?.isConnected) return;
    for (const element of this.body.children) {
      const job = this.#model.jobs.get(element.dataset.job);
      if (!job) continue;
      this.#times(element, job);
      if (job.due !== null && job.due < now() - 1500) this.#model.want(job.name);
    }
  }

  /** Keys of this view; true when one was meant for it. */
  key(event) {
    const at = this.#order.findIndex((item) => item.key === document.activeElement?.closest?.("[data-job]")?.dataset.job);
    const name = at < 0 ? null : this.#order[at].key;
    const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (event.key === "/") this.search.focus();
    else if (event.key in steps && (name !== null || event.key === "j" || event.key === "ArrowDown")) {
      this.#rows.focus(Math.min(this.#order.length - 1, Math.max(0, name === null ? 0 : at + steps[event.key])), ".name");
    } else if (name !== null && event.key === "r") this.#acts.run(name);
    else if (name !== null && event.key === "c") this.#acts.cancel(name);
    else if (name !== null && event.key === "p") this.#pause(name);
    else if (/^[1-6]$/.test(event.key)) this.#choose(FILTERS[Number(event.key) - 1][0]);
    else return false;
    return true;
  }

  #busy() {
    return this.#pointed || this.body.contains(document.activeElement);
  }

  #leave(event) {
    if (event.key === "Escape" && this.search.value) {
      this.search.value = this.#words = "";
      this.#arrange();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      this.#rows.focus(0, ".name");
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #choose(filter) {
    this.#filter = filter;
    this.#anew();
  }

  /** Another choice or order is looked at from its beginning. */
  #anew() {
    window.scrollTo({ top: 0 });
    this.#arrange();
  }

  #sorted(by) {
    this.#sort = { by, down: this.#sort.by === by && !this.#sort.down };
    this.#anew();
    this.#heads();
    this.head.querySelector(`[data-by="${by}"]`)?.focus();
  }

  #heads() {
    put(this.head, COLUMNS.map(([by, words, compare]) => {
      const mine = this.#sort.by === by;
      const order = mine ? (this.#sort.down ? "descending" : "ascending") : "none";
      return h(
        "div",
        { role: "columnheader", class: `c-${by}`, "aria-sort": compare ? order : null },
        compare ? h("button", { type: "button", class: "quiet", data: { by }, on: { click: () => this.#sorted(by) } }, words, h("span", { class: "arrow", "aria-hidden": "true" }, mine ? (this.#sort.down ? "↓" : "↑") : "")) : words || h("span", { class: "unseen" }, "Actions"),
      );
    }));
  }

  #arrange() {
    const words = this.#words.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const [, , fits] = FILTERS.find(([name]) => name === this.#filter);
    const compare = COLUMNS.find(([by]) => by === this.#sort.by)[2];
    const found = [...this.#model.jobs.values()].filter((job) => fits(job) && words.every((word) => haystack(job).includes(word)));
    found.sort((a, b) => (this.#sort.down ? -1 : 1) * compare(a, b) || a.name.localeCompare(b.name, "en", { numeric: true }));
    this.#order = found.map((job) => ({ key: job.name }));
    this.table.setAttribute("aria-rowcount", found.length + 1);
    this.#count();
    this.#rows.items = this.#order;
    this.empty.hidden = found.length > 0;
    this.table.hidden = !found.length;
    if (!found.length) put(this.empty, this.#nothing());
  }

  #nothing() {
    if (this.#model.jobs.size) return [h("p", {}, "No job fits."), button(null, "Show all jobs", () => { this.search.value = this.#words = ""; this.#choose("all"); })];
    if (!this.#model.version) return h("p", {}, "Looking…");
    return [h("p", {}, "This node has no jobs yet."), h("p", { class: "dim" }, "Add some to its configuration; it is read again within a minute, or at once on SIGHUP.")];
  }

  #count() {
    const jobs = [...this.#model.jobs.values()];
    const shown = FILTERS.map(([name, words, fits]) => [name, words, jobs.filter(fits).length]);
    if (!this.pills.children.length) {
      put(this.pills, shown.map(([name, words], index) => h("button", { type: "button", class: `pill t-${name}`, data: { filter: name }, title: `key ${index + 1}`, on: { click: () => this.#choose(name) } }, h("span", {}, words), h("b", {}))));
    }
    shown.forEach(([name, , count], index) => {
      const pill = this.pills.children[index];
      text(pill.lastChild, String(count));
      pill.classList.toggle("some", count > 0);
      pill.setAttribute("aria-pressed", String(name === this.#filter));
    });
    text(this.count, this.#order.length === jobs.length ? `${jobs.length} jobs` : `${this.#order.length} of ${jobs.length} jobs`);
  }

  // -- rows -----------------------------------------------------------------------------------------------------------

  #make(name) {
    const cell = (kind, ...children) => h("div", { role: "cell", class: `c-${kind}` }, children);
    return h(
      "div",
      { role: "row", class: "row", data: { job: name } },
      cell("state"),
      cell("name", h("button", { type: "button", class: "name", on: { click: () => this.#acts.open(name, "log") } }, name), h("code", { class: "command" }), h("span", { class: "tags" })),
      cell("schedule", h("span", { class: "words" }), h("code", { class: "dim" })),
      cell("last", h("span", { class: "age" }), h("span", { class: "outcome" })),
      cell("next", h("span", { class: "count" }), h("span", { class: "dim at" })),
      cell("recent"),
      cell("acts"),
    );
  }

  #update(element, name, index) {
    const job = this.#model.jobs.get(name);
    element.setAttribute("aria-rowindex", index + 2);
    element.classList.toggle("open", name === this.#acts.opened());
    if (!job) return;
    if (element.made !== job || element.refused !== this.#model.refused || element.reasons !== this.#model.reasons) this.#fill(element, job);
    this.#times(element, job);
  }

  #fill(element, job) {
    element.made = job;
    element.refused = this.#model.refused;
    element.reasons = this.#model.reasons;
    const [state, name, schedule, lastRun, , recent, acts] = element.children;
    element.className = `row is-${STATES[job.state].tone}${job.state === "off" ? " dimmed" : ""}${job.name === this.#acts.opened() ? " open" : ""}`;
    put(state, chip(job.state), job.state === "skipped" ? h("span", { class: "why", title: this.#model.reasons?.[job.last_run.skip_reason] ?? null }, job.last_run.skip_reason) : null);
    text(name.children[1], job.command);
    name.children[1].title = job.command;
    put(name.children[2], tags(job));
    text(schedule.children[0], job.schedule_words + (job.timezone && job.timezone !== "UTC" ? `, ${job.timezone}` : ""));
    text(schedule.children[1], job.schedule_resolved ? `${job.schedule} → ${job.schedule_resolved}` : job.schedule);
    schedule.title = job.schedule_findings.map((finding) => finding.message).join("\n");
    put(lastRun.children[1], job.last_run ? [h("span", { class: `exit o-${job.last_run.outcome}` }, exit(job.last_run)), job.last_run.duration === null ? null : h("span", { class: "dim" }, ` in ${took(job.last_run.duration)}`)] : null);
    put(recent, sparkline(job.history));
    put(acts, this.#buttons(job));
  }

  #buttons(job) {
    const at = document.activeElement?.closest?.(".c-acts") && document.activeElement.dataset.act;
    const one = (act, sign, words, press, off) => button(sign, words, press, { bare: true, "data-act": act, "aria-disabled": off ? "true" : null, ...(off ? { title: off } : {}) });
    const { refused } = this.#model;
    const made = [
      one("run", "running", `Run ${job.name}`, () => this.#acts.run(job.name), refused ?? (job.enabled ? null : "the job is disabled")),
      one("cancel", "stop", `Cancel ${job.name}`, () => this.#acts.cancel(job.name), refused ?? (job.running ? null : "the job does not run")),
      one("pause", job.paused ? "ok" : "paused", `${job.paused ? "Resume" : "Pause"} ${job.name}`, () => this.#pause(job.name), refused),
      one("log", "log", `Log of ${job.name}`, () => this.#acts.open(job.name, "log"), null),
    ];
    // The buttons are made anew while one of them may have the focus.
    if (at) requestAnimationFrame(() => document.activeElement === document.body && made.find((act) => act.dataset.act === at)?.focus());
    return made;
  }

  #pause(name) {
    if (this.#model.jobs.get(name)?.paused) this.#acts.resume(name);
    else this.#acts.pause(name);
  }

  #times(element, job) {
    const [age] = element.children[3].children;
    const words = job.last_run ? ago(job.last_run.finished_at) : "never";
    if (age.textContent !== words) put(age, job.last_run ? time(job.last_run.finished_at, words) : words);
    const [count, at] = element.children[4].children;
    const [countdown, there] = nextWords(job);
    text(count, countdown);
    if (at.dataset.due !== String(there)) {
      at.dataset.due = String(there);
      put(at, there === null ? null : time(there, when(there).slice(there - now() > 72_000_000 ? 5 : 11, 19)));
    }
  }
}

/** When it is due: in words, and as a time (ms) or null. */
export function nextWords(job) {
  if (!job.enabled) return ["–", null];
  if (job.retry) return [`retry ${job.retry.attempt} in ${span((Date.parse(job.retry.nextRetryAt) - now()) / 1000)}`, Date.parse(job.retry.nextRetryAt)];
  if (job.never_fires) return ["never again", null];
  if (job.due === null) return [job.rebootPending ? "waits for an owner" : "at a start only", null];
  const left = (job.due - now()) / 1000;
  if (left <= 0) return ["due now", job.due];
  return [`in ${span(left + 0.999)}`, job.due];
}

/** A state as a sign and a word. */
export function chip(state) {
  const { words, sign, tone } = STATES[state] ?? STATES.unknown;
  return h("span", { class: `chip ${tone}` }, icon(sign), words);
}

function tags(job) {
  const all = [];
  if (job.late) all.push(h("span", { class: "tag bad", title: job.sla.breaches.map((one) => one.check).join(", ") }, "late"));
  if (job.failing && !["failed", "retrying"].includes(job.state)) all.push(h("span", { class: "tag bad" }, "last run failed"));
  if (job.paused?.note) all.push(h("span", { class: "tag", title: job.paused.note }, job.paused.note));
  if (job.queued) all.push(h("span", { class: "tag" }, "one waits"));
  if (job.clusterOwner) all.push(h("span", { class: "tag", title: "the node that owns it" }, job.clusterOwner));
  return all;
}

function haystack(job) {
  job.haystack ??= `${job.name}\n${job.command}\n${job.schedule}\n${job.schedule_words}`.toLowerCase();
  return job.haystack;
}
