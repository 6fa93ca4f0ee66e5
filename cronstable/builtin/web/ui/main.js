// The page: which view is open, what stands above it, and what keys and buttons do.

import { Api, Refusal } from "./api.js";
import { ClusterView, conflictWords, roleOf } from "./cluster.js";
import { ask, askPause, askToken, showKeys } from "./dialogs.js";
import { button, h, icon, put, text } from "./dom.js";
import { Drawer } from "./drawer.js";
import { FleetView } from "./fleet.js";
import { ago, clock, inUtc, localZone, now, time, useUtc } from "./format.js";
import { IncidentsView } from "./incidents.js";
import { Model } from "./model.js";
import { PlanningView } from "./planning.js";
import { JobsView } from "./table.js";
import { TimelineView } from "./timeline.js";

const THEMES = ["auto", "light", "dark"];
const at = (id) => document.getElementById(id);

const api = new Api();
const model = new Model(api);
const acts = { open: (name, tab) => show(name, tab), run, cancel, pause, resume, close: () => go(current), show, opened: () => drawer.name };
const views = {
  jobs: new JobsView(model, acts),
  cluster: new ClusterView(model),
  fleet: new FleetView(model, api, acts),
  timeline: new TimelineView(model, api, acts),
  schedule: new PlanningView(model, api, acts),
  incidents: new IncidentsView(model, api, acts),
};
const drawer = new Drawer(at("drawer"), model, api, { ...acts });
let current = null;
let waitsForG = false;
let asking = false;

// -- where we are: #/jobs, #/cluster, #/jobs/job/NAME/TAB, #/jobs/job/NAME/log/RUN -------------------------------------------------------------

function go(view, job = null, tab = null, run = null) {
  const hash = `#/${view}${job === null ? "" : `/job/${encodeURIComponent(job)}/${tab ?? "log"}`}${run === null ? "" : `/${encodeURIComponent(run)}`}`;
  if (location.hash !== hash) history.pushState(null, "", hash);
  route();
}

function show(name, tab, run = null) {
  go(current, name, tab, run);
}

function route() {
  const [, name, , job, tab, run] = location.hash.split("/");
  const view = Object.hasOwn(views, name) ? name : "jobs";
  if (view !== current) {
    current = view;
    put(at("main"), views[view].open());
    for (const link of at("views").children) link.setAttribute("aria-current", link.dataset.view === view ? "page" : "false");
  }
  if (job) drawer.open(decoded(job), tab, run ? decoded(run) : null);
  else drawer.close();
  views.jobs.refresh("jobs");
  titled();
}

function decoded(piece) {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}

// -- what is done to jobs ---------------------------------------------------------------------------------------------

async function run(name) {
  await act(name, "start", null, (answer) => `Started ${name}${answer.run_id ? ` (run ${answer.run_id})` : ""}`);
}

async function cancel(name) {
  if (model.refused !== null) return say(model.refused, true);
  if (!model.jobs.get(name)?.running) return say(`${name} does not run`);
  const sure = await ask({ title: `Cancel ${name}?`, body: h("p", {}, "Its living runs are ended: SIGTERM, and SIGKILL after killTimeout. They are neither reported nor retried."), yes: "Cancel the run", no: "Keep it", danger: true });
  if (sure) await act(name, "cancel", null, (answer) => `Cancelled ${name}: ${answer.instances} ${answer.instances === 1 ? "run" : "runs"}`);
  return null;
}

async function pause(name) {
  if (model.refused !== null) {
    say(model.refused, true);
    return;
  }
  const body = await askPause(name);
  if (body) await act(name, "pause", body, () => `Paused ${name}`);
}

async function resume(name) {
  await act(name, "resume", null, () => `Resumed ${name}`);
}

async function act(name, verb, body, words) {
  if (model.refused !== null) return say(model.refused, true);
  try {
    say(words(await model.act(name, verb, body)));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    say(`${name}: ${error.message}`, true);
  }
  return null;
}

/** A line that goes away by itself; a failure stays longer. */
function say(words, wrong = false) {
  const toast = h("p", { class: wrong ? "toast wrong" : "toast" }, icon(wrong ? "warn" : "ok"), words);
  at("toasts").append(toast);
  setTimeout(() => toast.remove(), wrong ? 10_000 : 4_000);
}

// -- what stands above ------------------------------------------------------------------------------------------------

function lead() {
  const { words, tone, sign } = roleOf(model.cluster);
  const { cluster } = model;
  if (at("lead").dataset.words === words) return;
  at("lead").dataset.words = words;
  at("lead").className = `lead ${tone}`;
  put(at("lead"), words ? [icon(sign), h("span", {}, words)] : null);
  at("lead").title = cluster?.lease?.fence ? `fence ${cluster.lease.fence}` : "";
}

function banners() {
  const { summary, cluster, contact } = model;
  const all = [];
  if (!contact.ok) all.push(["contact", "bad", "failed", ["No contact with ", summary?.node_name ?? "the node", " since ", time(contact.since, clock(contact.since)), `: ${contact.reason}. Trying again; what you see is as old as that.`]]);
  if (summary?.reload && !summary.reload.ok) {
    const { reload } = summary;
    all.push(["reload", "bad", "warn", [h("b", {}, "The configuration could not be read again"), " (", time(reload.at, ago(reload.at)), "). The job set of ", time(reload.last_success), " stays in force.", h("pre", {}, reload.error ?? "")]]);
  }
  if (cluster?.error) all.push(["backend", "bad", "failed", ["The cluster backend does not work: ", cluster.error]]);
  if (cluster?.conflict) all.push(["conflict", "bad", "warn", [h("b", {}, "Conflict: "), conflictWords(cluster), ". Leader jobs do not run until it is resolved."]]);
  else if (cluster?.enabled && cluster.elect_leader && !cluster.quorate && !cluster.error) all.push(["quorum", "bad", "warn", "No quorum: Leader jobs do not run on this node."]);
  const wanted = new Set(all.map(([key]) => key));
  for (const banner of [...at("banners").children]) if (!wanted.has(banner.dataset.key)) banner.remove();
  for (const [key, tone, sign, body] of all) {
    const content = h("div", { class: "what" }, body);
    const banner = [...at("banners").children].find((one) => one.dataset.key === key);
    if (!banner) at("banners").append(h("div", { class: `banner ${tone}`, role: "alert", data: { key } }, icon(sign), content));
    else if (banner.lastChild.textContent !== content.textContent) banner.lastChild.replaceWith(content);
  }
  document.body.classList.toggle("lost", !contact.ok);
}

function link() {
  const { contact } = model;
  const [words, tone, title] = !contact.ok ? ["no contact", "bad", "the node does not answer"] : contact.streaming ? ["live", "good", "what happens is shown as it happens"] : ["polling", "warn", "events do not arrive, so the node is asked every few seconds"];
  at("link").className = `link ${tone}`;
  at("link").title = title;
  if (at("link").textContent !== words) put(at("link"), h("span", { class: "dot", "aria-hidden": "true" }), words);
}

function titled() {
  const failing = [...model.jobs.values()].filter((job) => job.failing).length;
  const node = model.summary?.node_name;
  document.title = `${failing ? `(${failing} failing) ` : ""}${drawer.name ? `${drawer.name} · ` : ""}${node ? `${node} · ` : ""}cronstable`;
  const colour = !model.contact.ok ? "%23888" : failing ? "%23c4320a" : "%230b7a5b";
  const sign = failing ? `<text x="8" y="12" font-size="10" font-family="sans-serif" font-weight="bold" text-anchor="middle" fill="white">${Math.min(failing, 99)}</text>` : '<path d="M8 4v4.4l2.8 1.8" fill="none" stroke="white" stroke-width="1.8" stroke-linecap="round"/>';
  const href = `data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="8" fill="${colour}"/>${sign}</svg>`;
  const found = document.querySelector("link[rel=icon]");
  if (found.href !== href) found.setAttribute("href", href);
}

function clockNow() {
  text(at("zone"), `${clock(now())} ${inUtc() ? "UTC" : localZone()}`);
}

function theme(next = localStorage.getItem("cronstable-theme") ?? "auto") {
  const known = THEMES.includes(next) ? next : "auto";
  localStorage.setItem("cronstable-theme", known);
  document.documentElement.dataset.theme = known;
  put(at("theme"), icon({ auto: "auto", light: "sun", dark: "moon" }[known]));
  const label = `Colours: ${known === "auto" ? "as the system" : known}`;
  at("theme").setAttribute("aria-label", label);
  at("theme").title = label;
}

function access() {
  const { who } = model;
  at("access").hidden = !who || (!who.authenticated && who.allScopes);
  if (who) text(at("access"), who.authenticated ? who.label : "sign in");
  at("access").title = who?.authenticated ? "another token" : "give a token";
}

async function token(refused) {
  if (asking) return;
  asking = true;
  const given = await askToken(location.host, refused);
  asking = false;
  if (given) {
    api.token = given;
    await begin();
  } else if (model.locked) {
    drawer.close();
    put(at("main"), h("div", { class: "empty" }, h("p", {}, "This node shows nothing without a token."), button(null, "Give a token", () => token(false), { class: "primary" })));
    current = null;
  }
}

async function begin() {
  if (current === null) route();
  await model.start();
}

// -- listening --------------------------------------------------------------------------------------------------------

model.addEventListener("change", ({ detail: { what, more } }) => {
  if (what === "locked") {
    const refused = api.token !== null;
    api.token = null;
    token(refused);
    return;
  }
  if (what === "event") {
    drawer.event(more);
    return;
  }
  if (what === "moved") text(at("said"), more);
  if (what === "summary") {
    text(at("node"), model.summary.node_name);
    at("node").title = `cronstable ${model.summary.version}`;
  }
  lead();
  banners();
  link();
  access();
  titled();
  drawer.refresh();
  views[current]?.refresh(what);
  if (what === "summary" && current === "jobs" && !model.jobs.size) views.jobs.refresh("set");
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "Escape" && !typing && drawer.name !== null) go(current);
  if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.target.type !== "checkbox")) return;
  if (waitsForG) {
    waitsForG = false;
    const view = { j: "jobs", c: "cluster", f: "fleet", t: "timeline", s: "schedule", i: "incidents" }[event.key];
    if (view) go(view);
    event.preventDefault();
  } else if (event.key === "g") {
    waitsForG = true;
    setTimeout(() => { waitsForG = false; }, 1500);
  } else if (event.key === "?") {
    showKeys();
  } else if (!at("drawer").contains(event.target) && views[current]?.key?.(event)) {
    event.preventDefault();
  }
});

window.addEventListener("popstate", route);
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => (document.hidden ? model.sleep() : model.wake()));

put(at("views"), Object.entries(views).map(([name, view]) => h("a", { href: `#/${name}`, data: { view: name }, on: { click: (event) => { event.preventDefault(); go(name); } } }, view.title)));
put(at("help"), icon("help"));
at("help").setAttribute("aria-label", "Keys");
at("help").title = "Keys (?)";
at("help").addEventListener("click", showKeys);
at("zone").title = "the zone of all times: press to change";
at("zone").addEventListener("click", () => {
  useUtc(!inUtc());
  clockNow();
  banners();
  for (const element of document.querySelectorAll("[data-due]")) delete element.dataset.due;
  drawer.rezone();
  views[current]?.refresh("zone");
});
at("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
at("access").addEventListener("click", () => token(false));

theme();
clockNow();
link();
setInterval(() => {
  clockNow();
  views[current]?.tick?.();
}, 1000);
route();
begin();
