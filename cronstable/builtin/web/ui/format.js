// Times, spans and figures in words. The zone that times are shown in is chosen once for the whole page.

import { h } from "./dom.js";

const zones = { utc: true };
const skew = { ms: 0 }; // the clock of the node less ours
const parts = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const formats = new Map();

/** Whether times are shown in UTC, or in the zone of whoever looks. */
export function inUtc() {
  return zones.utc;
}

export function useUtc(yes) {
  zones.utc = yes;
}

/** The time on the clock of the node, which is what all its times are about; ms. */
export function now() {
  return Date.now() + skew.ms;
}

/** The node said `iso` between `asked` and now (ms by our clock); a difference within the answer's time is none. */
export function learnClock(iso, asked) {
  const [from, to] = [asked, Date.now()];
  const said = Date.parse(iso);
  skew.ms = said < from - 50 || said > to + 50 ? said - (from + to) / 2 : 0;
}

/** The name of the zone of whoever looks, such as Europe/Berlin. */
export function localZone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** 2026-11-30 19:50:00 UTC, in one of the two zones, or in a named one. */
export function when(at, zone = zones.utc ? "UTC" : localZone()) {
  const date = at instanceof Date ? at : new Date(at);
  if (Number.isNaN(date.getTime())) return String(at);
  const fields = Object.fromEntries(formatter(zone).formatToParts(date).map((part) => [part.type, part.value]));
  return `${fields.year}-${fields.month}-${fields.day} ${fields.hour}:${fields.minute}:${fields.second} ${fields.timeZoneName}`;
}

function formatter(zone) {
  if (!formats.has(zone)) {
    formats.set(zone, new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: zone, timeZoneName: "short" }));
  }
  return formats.get(zone);
}

/** 19:50:00 in the chosen zone. */
export function clock(at) {
  return when(at).slice(11, 19);
}

/** A <time> in the chosen zone that shows the other one when pointed at. `words`: shown instead of the time. */
export function time(at, words = null) {
  const other = zones.utc ? localZone() : "UTC";
  return h("time", { datetime: new Date(at).toISOString(), title: `${when(at)}\n${when(at, other)}` }, words ?? when(at));
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const first = UNITS.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0 s";
  const [unit, size] = UNITS[first];
  const count = Math.floor(whole / size);
  if (first === UNITS.length - 1) return `${count} ${unit}`;
  const [next, nextSize] = UNITS[first + 1];
  const rest = Math.floor((whole % size) / nextSize);
  return rest ? `${count} ${unit} ${rest} ${next}` : `${count} ${unit}`;
}

/** How long a run took: 57 ms, 3.2 s, 4 min 10 s. */
export function took(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return span(seconds);
}

/** 5 s ago. */
export function ago(at) {
  const seconds = (now() - new Date(at).getTime()) / 1000;
  return seconds < 1 ? "just now" : `${span(seconds)} ago`;
}

/** 12.4 MiB. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const sizes = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(sizes.length - 1, count > 0 ? Math.floor(Math.log2(count) / 10) : 0);
  return `${power ? (count / 1024 ** power).toFixed(1) : count} ${sizes[power]}`;
}

/** What an exit code means, for a chip: ok, exit 3, SIGKILL, timeout. */
export function exit(run) {
  const code = run.exit_code;
  if (code === null || code === undefined) return run.outcome === "skipped" ? "skipped" : run.outcome;
  if (code === -100) return "timeout";
  if (code < 0) return `signal ${-code}`;
  return code === 0 && run.outcome === "success" ? "ok" : `exit ${code}`;
}
