// A small line of scores.

import { svg } from "./dom.js";
import { score as text } from "./format.js";

const WIDTH = 120;
const HEIGHT = 26;
const MOST = 120;

/** Return a drawing of the scores of the trials in their order, and the best so far; null without two scores. */
export function sparkline(scores) {
  const known = scores.map((value, index) => [index, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return null;
  const shown = known.slice(-MOST);
  const values = shown.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [first, last] = [shown[0][0], shown.at(-1)[0]];
  const x = (index) => 2 + (WIDTH - 4) * (index - first) / (last - first);
  const y = (value) => HEIGHT - 3 - (HEIGHT - 6) * (high > low ? (value - low) / (high - low) : 0.5);
  let best = -Infinity;
  const steps = [];
  for (const [index, value] of shown) {
    if (value > best) {
      if (steps.length) steps.push(`H${x(index).toFixed(1)}`);
      steps.push(`${steps.length ? "V" : `M${x(index).toFixed(1)} `}${y(value).toFixed(1)}`);
      best = value;
    }
  }
  steps.push(`H${x(last).toFixed(1)}`);
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img",
    "aria-label": `${known.length} scores, the best is ${text(Math.max(...known.map(([, value]) => value)))}` },
    svg("path", { d: steps.join(""), class: "best" }),
    ...shown.map(([index, value]) => svg("circle", { cx: x(index).toFixed(1), cy: y(value).toFixed(1), r: 1.5 })));
}
