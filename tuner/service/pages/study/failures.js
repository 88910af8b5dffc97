// Failed trials by type, with a message of each.

import { el, table } from "../dom.js";
import { count } from "../format.js";

/** Return the section of what failed; empty without a failure. */
export function failures(live) {
  const groups = new Map();
  for (const trial of live.trials.values()) {
    if (!trial.failure) continue;
    const known = groups.get(trial.failure.kind) ?? { culprit: trial.failure.culprit, message: trial.failure.message, trials: [] };
    known.trials.push(trial.round ? `#${trial.number} round ${trial.round}` : `#${trial.number}`);
    groups.set(trial.failure.kind, known);
  }
  if (!groups.size) return [];
  const rows = [...groups].sort((a, b) => b[1].trials.length - a[1].trials.length).map(([kind, each]) => ({ cells: [
    kind.replaceAll("_", " "), each.culprit ?? "–", String(each.trials.length),
    each.trials.length > 8 ? `${each.trials.slice(0, 8).join(", ")} …` : each.trials.join(", "),
    el("span", { class: "message" }, each.message),
  ] }));
  const total = rows.reduce((sum, each) => sum + Number(each.cells[2]), 0);
  return [el("h2", {}, "Failures"), el("p", { class: "note" }, `${count(total, "trial")} failed; the message is the first one of its type.`),
    table("Failures by type", [{ heading: "type" }, { heading: "culprit" }, { heading: "trials", right: true }, { heading: "which" }, { heading: "message" }], rows)];
}
