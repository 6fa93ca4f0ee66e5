// What the runs of a job took of the machine: the living ones, and those that are over.

import { h, s } from "./dom.js";
import { bytes, time, took, when } from "./format.js";

const WIDE = 600;
const TALL = 80;
const CURVES = 3; // runs that are drawn; the others are in the table

/** The content of the tab, from GET /jobs/{name}/resources. */
export function resources({ monitored, interval, live, runs }) {
  if (!monitored && !live.length && !runs.length) return h("p", { class: "empty" }, "Nothing is measured. Add ", h("code", {}, "monitorResources: true"), " to the job.");
  return [
    monitored ? h("p", { class: "dim" }, `A sample each ${took(interval)}.`) : h("p", { class: "dim" }, "Not measured any more; what is below was."),
    live.map((run) => [h("h3", {}, "Running since ", time(run.started_at), ` (process ${run.pid})`), curves(run.series)]),
    !live.length && !runs.length ? h("p", { class: "empty" }, "No run was measured yet.") : null,
    runs.slice(0, CURVES).map((run) => [h("h3", {}, "Run of ", time(run.started_at ?? run.finished_at)), curves(run.resources.series)]),
    runs.length ? table(runs) : null,
  ];
}

function table(runs) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Measured runs" }, h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ["When", "Took", "Processor time", "Memory at most", "Samples"].map((words) => h("th", { scope: "col" }, words)))),
    h("tbody", {}, runs.map((run) => h("tr", {}, h("td", {}, time(run.started_at ?? run.finished_at)), [took(run.duration), took(run.resources.cpu_total_seconds), bytes(run.resources.max_rss_bytes), String(run.resources.samples)].map((words) => h("td", { class: "number" }, words)))))));
}

function curves(series) {
  if (series.length < 2) return h("p", { class: "dim" }, "Too short for a curve.");
  const use = series.slice(1).map(([at, cpu], index) => [at, (100 * Math.max(0, cpu - series[index][1])) / Math.max(at - series[index][0], 0.001)]);
  return [curve("Processor", use, (value) => `${value.toFixed(0)} %`), curve("Memory", series.map(([at, , rss]) => [at, rss]), bytes)];
}

/** `points`: [seconds, value]. The lowest line is nothing, the highest the most there was. */
export function curve(name, points, words) {
  const [from, until] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(...points.map(([, value]) => value));
  const x = (at) => ((at - from) / Math.max(until - from, 0.001)) * WIDE;
  const y = (value) => TALL - 1 - (value / (most || 1)) * (TALL - 2);
  const path = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const label = `${name}: at most ${words(most)}, ${words(points.at(-1)[1])} at the end`;
  return h("figure", { class: "curve" },
    h("figcaption", {}, label),
    s("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, s("title", {}, `${when(from * 1000)} to ${when(until * 1000)}`), s("polyline", { points: path })));
}
