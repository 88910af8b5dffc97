"use strict";

const PRINTED = 680; // pixels between the margins of A4 and Letter
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");

// Plotly takes colours from the figure, not from the style sheet.
function paint() {
  const style = getComputedStyle(document.documentElement);
  const [text, card] = ["--text", "--card"].map((name) => style.getPropertyValue(name).trim());
  figures.forEach((figure, index) => recolour(figure, index, text, { "hoverlabel.bgcolor": card }));
}

function recolour(figure, index, text, more) {
  Plotly.relayout(chart(index), { "font.color": text, ...more });
  const own = figure.data.flatMap((trace, place) => (trace.meta === "page text" ? [place] : []));
  if (own.length) {
    own.forEach((place) => (chart(index).data[place].textfont = { color: text }));
    Plotly.redraw(chart(index)); // restyle would leave the drawn texts as they are
  }
}

function chart(index) {
  return document.getElementById(`chart-${index}`);
}

// Panels side by side and many columns would be too narrow to read; the page scrolls them.
function leastWidth(layout) {
  const columns = new Set(Object.keys(layout).filter((name) => name.startsWith("xaxis"))).size;
  return Math.max(layout.meta?.least_width ?? 0, columns > 1 ? Math.max(640, 260 * Math.min(columns, 4)) : 0);
}

function draw() {
  figures.forEach((figure, index) => {
    const layout = structuredClone(figure.layout);
    if (narrow.matches) {
      layout.margin = { ...layout.margin, l: 45, r: 10 };
      const width = leastWidth(layout);
      if (width > chart(index).clientWidth) layout.width = width;
    }
    // Without a pointer that hovers, plotly's buttons are always there; on a narrow page they would cover the legend.
    const displayModeBar = narrow.matches ? false : "hover";
    Plotly.newPlot(chart(index), figure.data, layout, { responsive: true, displaylogo: false, displayModeBar });
  });
  paint();
}

function printed() {
  figures.forEach((figure, index) => recolour(figure, index, "#000000", { width: PRINTED }));
}

function shown() {
  figures.forEach((_, index) => Plotly.relayout(chart(index), { width: null, autosize: true }));
  paint();
}

if (typeof figures !== "undefined") {
  draw();
  dark.addEventListener("change", paint);
  window.addEventListener("beforeprint", printed);
  window.addEventListener("afterprint", shown);
}

for (const button of document.querySelectorAll(".command button")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "copied";
  });
}
