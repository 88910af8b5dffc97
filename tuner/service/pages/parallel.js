// Parallel coordinates drawn by lines. Plotly's own trace of them compiles code, which the content security policy forbids.

import { plain } from "./study/progress.js";

/** Cividis, which colour-blind readers can read; the report's scale. */
const SCALE = [[0, 32, 76], [40, 61, 108], [85, 91, 109], [124, 123, 120], [165, 156, 116], [211, 193, 98], [255, 233, 69]];
const LEVELS = 24;
const AXIS = 95;
const GREY = "rgba(128,128,128,0.6)";

function colour(share) {
  const place = share * (SCALE.length - 1);
  const below = Math.min(Math.floor(place), SCALE.length - 2);
  const mixed = SCALE[below].map((value, index) => Math.round(value + (SCALE[below + 1][index] - value) * (place - below)));
  return `rgb(${mixed.join()})`;
}

function share(value, low, high) {
  return high > low ? (value - low) / (high - low) : 0.5;
}

/** Return the axis of a dimension: its range, and ticks as pairs of a value and a text. */
function axisOf(dimension) {
  const [low, high] = [Math.min(...dimension.values), Math.max(...dimension.values)];
  const ticks = dimension.tickvals
    ? dimension.tickvals.map((value, index) => [value, dimension.ticktext[index]])
    : [low, (low + high) / 2, high].map((value) => [value, value.toFixed(2)]);
  return { label: dimension.label, values: dimension.values, low, high, ticks, names: new Map(ticks) };
}

/** Return a figure whose parallel coordinates are lines: one for each trial, in the colour of its score. */
export function withLines(figure) {
  const trace = figure.data.find((each) => each.type === "parcoords");
  if (trace === undefined) return figure;
  const axes = trace.dimensions.map(axisOf);
  const scores = trace.line.color;
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const levels = new Map();
  scores.forEach((score, trial) => {
    const level = Math.round(share(score, low, high) * (LEVELS - 1));
    if (!levels.has(level)) levels.set(level, { x: [], y: [], text: [] });
    const line = levels.get(level);
    axes.forEach((axis, place) => {
      line.x.push(place);
      line.y.push(share(axis.values[trial], axis.low, axis.high));
      line.text.push(`${axis.label}: ${plain(axis.names.get(axis.values[trial]) ?? String(Number(axis.values[trial].toPrecision(4))))}<br>score ${score.toFixed(3)}`);
    });
    for (const each of [line.x, line.y, line.text]) each.push(null); // a gap between two trials
  });
  const data = [...levels].sort(([a], [b]) => a - b).map(([level, line]) => ({ type: "scatter", mode: "lines+markers", ...line,
    line: { color: colour(level / (LEVELS - 1)), width: 1.6 }, marker: { size: 4 }, hovertemplate: "%{text}<extra></extra>", showlegend: false }));
  data.push({ type: "scatter", x: [null], y: [null], mode: "markers", showlegend: false,
    marker: { color: [low, high], cmin: low, cmax: high, colorscale: "Cividis", showscale: true, colorbar: { title: { text: "score" } } } });
  const annotations = axes.flatMap((axis, place) => axis.ticks.map(([value, text]) => ({ x: place, y: share(value, axis.low, axis.high),
    text: plain(text), showarrow: false, xanchor: "left", xshift: 4, font: { size: 10 } })));
  const shapes = axes.map((_, place) => ({ type: "line", x0: place, x1: place, y0: 0, y1: 1, layer: "below", line: { color: GREY, width: 1 } }));
  const ticks = { tickvals: axes.map((_, place) => place), ticktext: axes.map((axis) => plain(axis.label)) };
  return { data, narrowest: AXIS * axes.length, layout: { ...figure.layout, annotations, shapes, hovermode: "closest",
    margin: { l: 20, r: 20, t: 110, b: 20 },
    xaxis: { ...ticks, side: "top", tickangle: -25, showgrid: false, zeroline: false, range: [-0.2, axes.length - 0.4], fixedrange: true },
    yaxis: { visible: false, range: [-0.04, 1.04], fixedrange: true } } };
}
