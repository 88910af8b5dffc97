// The figure of the progress while a study runs; colours and marks are those of the report.

import { configuration } from "../format.js";

const BLUE = "#4c8bc4";
const ORANGE = "#e69f00";
const RED = "#d1495b";
const GREEN = "#2e9e6b";
const GREY = "#8a8a8a";
const GRID = "rgba(128,128,128,0.25)";
const MOST = 160;
/** Up to this many trials, Plotly would put ticks between their numbers. */
const FEW = 10;

/** Plotly reads some tags in texts; as entities they are texts again. */
export function plain(text) {
  return text.replace(/[&<>]/g, (character) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[character]);
}

function hover(trial) {
  const ended = trial.failure ? `${trial.failure.kind}: ${trial.failure.message}` : trial.cut;
  const text = ended ?? configuration(trial.config);
  return plain(text.length > MOST ? `${text.slice(0, MOST)}…` : text);
}

/** Return the ticks of an axis of a few numbers of trials: one for each number. */
function wholeTicks(numbers) {
  const [first, last] = [Math.min(...numbers), Math.max(...numbers)];
  return last - first < FEW ? { dtick: 1, range: [first - 0.5, last + 0.5] } : {};
}

/** Return the figure of trials that ended, by their number or by the time of their end; null without a score. */
export function progressFigure(trials, by) {
  const scored = trials.filter((each) => each.score);
  if (!scored.length) return null;
  const x = (trial) => (by === "time" ? trial.ended_at.slice(0, 23) : trial.number);
  const ordered = by === "time" ? trials.toSorted((a, b) => a.ended_at.localeCompare(b.ended_at)) : trials;
  const lowest = Math.min(1, ...scored.map((each) => each.score));
  const marks = (state, name, marker, y = null) => {
    const group = ordered.filter((each) => each.state === state && (!y || each.score));
    return { type: "scatter", mode: "markers", name, x: group.map(x), y: group.map(y ?? (() => lowest)), marker: { size: 9, ...marker },
      text: group.map((each) => `#${each.number}: ${hover(each)}`),
      hovertemplate: `%{text}${y ? "<br>score %{y:.3f}" : ""}<extra></extra>` };
  };
  let best = null;
  const steps = ordered.map((each) => {
    if (each.state === "ok" && each.score > (best ?? 0)) best = each.score;
    return best;
  });
  const data = [
    marks("ok", "meets the SLOs", { color: BLUE }, (each) => each.score),
    marks("infeasible", "missed an SLO", { color: ORANGE, symbol: "circle-open", line: { width: 2 } }, (each) => each.score),
    marks("cut", "cut short", { color: GREY, symbol: "triangle-down-open" }),
    marks("failed", "failed", { color: RED, symbol: "x" }),
    { type: "scatter", mode: "lines", name: "best so far", x: ordered.map(x), y: steps, hoverinfo: "skip",
      line: { shape: "hv", color: GREEN, width: 1.5 } },
  ].filter((each) => each.x.length && each.y.some((value) => value !== null));
  const axis = { automargin: true, zeroline: false, gridcolor: GRID };
  return { data, layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: 380, font: { family: "system-ui, sans-serif", size: 12 },
    margin: { l: 60, r: 20, t: 30, b: 50 }, legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0 },
    xaxis: by === "time" ? { ...axis, title: { text: "time (UTC)" }, type: "date" }
      : { ...axis, title: { text: "trial" }, type: "linear", ...wholeTicks(trials.map((each) => each.number)) },
    yaxis: { ...axis, title: { text: "score" } },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { dash: "dot", color: GREY, width: 1 } }],
  } };
}
