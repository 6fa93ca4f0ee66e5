// Elements, made from data. Whatever the API says becomes text here: no markup is ever parsed, and the page's
// Content-Security-Policy (trusted types) would refuse it.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: attributes, `class`, `on` (listeners), `data`; null and false leave an attribute out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put `children` in the place of everything in `element`. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Change an element's text only when it differs: nothing blinks, and no screen reader repeats itself. */
export function text(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

const PATHS = {
  ok: "M3 8.5l3.2 3.2L13 4.8",
  failed: "M4 4l8 8M12 4l-8 8",
  running: "M5 3.2l8 4.8-8 4.8z",
  paused: "M5.5 3.5v9M10.5 3.5v9",
  off: "M3.5 8h9",
  cancelled: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11M4.2 4.2l7.6 7.6",
  skipped: "M3 4l4.5 4L3 12M8.5 4l4.5 4-4.5 4",
  waiting: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11M8 5v3.2l2.2 1.6",
  unknown: "M6 6a2 2 0 113 1.7c-.7.4-1 .8-1 1.6M8 12v.3",
  warn: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.6v.2",
  log: "M3 4h10M3 8h10M3 12h6",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.8a4.2 4.2 0 100 8.4 4.2 4.2 0 000-8.4M10.2 10.2L13.5 13.5",
  stop: "M4.5 4.5h7v7h-7z",
  star: "M8 2.2l1.8 3.8 4.1.5-3 2.9.8 4.1L8 11.5l-3.7 2 .8-4.1-3-2.9 4.1-.5z",
  sun: "M8 5a3 3 0 100 6 3 3 0 000-6M8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M3.4 12.6l1.1-1.1M11.5 4.5l1.1-1.1",
  moon: "M13 9.5A5.5 5.5 0 016.5 3a5.5 5.5 0 106.5 6.5z",
  auto: "M8 2.5a5.5 5.5 0 100 11zM8 2.5a5.5 5.5 0 010 11",
  help: "M6 6a2 2 0 113 1.7c-.7.4-1 .8-1 1.6M8 12v.3",
  down: "M8 3v8M4.5 7.8L8 11.3l3.5-3.5M3.5 13.5h9",
};

/** A drawn sign, said by nobody: the words beside it, or the label of its button, say it. */
export function icon(name) {
  const solid = name === "running" || name === "stop" ? " solid" : "";
  return s(
    "svg",
    { class: `icon${solid}`, viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    s("path", { d: PATHS[name] ?? PATHS.unknown }),
  );
}

/** A button with a sign. `words`: what it says, or what it is called when only the sign is shown. */
export function button(sign, words, press, { quiet = false, bare = false, ...props } = {}) {
  return h(
    "button",
    {
      type: "button",
      class: `${quiet ? "quiet" : ""}${bare ? " icon-only" : ""}`.trim() || null,
      "aria-label": bare ? words : null,
      title: bare ? words : null,
      ...props,
      on: { click: press },
    },
    sign ? icon(sign) : null,
    bare ? null : h("span", {}, words),
  );
}
