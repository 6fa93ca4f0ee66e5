// The view of what comes: the next runs, how crowded each minute of the next day is and where there is room, the week.

import { button, h, put, text } from "./dom.js";
import { clock, inUtc, localZone, now, span, time, when } from "./format.js";

const SHOWN = 12; // runs that come next
const EVERY = 60; // seconds between two looks
const DAY = 86_400_000; // ms
const DAYS = 7;
const OFTEN = 200; // events of one job that are asked for: one that fills them is due too often to be drawn
const ALL = 5_000; // events that a node gives at most
const A_DAY = 10; // jobs that are shown in one day
const HOUR = 3_600_000; // ms

export class PlanningView {
  title = "Schedule";
  #model;
  #api;
  #acts;
  #count = 0;
  #plan = null;
  #shown = [];

  constructor(model, api, acts) {
    this.#model = model;
    this.#api = api;
    this.#acts = acts;
  }

  open() {
    this.#count = 0;
    this.#plan = null;
    this.next = h("tbody", {});
    this.grid = h("div", { class: "minutes" });
    this.note = h("p", { class: "dim", role: "status" }, "Looking…");
    this.room = h("div", {});
    this.week = h("div", { class: "week" });
    this.often = h("p", { class: "dim" });
    this.refresh("jobs");
    this.#look();
    return h("section", { "aria-label": "Schedule" },
      h("div", { class: "cards" },
        h("div", { class: "card wide" }, h("h2", {}, "Next"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The next runs" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["Job", "In", "At"].map((words) => h("th", { scope: "col" }, words)))), this.next))),
        h("div", { class: "card wide" }, h("h2", {}, "Starts in each minute of the next day"), this.grid, this.note),
        h("div", { class: "card wide" }, h("h2", {}, "Where there is room"), this.room),
        h("div", { class: "card wide" }, h("h2", {}, "The next seven days"), this.week, this.often, h("p", {}, button("down", "Download as a calendar (iCal)", () => this.#download(), { quiet: true })))));
  }

  refresh(what) {
    if (!this.next) return;
    if (what === "zone" && this.#plan) this.#look();
    if (what !== "jobs" && what !== "set" && what !== "zone") return;
    const due = [...this.#model.jobs.values()].filter((job) => job.due !== null && !job.paused).sort((a, b) => a.due - b.due || a.name.localeCompare(b.name, "en", { numeric: true })).slice(0, SHOWN);
    this.#shown = due;
    const key = JSON.stringify([due.map((job) => [job.name, job.due]), inUtc(), this.#model.version > 0]);
    if (this.next.dataset.key === key) return;
    this.next.dataset.key = key;
    put(this.next, due.length ? due.map((job) => h("tr", {}, h("th", { scope: "row" }, this.#name(job.name)), h("td", { class: "number" }, h("span", { data: { until: job.due } }, left(job.due))), h("td", {}, time(job.due))))
      : h("tr", {}, h("td", { class: "dim" }, this.#model.version ? "Nothing is due." : "Looking…")));
  }

  tick() {
    for (const element of this.next?.querySelectorAll("[data-until]") ?? []) {
      text(element, left(Number(element.dataset.until)));
    }
    for (const { name, due } of this.#shown) if (due <= now() - 1_000) this.#model.want(name);
    this.#count += 1;
    if (this.#count % EVERY === 0) this.#look();
  }

  #name(name) {
    return h("button", { type: "button", class: "name", on: { click: () => this.#acts.open(name, "schedule") } }, name);
  }

  async #look() {
    const zone = encodeURIComponent(inUtc() ? "UTC" : localZone());
    try {
      const [pressure, hourly, daily, calendar] = await Promise.all([
        this.#api.get("schedule/pressure"), this.#api.get(`schedule/suggest?every=hour&count=3&timezone=${zone}`), this.#api.get(`schedule/suggest?every=day&count=3&timezone=${zone}`),
        this.#api.text(`calendar.ics?days=${DAYS}&limit=${OFTEN}`),
      ]);
      this.#plan = { pressure, hourly, daily, events: eventsOf(calendar) };
    } catch (error) {
      put(this.note, error.message);
      return;
    }
    if (this.grid.isConnected) this.#draw();
  }

  /** With the token of this tab, which a plain link would not send. */
  async #download() {
    try {
      const link = h("a", { href: URL.createObjectURL(new Blob([await this.#api.text(`calendar.ics?days=${DAYS}`)], { type: "text/calendar" })), download: "cronstable.ics" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      put(this.often, error.message);
    }
  }

  #draw() {
    const { pressure, hourly, daily, events } = this.#plan;
    put(this.grid, hours(pressure));
    const [most] = pressure.busiest;
    put(this.note, most ? ["The fullest minute is ", time(most.at), ` with ${most.count} ${most.count === 1 ? "job" : "jobs"}: ${most.jobs.slice(0, 3).join(", ")}${most.count > Math.min(most.jobs.length, 3) ? " and others" : ""}.`, pressure.whole ? "" : " There are too many schedules to look at all of them."] : "Nothing starts in the next day.");
    put(this.room, [["Once an hour", hourly], ["Once a day", daily]].map(([words, { suggestions, timezone }]) => h("p", {}, `${words}: `, suggestions.map(({ schedule, load }, index) => [index ? ", " : "", h("code", {}, schedule), h("span", { class: "dim" }, ` (${load ? `${load} ${load === 1 ? "start" : "starts"}` : "free"})`)]), h("span", { class: "dim" }, ` in ${timezone}`))));
    const { days, often } = weekOf(events, OFTEN);
    put(this.week, days.map(([day, jobs]) => this.#day(day, jobs)));
    put(this.often, often.length ? `Too often to be drawn: ${often.slice(0, A_DAY).join(", ")}${often.length > A_DAY ? ` and ${often.length - A_DAY} more` : ""}.` : null, events.length >= ALL ? ` Only the first ${ALL} runs are looked at.` : null);
  }

  #day(day, jobs) {
    const rest = jobs.length - A_DAY;
    return h("div", { class: "day" }, h("h3", {}, day), jobs.length ? h("ul", {}, jobs.slice(0, A_DAY).map(([name, times]) => h("li", {}, h("span", { class: "dim mono" }, clock(times[0]).slice(0, 5)), " ", this.#name(name), times.length > 1 ? h("span", { class: "dim" }, ` and ${times.length - 1} more`) : null)), rest > 0 ? h("li", { class: "dim" }, `${rest} more jobs`) : null) : h("p", { class: "dim" }, "nothing"));
  }
}

function left(due) {
  return due <= now() ? "now" : `in ${span((due - now()) / 1000)}`;
}

/** A row for each hour by the clock, a piece for each minute; the darker, the more jobs start in it. */
function hours({ from, minutes }) {
  const start = Date.parse(from);
  const most = Math.max(...minutes, 1);
  const first = start - (start % HOUR);
  const rows = [];
  for (let hour = first; hour < start + DAY; hour += HOUR) {
    const cells = Array.from({ length: 60 }, (_, minute) => minutes[(hour + minute * 60_000 - start) / 60_000] ?? null);
    const total = cells.reduce((sum, count) => sum + (count ?? 0), 0);
    const top = Math.max(...cells.map((count) => count ?? 0));
    const label = `${when(hour).slice(0, 16)}: ${total} starts${total ? `, at most ${top} in the minute ${when(hour + cells.indexOf(top) * 60_000).slice(11, 16)}` : ""}`;
    rows.push(h("span", { class: "dim mono", "aria-hidden": "true" }, clock(hour).slice(0, 5)), h("div", { class: "minute", role: "img", "aria-label": label }, cells.map((count, minute) => h("span", { class: count === null ? "none" : `l${count ? Math.max(1, Math.ceil((4 * count) / most)) : 0}`, title: count === null ? null : `${when(hour + minute * 60_000).slice(0, 16)}: ${count} ${count === 1 ? "job" : "jobs"}` }))));
  }
  return rows;
}

/** The events of a calendar (RFC 5545) as [name, ms]; only what a node of ours writes is understood. */
export function eventsOf(calendar) {
  const events = [];
  let at = null;
  let name = null;
  for (const line of calendar.replace(/\r\n[ \t]/g, "").split("\r\n")) {
    const colon = line.indexOf(":");
    const [key, value] = [line.slice(0, colon), line.slice(colon + 1)];
    if (line === "BEGIN:VEVENT") [at, name] = [null, null];
    else if (key === "DTSTART") at = Date.parse(value.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/, "$1-$2-$3T$4:$5:$6Z"));
    else if (key === "SUMMARY") name = value.replace(/\\(.)/g, (_, char) => (char === "n" || char === "N" ? "\n" : char));
    else if (line === "END:VEVENT" && name !== null && !Number.isNaN(at)) events.push([name, at]);
  }
  return events;
}

/** The days with [name, times] of the jobs due in them, by their first time; and the jobs that are due too often. */
export function weekOf(events, often) {
  const counts = new Map();
  for (const [name] of events) counts.set(name, (counts.get(name) ?? 0) + 1);
  const days = new Map();
  // In steps of less than a day: one in which clocks change has 23 hours, or 25.
  for (let at = now(); days.size < DAYS; at += DAY / 4) days.set(when(at).slice(0, 10), new Map());
  for (const [name, at] of events) {
    const day = days.get(when(at).slice(0, 10));
    if (day && counts.get(name) < often) day.set(name, [...(day.get(name) ?? []), at]);
  }
  return { days: [...days].map(([day, jobs]) => [day, [...jobs].sort(([, a], [, b]) => a[0] - b[0])]), often: [...counts].filter(([, count]) => count >= often).map(([name]) => name) };
}
