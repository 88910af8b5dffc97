// The trials of a study, with filters and the columns that the reader chooses.

import { button, copyButton, el, field, fill, select, show as open, table } from "../dom.js";
import { configuration, count, currency, duration, number, score, secondsBetween, time } from "../format.js";

const SHOWN = 200;
const KEPT = "tuner-columns";
const FIXED = ["number", "state", "score", "configuration"];
const LABELS = { number: "trial" };

/** Return a metric's name, and of a cost its currency. */
function titleOf(metric, price) {
  const found = currency(metric, price);
  return found ? `${metric} (${found})` : metric;
}

/** Return what a column shows of a trial, as a value to sort by. */
function valueOf(trial, column) {
  if (column === "configuration") return trial.label ?? configuration(trial.config);
  if (column === "failure") return trial.failure ? `${trial.failure.kind}: ${trial.failure.message}` : null;
  if (column === "duration") return trial.started_at && trial.ended_at ? secondsBetween(trial.started_at, trial.ended_at) : null;
  if (column === "ended") return trial.ended_at;
  if (["number", "round", "kind", "state", "score"].includes(column)) return trial[column];
  if (column.startsWith("flag ")) return trial.config[column.slice(5)] ?? null;
  return trial.metrics?.[column] ?? trial.values?.[column] ?? null;
}

function textOf(trial, column, value) {
  if (column === "score") return score(value);
  if (column === "duration") return duration(value);
  if (column === "ended") return time(value);
  if (typeof value === "number") return number(value);
  return value === null || value === undefined ? "–" : String(value);
}

export async function show(root, live, signal) {
  let sort = { column: "number", down: false };
  let most = SHOWN;
  const chosen = new Set(JSON.parse(localStorage.getItem(KEPT) ?? "null") ?? ["objectives"]);
  const text = el("input", { type: "search", name: "find" });
  const state = select("of", [["", "all states"], "ok", "infeasible", "cut", "failed", "running"]);
  const rounds = el("input", { type: "checkbox", id: "rounds" });
  const columns = el("details", { class: "columns" });
  const list = el("div");
  root.append(
    el("h2", {}, "Trials"),
    el("form", { class: "filters", on: { submit: (event) => event.preventDefault() } },
      field("Search", text), field("State", state),
      el("div", { class: "check" }, rounds, el("label", { for: "rounds" }, "with rounds")), columns),
    list);

  const all = () => [...live.trials.values()];
  const objectives = () => live.opened?.objectives ?? [];
  const shownColumns = () => {
    const more = [...chosen].flatMap((each) => (each === "objectives" ? objectives() : [each]));
    return [...new Set(["number", ...(rounds.checked ? ["round"] : []), "state", "score", ...more, "configuration"])];
  };
  const drawColumns = () => {
    const metrics = new Set(all().flatMap((each) => Object.keys(each.metrics ?? {})));
    const flags = new Set(all().flatMap((each) => Object.keys(each.config)));
    const names = ["objectives", "kind", "duration", "ended", "failure", ...[...metrics].sort(), ...[...flags].sort().map((each) => `flag ${each}`)];
    const key = names.join();
    if (columns.dataset.names === key) return;
    columns.dataset.names = key;
    fill(columns, el("summary", {}, "columns"), el("div", { class: "checks" }, names.map((name) => {
      const check = el("input", { type: "checkbox", id: `column-${name}`, checked: chosen.has(name), on: { change: () => {
        if (check.checked) chosen.add(name);
        else chosen.delete(name);
        localStorage.setItem(KEPT, JSON.stringify([...chosen]));
        draw();
      } } });
      return el("span", {}, check, el("label", { for: check.id }, name));
    })));
  };
  const rows = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all().filter((each) => (rounds.checked || each.round === 0) && (!state.value || each.state === state.value)
      && words.every((word) => `#${each.number} ${each.kind} ${each.state} ${valueOf(each, "configuration")} ${valueOf(each, "failure") ?? ""}`.toLowerCase().includes(word)));
    const sign = sort.down ? -1 : 1;
    return found.sort((a, b) => {
      const [x, y] = [valueOf(a, sort.column), valueOf(b, sort.column)];
      if (x === y) return a.number - b.number || a.round - b.round;
      if (x === null || x === undefined) return 1; // absent is last either way
      if (y === null || y === undefined) return -1;
      return sign * (x < y ? -1 : 1);
    });
  };
  const heading = (column) => button(LABELS[column] ?? titleOf(column.replace(/^flag /, ""), live.opened?.price), () => {
    sort = { column, down: sort.column === column ? !sort.down : column !== "number" };
    draw();
    list.querySelector(`[data-column="${CSS.escape(column)}"]`)?.focus();
  }, { class: "sort", "data-column": column });
  const draw = () => {
    drawColumns();
    const found = rows();
    const names = shownColumns();
    const heads = names.map((column) => ({ heading: heading(column), right: !["state", "configuration", "kind", "failure", "ended"].includes(column),
      sort: sort.column === column ? (sort.down ? "descending" : "ascending") : null }));
    const body = found.slice(0, most).map((trial) => ({ faint: trial.state === "failed", cells: names.map((column) => (column === "number"
      ? button(`#${trial.number}`, () => details(trial, live.opened?.price), { class: "link", "aria-label": `trial ${trial.number} in full` })
      : el("span", { class: FIXED.includes(column) ? column : null }, textOf(trial, column, valueOf(trial, column))))) }));
    const focused = document.activeElement?.dataset?.column;
    const left = list.querySelector(".scroll")?.scrollLeft ?? 0;
    fill(list, el("p", { class: "note" }, `${count(found.length, "trial")}; scores of the search choose the finalists, rounds decide.`),
      table("Trials", heads, body),
      found.length > most && button(`show ${Math.min(SHOWN, found.length - most)} more`, () => { most += SHOWN; draw(); }));
    list.querySelector(".scroll").scrollLeft = left;
    if (focused) list.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
  };
  for (const control of [text, state, rounds]) control.addEventListener("input", draw);
  live.addEventListener("change", draw, { signal });
  draw();
}

/** Open everything that is known of a trial; costs follow from a price. */
function details(trial, price) {
  const pairs = (caption, values) => (Object.keys(values ?? {}).length === 0 ? [] : [el("h3", {}, caption),
    table(caption, [{ heading: "name" }, { heading: "value" }], Object.entries(values).map(([name, value]) => ({ cells: [titleOf(name, price),
      typeof value === "number" ? number(value) : String(value ?? "unset")] })))]);
  const config = JSON.stringify(trial.config);
  open(`Trial #${trial.number}${trial.round ? `, round ${trial.round}` : ""}`,
    el("p", {}, `${trial.kind}, ${trial.state}${trial.score === null ? "" : `, score ${score(trial.score)}`}`,
      trial.provenance ? `, ${trial.provenance}` : ""),
    trial.failure ? el("p", { class: "message" }, `${trial.failure.kind} (${trial.failure.culprit ?? "culprit unknown"}): ${trial.failure.message}`) : null,
    trial.cut ? el("p", { class: "message" }, `cut short: ${trial.cut}`) : null,
    pairs("Configuration", trial.config),
    el("div", { class: "command" }, copyButton(config), el("pre", { tabindex: "0" }, el("code", {}, config))),
    pairs("Constraints: 0 or less is met", trial.constraints), pairs("Metrics", trial.metrics));
}
