// Questions to whoever looks, in the browser's own dialogs: the focus stays inside, Escape ends them.

import { button, h } from "./dom.js";

/** Show a dialog; the promise gives what `answer` returns when it is confirmed, null when it is left. */
export function ask({ title, body, yes, no = "Cancel", danger = false, answer = () => true }) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const label = h("h2", { id: "asked" }, title);
    let given = null;
    const end = () => dialog.close();
    const form = h(
      "form",
      { on: { submit: (event) => { event.preventDefault(); given = answer(); if (given !== null) end(); } } },
      label,
      h("div", { class: "asked" }, body),
      h("div", { class: "answers" }, no ? button(null, no, end, { quiet: true }) : null, h("button", { type: "submit", class: danger ? "danger" : "primary" }, yes)),
    );
    const dialog = h("dialog", { "aria-labelledby": "asked", on: { close: () => { dialog.remove(); before?.isConnected && before.focus(); resolve(given); } } }, form);
    document.body.append(dialog);
    dialog.showModal();
    (form.querySelector("[autofocus]") ?? form.querySelector("[type=submit]")).focus();
  });
}

const SPANS = [["1 hour", 3600], ["4 hours", 14400], ["12 hours", 43200], ["1 day", 86400], ["1 week", 604800]];

/** How long to pause and why: the body of POST /jobs/{name}/pause, or null. */
export function askPause(name) {
  const length = h("select", { autofocus: true, id: "pause-length" }, SPANS.map(([words, seconds]) => h("option", { value: seconds }, words)));
  const note = h("input", { id: "pause-note", maxlength: 500, placeholder: "optional: why", autocomplete: "off" });
  return ask({
    title: `Pause ${name}`,
    body: [
      h("p", { class: "dim" }, "What comes due meanwhile is skipped; running it by hand stays possible."),
      h("label", { for: "pause-length" }, "For"), length,
      h("label", { for: "pause-note" }, "Note"), note,
    ],
    yes: "Pause",
    answer: () => ({ durationSeconds: Number(length.value), ...(note.value.trim() ? { note: note.value.trim() } : {}) }),
  });
}

/** A token, or null. `refused`: the one before was not accepted. */
export function askToken(node, refused) {
  const token = h("input", { id: "token", type: "password", autofocus: true, required: true, autocomplete: "off", "aria-describedby": "token-help" });
  return ask({
    title: "This node asks for a token",
    body: [
      refused ? h("p", { class: "wrong", role: "alert" }, "That token was not accepted.") : null,
      h("label", { for: "token" }, `Token for ${node}`), token,
      h("p", { id: "token-help", class: "dim" }, "One of web.authToken or web.authTokens of its configuration. It is kept in this tab only, and sent to this node only."),
    ],
    yes: "Use it",
    no: "Not now",
    answer: () => token.value.trim() || null,
  });
}

const KEYS = [
  ["/", "search"], ["1 … 6", "filter by state"], ["j k ↓ ↑", "next and previous job"], ["Enter", "open the job"], ["r", "run it"], ["c", "cancel it"],
  ["p", "pause or resume it"], ["g then j c f t s i", "go to jobs, cluster, fleet, timeline, schedule, incidents"], ["Esc", "close what is open"], ["?", "this list"],
];

export function showKeys() {
  return ask({
    title: "Keys",
    body: h("dl", { class: "keys" }, KEYS.map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])),
    yes: "Close",
    no: null,
  });
}
