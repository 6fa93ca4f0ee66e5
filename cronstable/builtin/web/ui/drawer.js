// One job from all sides: its log, its history, its schedule, why it ran or did not, and its settings.

import { jobPath } from "./api.js";
import { button, h, put } from "./dom.js";
import { bytes, exit, localZone, time, took, when } from "./format.js";
import { Log } from "./log.js";
import { OUTCOMES } from "./model.js";
import { resources } from "./resources.js";
import { chip, nextWords } from "./table.js";

const TABS = [["log", "Log"], ["history", "History"], ["schedule", "Schedule"], ["why", "Why"], ["resources", "Resources"], ["details", "Details"]];
const VERDICTS = { run: ["ran", "good"], skip: ["skipped", "dim"], defer: ["waits", "run"] };
const MARKS = {
  moved: "clocks go forward: this time is missing on that day, and moved to the end of the gap",
  "first pass": "clocks go back: this time occurs twice, this is the first",
  "second pass": "clocks go back: this time occurs twice, this is the second",
};
const HIDDEN_FACTS = new Set(["boot", "deadline"]); // count from the start of the node's machine: nothing for people
const TIMES = new Set(["expiry", "first", "last", "until"]);

export class Drawer {
  #element;
  #model;
  #api;
  #acts;
  #name = null;
  #tab = "log";
  #only = null;
  #log = null;
  #from = null;
  #made = null;

  /** `acts`: run, cancel, pause, resume and close. */
  constructor(element, model, api, acts) {
    this.#element = element;
    this.#model = model;
    this.#api = api;
    this.#acts = acts;
  }

  get name() {
    return this.#name;
  }

  /** Show a job, or the log of one of its runs; the focus goes to the drawer unless it is there already. */
  open(name, tab, run) {
    const known = TABS.some(([key]) => key === tab) ? tab : "log";
    if (this.#name === name) {
      if (this.#tab !== known || this.#only !== run) this.#turnTo(known, run);
      return;
    }
    if (this.#element.hidden) this.#from = document.activeElement;
    this.#log?.close();
    this.#log = null;
    this.#name = name;
    this.#tab = known;
    this.#only = run;
    this.#made = null;
    this.#element.hidden = false;
    document.body.classList.add("with-drawer");
    this.#element.setAttribute("aria-label", `Job ${name}`);
    this.state = h("span", {});
    this.buttons = h("div", { class: "answers" });
    this.tabs = h("div", { role: "tablist", "aria-label": "About this job", class: "tablist" }, TABS.map(([key, words]) => this.#tabButton(key, words)));
    this.panel = this.#panel();
    put(
      this.#element,
      h("header", {}, h("div", { class: "title" }, h("h2", { tabindex: "-1" }, name), this.state, button("close", "Close", () => this.#acts.close(), { bare: true, quiet: true })), this.buttons),
      this.tabs,
      this.panel,
    );
    this.refresh();
    this.#fill();
    if (!this.#element.contains(document.activeElement)) this.#element.querySelector("h2").focus();
  }

  close() {
    if (this.#element.hidden) return;
    this.#log?.close();
    this.#log = null;
    this.#name = null;
    this.#element.hidden = true;
    document.body.classList.remove("with-drawer");
    put(this.#element);
    // The row may have been drawn anew meanwhile.
    if (this.#from?.isConnected) this.#from.focus({ preventScroll: true });
  }

  /** What the model says now. */
  refresh() {
    if (this.#name === null) return;
    const job = this.#model.jobs.get(this.#name);
    if (!job) {
      put(this.state, h("span", { class: "dim" }, this.#model.jobs.size ? "not configured on this node" : ""));
      return;
    }
    const key = JSON.stringify([job.state, job.running, Boolean(job.paused), job.enabled, this.#model.refused, this.#model.reasons === null]);
    if (this.#made === key) return;
    const first = this.#made === null;
    this.#made = key;
    put(this.state, chip(job.state));
    put(this.buttons, this.#model.refused === null ? this.#actions(job) : h("p", { class: "dim" }, `${this.#model.refused[0].toUpperCase()}${this.#model.refused.slice(1)}.`));
    if (!first && this.#tab !== "log") this.#fill();
  }

  /** Times are shown in another zone from now on. */
  rezone() {
    if (this.#name === null) return;
    if (this.#log) this.#log.rezone();
    else this.#fill();
  }

  /** An event of the node. */
  event({ event, job }) {
    if (job !== this.#name) return;
    if (event === "started") this.#log?.started();
    if (event === "finished" && (this.#tab === "history" || this.#tab === "resources")) this.#fill();
    if ((event === "decided" || event === "skipped") && this.#tab === "why") this.#fill();
  }

  #actions(job) {
    const { name } = job;
    return [
      job.enabled ? button("running", "Run now", () => this.#acts.run(name)) : null,
      job.running ? button("stop", "Cancel", () => this.#acts.cancel(name), { class: "danger" }) : null,
      job.paused ? button("ok", "Resume", () => this.#acts.resume(name)) : button("paused", "Pause…", () => this.#acts.pause(name)),
    ];
  }

  #tabButton(key, words) {
    const chosen = key === this.#tab;
    return h("button", {
      type: "button", role: "tab", id: `tab-${key}`, "aria-selected": String(chosen), "aria-controls": "panel", tabindex: chosen ? "0" : "-1",
      on: { click: () => this.#acts.show(this.#name, key), keydown: (event) => this.#turn(event) },
    }, words);
  }

  #turnTo(tab, run) {
    this.#log?.close();
    this.#log = null;
    this.#tab = tab;
    this.#only = run;
    for (const button of this.tabs.children) {
      const chosen = button.id === `tab-${tab}`;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    const panel = this.#panel();
    this.panel.replaceWith(panel);
    this.panel = panel;
    this.#fill();
  }

  #panel() {
    return h("div", { role: "tabpanel", id: "panel", class: "panel", "aria-labelledby": `tab-${this.#tab}` });
  }

  #turn(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = TABS.findIndex(([key]) => key === this.#tab);
    this.#acts.show(this.#name, TABS[(at + step + TABS.length) % TABS.length][0]);
    this.tabs.querySelector(`#tab-${this.#tab}`).focus();
  }

  async #fill() {
    const [name, tab, panel] = [this.#name, this.#tab, this.panel];
    if (tab === "log") {
      this.#log = new Log(this.#api, name, this.#only);
      put(panel, this.#log.open());
      return;
    }
    try {
      const made = await { history: () => this.#history(), schedule: () => this.#schedule(), why: () => this.#why(), resources: async () => resources(await this.#api.get(jobPath(this.#name, "/resources?limit=20"))), details: () => this.#details() }[tab]();
      if (this.panel === panel) put(panel, made);
    } catch (error) {
      if (this.panel === panel) put(panel, h("p", { class: "wrong" }, error.message));
    }
  }

  // -- history --------------------------------------------------------------------------------------------------------

  async #history() {
    const [{ runs, stats }, trends] = await Promise.all([this.#api.get(jobPath(this.#name, "/runs")), this.#api.get(jobPath(this.#name, "/trends"))]);
    if (!runs.length) return h("p", { class: "empty" }, "No run yet on this node.");
    const rate = stats.success_rate === null ? "–" : `${(stats.success_rate * 100).toFixed(stats.success_rate === 1 ? 0 : 1)} %`;
    return [
      h("dl", { class: "figures" }, figure("Success", rate), figure("Runs", String(stats.total)), figure("Shortest", took(stats.min_duration)), figure("Average", took(stats.avg_duration)), figure("Longest", took(stats.max_duration)), stats.max_rss_bytes === null ? null : figure("Memory at most", bytes(stats.max_rss_bytes))),
      bars(runs),
      windows(trends),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" },
        h("table", { class: "plain" },
          h("thead", {}, h("tr", {}, ["When", "Outcome", "Took", "By", "Reason"].map((words) => h("th", { scope: "col" }, words)))),
          h("tbody", {}, runs.map((run) => this.#run(run))))),
    ];
  }

  #run(run) {
    const at = run.started_at ?? run.finished_at;
    const reason = run.skip_reason ? this.#because(run.skip_reason) : run.fail_reason && run.fail_reason !== run.outcome ? run.fail_reason : "";
    const by = run.trigger ? `${run.trigger}${run.attempt ? ` (attempt ${run.attempt})` : ""}` : "";
    return h("tr", {},
      h("td", {}, time(at), run.run_id ? h("div", {}, h("button", { type: "button", class: "name mono", title: "the log of this run", on: { click: () => this.#acts.show(this.#name, "log", run.run_id) } }, run.run_id)) : null),
      h("td", {}, chip(OUTCOMES[run.outcome] ?? "unknown"), h("span", { class: "dim" }, run.outcome === "success" || run.outcome === "skipped" || run.outcome === "cancelled" ? "" : ` ${exit(run)}`)),
      h("td", { class: "number" }, took(run.duration)),
      h("td", {}, by, h("div", { class: "dim" }, run.node ?? "")),
      h("td", {}, reason));
  }

  #because(reason) {
    return `${this.#model.because(reason)} (${reason})`;
  }

  // -- schedule -------------------------------------------------------------------------------------------------------

  async #schedule() {
    const job = this.#model.jobs.get(this.#name) ?? (await this.#api.get(jobPath(this.#name)));
    const preview = await this.#api.get(`schedule/preview?job=${encodeURIComponent(this.#name)}&count=10`).catch((error) => ({ error }));
    const zone = job.timezone ?? "local time of the node";
    const fires = preview.next ?? [];
    const shown = job.timezone && job.timezone !== "UTC" ? job.timezone : localZone();
    return [
      h("p", { class: "big" }, job.schedule_words),
      h("p", {}, h("code", {}, job.schedule), job.schedule_resolved ? [" → ", h("code", {}, job.schedule_resolved)] : null, h("span", { class: "dim" }, ` in ${zone}`)),
      job.schedule_findings.map((finding) => h("p", { class: "note" }, finding.message)),
      h("h3", {}, "Next"),
      h("p", {}, nextWords(job)[0]),
      preview.error ? h("p", { class: "dim" }, preview.error.message) : null,
      fires.length ? h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "UTC"), shown === "UTC" ? null : h("th", { scope: "col" }, shown), h("th", { scope: "col" }, ""))),
        h("tbody", {}, fires.map((fire) => this.#fire(fire, shown)))) : null,
    ];
  }

  #fire(fire, zone) {
    const words = fire.mark === "none" ? null : (MARKS[fire.mark] ?? fire.mark);
    return h("tr", {}, h("td", {}, when(fire.at, "UTC")), zone === "UTC" ? null : h("td", {}, when(fire.at, zone)), h("td", {}, words ? [h("span", { class: "tag warn" }, "DST"), h("span", { class: "dim" }, ` ${words}`)] : null));
  }

  // -- why ------------------------------------------------------------------------------------------------------------

  async #why() {
    const { decisions, nodes } = await this.#api.get(jobPath(this.#name, "/decisions?limit=50&fleet=true"));
    const silent = nodes.filter((node) => !node.answered).map((node) => h("p", { class: "wrong" }, `No answer from ${node.node ?? node.host}: ${node.problem}`));
    if (!decisions.length) return [...silent, h("p", { class: "empty" }, nodes.length > 1 ? "No node that answers has decided about it yet." : "This node has not decided about it yet.")];
    return [...silent, h("ol", { class: "decisions" }, decisions.map((row) => this.#decision(row)))];
  }

  #decision(row) {
    const [verdict, tone] = VERDICTS[row.verdict] ?? [row.verdict, "dim"];
    const facts = Object.entries(row.evidence).filter(([name, value]) => !HIDDEN_FACTS.has(name) && value !== null);
    return h("li", { class: tone },
      h("p", {}, row.scheduled_at ? ["due ", time(row.scheduled_at)] : ["asked for ", time(row.decided_at)], " ", h("b", { class: `chip ${tone}` }, verdict), ` on ${row.node}`, row.provisional ? h("span", { class: "tag" }, "for now") : null),
      h("p", {}, this.#because(row.reason)),
      facts.length || row.run_id ? h("p", { class: "dim facts" }, facts.map(([name, value]) => h("span", {}, `${name}: ${fact(name, value)}`)), row.run_id ? h("span", {}, `run: ${row.run_id}`) : null) : null);
  }

  // -- details --------------------------------------------------------------------------------------------------------

  async #details() {
    const job = this.#model.jobs.get(this.#name) ?? (await this.#api.get(jobPath(this.#name)));
    const rows = [
      ["Command", h("code", { class: "block" }, job.command)],
      ["Zone", job.timezone ?? (job.utc ? "UTC" : "local time of the node")],
      ["Cluster policy", job.clusterPolicy], ["Owner", job.clusterOwner], ["Priority", job.priority],
      ["Captured", [job.captureStdout && "stdout", job.captureStderr && "stderr"].filter(Boolean).join(", ") || "nothing"],
      ["Processes", job.pids.join(", ")],
      ["Paused", job.paused ? `${job.paused.until ? `until ${when(job.paused.until)}` : "until resumed"}${job.paused.by ? ` by ${job.paused.by}` : ""}${job.paused.note ? `: ${job.paused.note}` : ""}` : null],
      ["Retry", job.retry ? `attempt ${job.retry.attempt}${job.retry.maxAttempts === null ? "" : ` of ${job.retry.maxAttempts}`}, ${when(job.retry.nextRetryAt)}` : null],
      ["Limits", job.sla ? Object.entries(job.sla.thresholds).map(([name, value]) => `${name} ${value}`).join(", ") : null],
      ["Broken", job.sla?.breaches.length ? job.sla.breaches.map((one) => `${one.check} since ${when(one.since)}`).join(", ") : null],
      ["Uses now", job.running_resources ? `${job.running_resources.cpu_percent.toFixed(0)} % of a processor, ${bytes(job.running_resources.rss_bytes)}` : null],
    ];
    return h("dl", { class: "details" }, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }
}

function figure(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/** How often it went well, by how far back one looks. */
function windows({ windows: found, source }) {
  // A window that has no more runs than the one before it says nothing new.
  const rows = Object.entries(found).filter(([, stats], index, all) => stats.total && stats.total !== all[index - 1]?.[1].total);
  return h("table", { class: "plain windows" },
    h("caption", { class: "dim" }, source === "durable" ? "From the state store, of all nodes that share it" : "Of this node, since it was started"),
    h("thead", {}, h("tr", {}, ["Last", "Runs", "Success", "Average", "Longest"].map((words) => h("th", { scope: "col" }, words)))),
    h("tbody", {}, rows.map(([window, stats]) => h("tr", {}, h("th", { scope: "row" }, window === "all" ? "everything" : window.replace(/(\d+)/, "$1 ")), h("td", {}, String(stats.total)), h("td", {}, stats.success_rate === null ? "–" : `${(stats.success_rate * 100).toFixed(1)} %`), h("td", {}, took(stats.avg_duration)), h("td", {}, took(stats.max_duration))))));
}

/** One bar a run, oldest first; its height is how long it took. */
function bars(runs) {
  const longest = Math.max(...runs.map((run) => run.duration ?? 0), 0.001);
  return h("div", { class: "bars", role: "img", "aria-label": `${runs.length} runs, longest ${took(longest)}` }, [...runs].reverse().map((run) => {
    const element = h("span", { class: `o-${OUTCOMES[run.outcome] ?? "unknown"}`, title: `${when(run.started_at ?? run.finished_at)}\n${run.outcome}${run.duration === null ? "" : `, ${took(run.duration)}`}` });
    element.style.height = `${Math.max(6, ((run.duration ?? 0) / longest) * 100)}%`;
    return element;
  }));
}

function fact(name, value) {
  if (TIMES.has(name) && typeof value === "number") return when(value * 1000);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

