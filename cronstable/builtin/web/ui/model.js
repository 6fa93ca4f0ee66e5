// What the page knows: the node, its jobs, its cluster. Views listen for `change`; nothing here draws.

import { Refusal, jobPath } from "./api.js";
import { learnClock, now } from "./format.js";

const SLOW = 30_000; // ms between two looks at all jobs, when there are many
const FEW = 500; // jobs, up to which the list is looked at every QUICK
const QUICK = 4_000; // ms
const ONE_BY_ONE = 12; // jobs that are asked for by name; of more the whole list is asked for
const CLUSTER = 1_000; // ms between two looks at the cluster, for its ages and where no events arrive
const SUMMARY = 5_000; // ms between two looks at the figures

const HANDOVER = new Set(["catch-up-off", "claim-taken", "claimed-not-started", "coalesced", "due-before-term", "fenced", "log-full", "outside-window", "started-unclaimed", "store-unavailable"]);
const KINDS = "started,finished,skipped,leadership,quorum,cluster,reloaded";

/** What a job is doing, in one word, and the sign and colour for it. */
export const STATES = {
  running: { words: "running", sign: "running", tone: "run" },
  failed: { words: "failed", sign: "failed", tone: "bad" },
  retrying: { words: "retrying", sign: "waiting", tone: "bad" },
  ok: { words: "ok", sign: "ok", tone: "good" },
  cancelled: { words: "cancelled", sign: "cancelled", tone: "warn" },
  unknown: { words: "unknown", sign: "unknown", tone: "warn" },
  skipped: { words: "skipped", sign: "skipped", tone: "dim" },
  waiting: { words: "waiting", sign: "waiting", tone: "run" },
  pending: { words: "no run yet", sign: "waiting", tone: "dim" },
  paused: { words: "paused", sign: "paused", tone: "warn" },
  off: { words: "disabled", sign: "off", tone: "dim" },
};

export const OUTCOMES = { success: "ok", failure: "failed", cancelled: "cancelled", unknown: "unknown", skipped: "skipped" };

/** The state of a job, from its entry. */
export function stateOf(entry) {
  if (entry.running) return "running";
  if (!entry.enabled) return "off";
  if (entry.paused) return "paused";
  if (entry.retry) return "retrying";
  if (entry.queued || entry.rebootPending) return "waiting";
  return entry.last_run ? (OUTCOMES[entry.last_run.outcome] ?? "unknown") : "pending";
}

export class Model extends EventTarget {
  jobs = new Map(); // name to entry, each with `due` (ms by the clock of the node, null) and `state`
  summary = null;
  cluster = null;
  who = null; // null as long as the node has not said who asks
  reasons = null; // what codes of reasons mean; null as long as the node has not said so
  handover = []; // what was started late or skipped around changes of leadership, newest first
  moves = []; // changes of leadership and quorum since the page was opened, newest first
  contact = { ok: true, since: now(), streaming: false, reason: "" };
  version = 0; // counts changes of the set or the entries of jobs
  #api;
  #wanted = new Set();
  #locked = false;
  #ending = null;
  #stream = null;
  #busy = false;

  constructor(api) {
    super();
    this.#api = api;
    api.addEventListener("unauthorized", () => this.#lock());
  }

  /** Begin to look, and go on until the page is left or a token is needed. */
  async start() {
    this.#ending?.abort();
    this.#ending = new AbortController();
    this.#locked = false;
    const { signal } = this.#ending;
    this.who = null;
    await this.#attempt(() => this.#meet(signal));
    if (this.#locked) return;
    this.#every(() => QUICK, () => this.#meet(signal), signal);
    await this.#attempt(() => this.#lookAtSummary()); // first, for its clock
    this.#every(() => SUMMARY, () => this.#lookAtSummary(), signal);
    this.#every(() => CLUSTER, () => this.#lookAtCluster(), signal);
    this.#every(() => (this.jobs.size > FEW ? SLOW : QUICK), () => this.lookAtJobs(), signal);
    this.#every(() => 1_000, () => this.#lookAtWanted(), signal);
    if (!document.hidden) this.#listen();
  }

  /** Nobody looks: give the stream's connection back, of which a browser has six for all its pages of one node. */
  sleep() {
    this.#stream?.abort();
  }

  /** Somebody looks again. */
  wake() {
    if (this.#locked || this.#ending === null) return;
    this.#listen();
    for (const look of [() => this.#lookAtCluster(), () => this.#lookAtSummary(), () => this.lookAtJobs()]) this.#attempt(look);
  }

  /** Whether a token is needed first. */
  get locked() {
    return this.#locked;
  }

  /** Why this caller may not start, cancel and pause; null when it may. */
  get refused() {
    if (this.who === null) return "it is not known yet what you may do";
    return this.who.scopes.includes("control") ? null : "your token may only look";
  }

  /** A code of a reason in words. */
  because(reason) {
    if (this.reasons === null) return "for a reason whose words are not here yet";
    return this.reasons[reason] ?? "for a reason that this page has no words for";
  }

  /** Ask for a job's entry soon. */
  want(name) {
    this.#wanted.add(name);
  }

  /** Do something to a job; its entry is asked for at once. Throws Refusal. */
  async act(name, verb, body = null) {
    const answer = await this.#api.post(jobPath(name, `/${verb}`), body);
    await this.#lookAt(name);
    return answer;
  }

  /** Take over the whole list. */
  async lookAtJobs() {
    const asked = now();
    const list = await this.#api.get("jobs?words=true");
    if (list === this.list) return;
    this.list = list;
    const before = this.jobs;
    this.jobs = new Map(list.map((entry) => [entry.name, this.#dress(entry, asked)]));
    const first = !this.version;
    this.version += 1;
    this.#tell(!first && before.size === this.jobs.size && list.every((entry) => before.has(entry.name)) ? "jobs" : "set");
  }

  #dress(entry, asked) {
    const due = typeof entry.scheduled_in === "number" ? Math.round(asked / 1000 + entry.scheduled_in) * 1000 : null;
    return { ...entry, due, state: stateOf(entry), late: entry.sla?.state === "late" };
  }

  async #lookAt(name) {
    const asked = now();
    try {
      const entry = await this.#api.get(jobPath(name));
      this.jobs.set(name, this.#dress(entry, asked));
      this.list = null;
    } catch (error) {
      if (error.status !== 404) throw error;
      this.jobs.delete(name);
    }
    this.version += 1;
    this.#tell("jobs");
  }

  async #lookAtWanted() {
    const names = [...this.#wanted].filter((name) => this.jobs.has(name));
    this.#wanted.clear();
    const many = names.length > ONE_BY_ONE;
    if (!names.length || (many && this.#busy)) return false; // nothing is asked
    if (many) {
      this.#busy = true; // a long list costs the node something: never two at a time, and a rest in between
      setTimeout(() => { this.#busy = false; }, Math.max(QUICK, this.jobs.size * 3));
      await this.lookAtJobs();
    } else {
      await Promise.all(names.map((name) => this.#lookAt(name)));
    }
    return true;
  }

  /** Who asks and what reasons mean does not change: it is asked for until it is known. */
  async #meet(signal) {
    if (this.who !== null && this.reasons !== null) return false; // nothing is asked
    const [who, reasons] = await Promise.allSettled([this.who ?? this.#api.get("whoami"), this.reasons ?? this.#api.get("ui/reasons.json")]);
    if (signal.aborted) return false; // it was asked with another token
    this.who = who.value ?? null;
    this.reasons = reasons.value ?? null;
    this.#tell("who");
    for (const { reason } of [who, reasons]) if (reason) throw reason;
    return true;
  }

  async #lookAtSummary() {
    const asked = Date.now();
    this.summary = await this.#api.get("summary");
    learnClock(this.summary.generated_at, asked);
    this.#tell("summary");
  }

  async #lookAtCluster() {
    const seen = await this.#api.get("cluster");
    const before = this.cluster;
    this.cluster = seen;
    if (before) this.#note(before, seen);
    this.#tell("cluster");
  }

  #note(before, after) {
    const at = new Date(now()).toISOString();
    const notes = [];
    if (before.leader !== after.leader) notes.push(after.leader ? `${after.leader} leads` : "nobody leads");
    if (before.quorate !== after.quorate) notes.push(after.quorate ? "this node has quorum" : "this node has no quorum");
    if (before.conflict !== after.conflict) notes.push(after.conflict ? "the nodes disagree" : "the nodes agree again");
    if (!notes.length) return;
    this.moves.unshift(...notes.map((words) => ({ at, words })));
    this.moves.length = Math.min(this.moves.length, 50);
    this.#tell("moved", notes.join(", "));
  }

  /** Events only say where to look: what is shown is always what the documents say. */
  #listen() {
    this.#stream?.abort();
    const mine = new AbortController();
    this.#stream = mine;
    const signal = AbortSignal.any([mine.signal, this.#ending.signal]);
    const hear = ({ event, data }) => {
      const fact = parsed(data);
      if (typeof fact.job === "string") {
        this.want(fact.job);
        if (fact.trigger === "catchup" && event === "started") this.#remember("catch-up", fact);
        if (event === "skipped" && HANDOVER.has(fact.reason)) this.#remember(fact.reason, fact);
        this.#tell("event", { event, ...fact });
      } else if (event === "leadership" || event === "quorum" || event === "cluster") {
        this.#attempt(() => this.#lookAtCluster());
      } else if (event === "reloaded" || event === "reset") {
        this.#attempt(() => this.#lookAtSummary());
        this.#attempt(() => this.lookAtJobs());
      }
    };
    const state = (streaming) => {
      if (signal.aborted && streaming) return;
      if (streaming && !this.contact.streaming) this.#attempt(() => this.lookAtJobs()); // what was missed meanwhile
      this.contact = { ...this.contact, streaming };
      this.#tell("contact");
      if (!streaming) this.#attempt(() => this.#lookAtCluster()); // is the node still there?
    };
    this.#api.follow(`events?kinds=${KINDS}`, { signal, hear, state }).catch(() => {}).finally(() => {
      if (mine !== this.#stream) return; // another one took over
      state(false);
    });
  }

  #remember(reason, { job, scheduled_at: due }) {
    this.handover.unshift({ reason, job, due, at: new Date(now()).toISOString() });
    this.handover.length = Math.min(this.handover.length, 100);
    this.#tell("handover");
  }

  /** Look again and again; a page that nobody sees looks seldom. */
  async #every(delay, look, signal) {
    while (!signal.aborted) {
      await this.#attempt(look);
      const rest = document.hidden ? 10 * delay() : delay();
      await new Promise((resolve) => setTimeout(resolve, rest));
    }
  }

  async #attempt(look) {
    if (this.#locked) return;
    try {
      const asked = await look();
      if (!this.contact.ok && asked !== false) {
        this.contact = { ...this.contact, ok: true, since: now(), reason: "" };
        this.#tell("contact");
        this.#tell("back");
      }
    } catch (error) {
      this.#lost(error);
    }
  }

  #lost(error) {
    if (!(error instanceof Refusal)) throw error;
    if (error.status === 401) return;
    if (this.contact.ok && (error.status === 0 || error.status >= 500)) {
      this.contact = { ...this.contact, ok: false, since: now(), reason: error.message };
      this.#tell("contact");
    }
  }

  #lock() {
    if (this.#locked) return;
    this.#locked = true;
    this.#ending?.abort();
    this.#tell("locked");
  }

  #tell(what, more = null) {
    this.dispatchEvent(new CustomEvent("change", { detail: { what, more } }));
  }
}

function parsed(data) {
  try {
    const fact = JSON.parse(data);
    return typeof fact === "object" && fact !== null ? fact : {};
  } catch {
    return {};
  }
}
