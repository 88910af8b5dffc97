// Charts by Plotly, whose script is loaded with the first one.

import { el } from "./dom.js";
import { withLines } from "./parallel.js";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");
let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const address = document.querySelector("meta[name=plotly]").content;
    document.head.append(el("script", { src: address, on: {
      load: () => resolve(window.Plotly),
      error: () => reject(new Error("the script that draws charts did not load; reload the page")),
    } }));
  });
  return loading;
}

/** Plotly takes colours from the layout, not from the style sheet. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  return { "font.color": style.getPropertyValue("--text").trim(), "hoverlabel.bgcolor": style.getPropertyValue("--card").trim() };
}

function layoutOf(figure) {
  const layout = structuredClone(figure.layout);
  if (narrow.matches) {
    layout.margin = { ...layout.margin, l: 45, r: 10 };
    const columns = new Set(Object.keys(layout).filter((name) => name.startsWith("xaxis"))).size;
    // Panels side by side would be too narrow to read; the page scrolls them.
    if (columns > 1) layout.width = Math.max(640, 260 * Math.min(columns, 4));
    if (figure.narrowest) layout.width = figure.narrowest;
  }
  const { "font.color": color, "hoverlabel.bgcolor": ground } = colours();
  layout.font = { ...layout.font, color };
  layout.hoverlabel = { ...layout.hoverlabel, bgcolor: ground };
  return layout;
}

/** Return a figure with its title and note; `draw` gives it a Plotly figure, also again. It ends with the signal. */
export function chart(title, note, signal) {
  const place = el("div", { class: "chart", role: "img", "aria-label": title });
  const node = el("figure", {}, el("h3", {}, title), note ? el("figcaption", {}, note) : null,
    el("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" }, place));
  let drawn = false;
  const paint = () => drawn && window.Plotly.relayout(place, colours());
  dark.addEventListener("change", paint, { signal });
  signal.addEventListener("abort", () => drawn && window.Plotly.purge(place));
  const draw = async (figure) => {
    const Plotly = await plotly();
    if (signal.aborted) return;
    const shown = withLines(figure);
    await Plotly.react(place, shown.data, layoutOf(shown), { responsive: true, displayModeBar: false });
    drawn = true;
  };
  return { node, draw };
}
