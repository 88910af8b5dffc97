// A study at a glance: what runs now, its progress, its result, and what failed.

import { get, ofStudy } from "../api.js";
import { el, fill, table } from "../dom.js";
import { parts } from "../document.js";
import { clock, configuration, count, duration, secondsBetween } from "../format.js";
import { chart } from "../plots.js";
import { failures } from "./failures.js";
import { progressFigure } from "./progress.js";

export async function show(root, live, signal) {
  const now = el("section", { "aria-label": "Now" });
  const result = el("section", { "aria-label": "Result" });
  const progress = progressOf(live, signal);
  const failed = el("section", { "aria-label": "Failures" });
  const notes = el("section", { "aria-label": "Messages" });
  root.append(now, result, ...(live.sized ? [] : [progress.node]), failed, notes);

  const draw = () => {
    drawNow(now, live);
    progress.draw();
    fill(failed, failures(live));
    drawNotes(notes, live);
  };
  const conclude = async () => {
    if (!live.answered) return void fill(result);
    const page = await get(ofStudy(live.id, "/summary"), signal);
    if (!signal.aborted) fill(result, parts(page, signal));
  };
  live.addEventListener("change", draw, { signal });
  live.addEventListener("ended", () => conclude().catch(() => {}), { signal });
  draw();
  await conclude();
}

function drawNow(place, live) {
  if (!live.active) return void fill(place);
  if (live.sized) return void fill(place, el("h2", {}, "Now"), el("p", {}, live.notes.at(-1)?.text ?? "It starts."));
  const { stage } = live;
  const running = [...live.trials.values()].filter((each) => each.running);
  const plan = stage === null ? "It starts." : `Stage: ${stage.stage}`
    + (stage.subjects.length ? `: ${stage.subjects.join(", ")}` : "")
    + (stage.rounds.length ? `, ${count(stage.rounds.length, "round")}` : "");
  const rows = live.workers.map((worker, index) => {
    const trial = worker.trial === null ? null : running.find((each) => each.number === worker.trial);
    const what = worker.trial === null ? "–" : `#${worker.trial}`;
    return { cells: [`${index + 1}`, worker.device ?? "–", what, worker.phase ?? "idle",
      trial ? duration(secondsBetween(trial.started_at)) : "–", trial ? configuration(trial.config) : "–"] };
  });
  const columns = [{ heading: "worker" }, { heading: "device" }, { heading: "trial" }, { heading: "phase" },
    { heading: "for", right: true }, { heading: "configuration" }];
  fill(place, el("h2", {}, "Now"), el("p", {}, plan), rows.length ? table("Workers", columns, rows) : null);
}

function progressOf(live, signal) {
  const drawing = chart("Progress", "Each point is a trial of the search, by one measurement; crosses failed. The reference scores 1.", signal);
  let by = "trials";
  const choice = el("fieldset", { class: "choice" }, el("legend", { class: "hidden" }, "Axis of the progress"),
    ["trials", "time"].map((each) => {
      const input = el("input", { type: "radio", name: "axis", id: `axis-${each}`, value: each, checked: each === by,
        on: { change: () => { by = each; seen = ""; draw(); } } });
      return el("span", {}, input, el("label", { for: input.id }, `by ${each}`));
    }));
  const node = el("section", { "aria-label": "Progress", hidden: true }, choice, drawing.node);
  let seen = "";
  const draw = () => {
    const trials = live.searched.filter((each) => each.ended_at && each.kind !== "capacity");
    const now = `${by} ${trials.map((each) => `${each.number}:${each.state}:${each.score}`).join()}`;
    if (now === seen) return;
    seen = now;
    const figure = progressFigure(trials, by);
    node.hidden = figure === null;
    if (figure !== null) drawing.draw(figure);
  };
  return { node, draw };
}

function drawNotes(place, live) {
  const kept = place.querySelector("details")?.open ?? false;
  if (!live.notes.length) return void fill(place);
  fill(place, el("details", { open: kept }, el("summary", {}, count(live.notes.length, "message")),
    el("ol", { class: "notes" }, live.notes.toReversed().map((each) =>
      el("li", {}, el("time", { datetime: each.at }, clock(each.at)), ` ${each.text}`)))));
}
