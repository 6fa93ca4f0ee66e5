// Terminal colours in a job's output. Colours and weight are shown, every other escape sequence is left out.

import { h } from "./dom.js";

// CSI sequences, OSC sequences (which end in BEL or ST), and the other two-character ones; then what is left of control characters.
const ESCAPE = /\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f]/g;

/** The line without any escape. */
export function plain(line) {
  return line.replace(ESCAPE, "").replace(CONTROL, "");
}

/** The line as text and coloured spans. */
export function coloured(line) {
  if (!line.includes("\x1b")) return [line.replace(CONTROL, "")];
  const out = [];
  let style = {};
  let from = 0;
  const push = (piece) => {
    const words = piece.replace(CONTROL, "");
    if (!words) return;
    const classes = [style.fg && `fg${style.fg}`, style.bold && "bold", style.faint && "faint", style.italic && "italic", style.under && "under"];
    const names = classes.filter(Boolean).join(" ");
    out.push(names ? h("span", { class: names }, words) : words);
  };
  for (const match of line.matchAll(ESCAPE)) {
    push(line.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === "m") style = styled(style, match[1]);
  }
  push(line.slice(from));
  return out;
}

function styled(before, parameters) {
  const style = { ...before };
  const codes = parameters.split(";").map(Number);
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at];
    if (code === 0) for (const key of Object.keys(style)) delete style[key];
    else if (code === 1) style.bold = true;
    else if (code === 2) style.faint = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.under = true;
    else if (code === 22) style.bold = style.faint = false;
    else if (code >= 30 && code <= 37) style.fg = code - 30 || 8;
    else if (code >= 90 && code <= 97) style.fg = code - 90 || 8;
    else if (code === 39) style.fg = 0;
    else if (code === 38 || code === 48) at += codes[at + 1] === 5 ? 2 : 4; // of 256 and more colours none is shown
  }
  return style;
}
