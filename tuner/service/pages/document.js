// Parts of reports as the server sends them: sentences, tables, commands and figures.

import { copyButton, el, table } from "./dom.js";
import { alertOf } from "./messages.js";
import { chart } from "./plots.js";

/** Return the elements of a page of a report. */
export function parts(page, signal) {
  return [
    page.simulated ? el("p", { class: "banner" }, "Simulated, not measured: every number here is a prediction of the simulator.") : null,
    el("p", { class: "verdict" }, page.verdict),
    page.tiles.length ? el("div", { class: "tiles" }, page.tiles.map((tile) => el("div", { class: "tile" },
      el("span", { class: "label" }, tile.label), el("strong", {}, tile.value), el("span", { class: "detail" }, tile.detail)))) : null,
    page.sections.map((section) => el("section", {}, el("h2", {}, section.title),
      section.source ? el("p", { class: "note" }, section.source) : null,
      section.parts.map((part) => drawn(part, signal)))),
  ];
}

function drawn(part, signal) {
  if (part.kind === "text") return el("p", {}, part.text.split("`").map((text, index) => (index % 2 ? el("code", {}, text) : text)));
  if (part.kind === "command") {
    return el("div", {}, el("h3", {}, part.title),
      el("div", { class: "command" }, copyButton(part.text), el("pre", { tabindex: "0" }, el("code", {}, part.text))));
  }
  if (part.kind === "table") {
    const rows = part.rows.map((cells, index) => ({ cells, faint: part.faint.includes(index) }));
    return el("div", {}, el("h3", {}, part.title), part.note ? el("p", { class: "note" }, part.note) : null,
      table(part.title, part.columns, rows));
  }
  const { node, draw } = chart(part.title, part.note, signal);
  draw(part.figure).catch(alertOf);
  return node;
}
