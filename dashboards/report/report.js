"use strict";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");

// Plotly takes colours from the layout, not from the style sheet.
function colours() {
  const style = getComputedStyle(document.documentElement);
  return { "font.color": style.getPropertyValue("--text").trim(), "hoverlabel.bgcolor": style.getPropertyValue("--card").trim() };
}

function chart(index) {
  return document.getElementById(`chart-${index}`);
}

function paint() {
  figures.forEach((_, index) => Plotly.relayout(chart(index), colours()));
}

function draw() {
  figures.forEach((figure, index) => {
    const layout = structuredClone(figure.layout);
    if (narrow.matches) {
      layout.margin = { ...layout.margin, l: 45, r: 10 };
      const columns = new Set(Object.keys(layout).filter((name) => name.startsWith("xaxis"))).size;
      // Panels side by side would be too narrow to read; the page scrolls them.
      if (columns > 1) layout.width = Math.max(640, 260 * Math.min(columns, 4));
    }
    Plotly.newPlot(chart(index), figure.data, layout, { responsive: true, displaylogo: false });
  });
  paint();
}

if (typeof figures !== "undefined") {
  draw();
  dark.addEventListener("change", paint);
  window.addEventListener("beforeprint", () =>
    figures.forEach((_, index) => Plotly.relayout(chart(index), { "font.color": "#000000" })),
  );
  window.addEventListener("afterprint", paint);
}

for (const button of document.querySelectorAll(".command button")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "copied";
  });
}
