// Small pictures of runs. Colour says the outcome, and so does the shape: a failure stands on a notch, a skip is a dot.

import { h, s } from "./dom.js";
import { OUTCOMES } from "./model.js";
import { took } from "./format.js";

const WIDE = 5;
const TALL = 24;

/** The last runs of a job as bars: height is how long each took, by its logarithm. */
export function sparkline(history, most = 20) {
  const runs = history.slice(-most);
  if (!runs.length) return h("span", { class: "dim" }, "–");
  const longest = Math.max(...runs.map((run) => Math.log1p((run.duration ?? 0) * 1000)), 1);
  const bars = runs.map((run, index) => bar(run, index, longest));
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${most * WIDE} ${TALL}`, width: most * WIDE, height: TALL, role: "img", "aria-label": told(runs) },
    bars,
  );
}

function bar(run, index, longest) {
  const kind = OUTCOMES[run.outcome] ?? "unknown";
  const x = index * WIDE;
  const title = s("title", {}, `${kind}${run.duration === null ? "" : `, ${took(run.duration)}`}`);
  if (kind === "skipped") return s("circle", { class: `o-${kind}`, cx: x + 2, cy: TALL - 3, r: 1.5 }, title);
  const tall = Math.max(3, (Math.log1p((run.duration ?? 0) * 1000) / longest) * (TALL - 7));
  const body = s("rect", { class: `o-${kind}`, x, y: TALL - 4 - tall, width: WIDE - 1, height: tall, rx: 1 }, title);
  return kind === "failed" ? s("g", {}, body, s("rect", { class: "o-failed", x, y: TALL - 2, width: WIDE - 1, height: 2 })) : body;
}

function told(runs) {
  const count = {};
  for (const run of runs) count[OUTCOMES[run.outcome] ?? "unknown"] = (count[OUTCOMES[run.outcome] ?? "unknown"] ?? 0) + 1;
  return `last ${runs.length}: ${Object.entries(count).map(([kind, number]) => `${number} ${kind}`).join(", ")}`;
}
