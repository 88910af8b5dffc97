// The list of studies: filters, state, progress, scores, and what a waiting one waits for.

import { get, query } from "../api.js";
import { button, el, field, fill, select, table } from "../dom.js";
import { count, duration, score, secondsBetween, time } from "../format.js";
import { repeat } from "../messages.js";
import { current } from "../session.js";
import { sparkline } from "../sparkline.js";
import { ACTIVE, badge, ENDED, STATES } from "../states.js";

const EVERY_MS = 3000;
const PAGE = 50;
const GROUPS = { all: [], waiting: ["QUEUED"], active: ACTIVE, ended: ENDED };

const COLUMNS = [
  { heading: el("span", { class: "hidden" }, "compare") }, { heading: "study" }, { heading: "state" }, { heading: "owner" },
  { heading: "trials", right: true }, { heading: "best score", right: true }, { heading: "scores" },
  { heading: "devices" }, { heading: "submitted" }, { heading: "runs for", right: true },
];

export async function show(root, asked, signal) {
  const chosen = new Set();
  const pages = [null];
  let seen = "";
  const text = el("input", { name: "text", type: "search", maxlength: "100", value: asked.search.get("text") ?? "" });
  const state = select("state", [["all", "all states"], ["waiting", "waiting"], ["active", "running"], ["ended", "ended"],
    ...STATES.map((each) => [each, each.toLowerCase()])], asked.search.get("state") ?? "all");
  const mine = el("input", { type: "checkbox", id: "mine" });
  const list = el("div");
  const below = el("div", { class: "buttons" });
  const compare = button("compare", () => {
    location.hash = `#/compare${query({ study: [...chosen] })}`;
  }, { disabled: true });

  const choose = (id, checked) => {
    if (checked) chosen.add(id);
    else chosen.delete(id);
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "compare" : `compare ${chosen.size}`;
  };

  const refresh = async () => {
    const states = GROUPS[state.value] ?? [state.value];
    const owner = mine.checked ? current().owner : null;
    const page = await get(`/v1/studies${query({ text: text.value, state: states, owner, after: pages.at(-1), limit: PAGE })}`, signal);
    const ids = page.studies.map((each) => each.id);
    const scores = ids.length ? await get(`/v1/scores${query({ study: ids })}`, signal) : {};
    const now = JSON.stringify([page, scores]);
    if (now === seen && !page.studies.some((each) => ACTIVE.includes(each.state))) return;
    seen = now;
    drawList(list, page.studies, scores, chosen, choose);
    fill(below,
      pages.length > 1 && button("newer", () => { pages.pop(); again(); }),
      page.next !== null && button("older", () => { pages.push(page.next); again(); }));
  };
  const again = () => refresh();
  const restart = () => {
    pages.length = 1;
    again();
  };
  for (const control of [state, mine]) control.addEventListener("change", restart);
  text.addEventListener("input", restart);

  root.append(
    el("h1", {}, "Studies"),
    el("form", { class: "filters", on: { submit: (event) => event.preventDefault() } },
      field("Search", text), field("State", state),
      el("div", { class: "check" }, mine, el("label", { for: "mine" }, "only mine")), compare),
    list, below);
  await repeat(refresh, EVERY_MS, signal);
}

function drawList(list, studies, scores, chosen, choose) {
  const focused = list.contains(document.activeElement) ? document.activeElement.id : null;
  if (!studies.length) {
    fill(list, el("p", {}, "There is no such study. ", el("a", { href: "#/submit" }, "Submit one"), "."));
    return;
  }
  const box = table("Studies", COLUMNS, studies.map((study) => ({ cells: cellsOf(study, scores[study.id] ?? [], chosen, choose) })), { class: "studies-list" });
  const left = list.firstElementChild?.scrollLeft ?? 0;
  fill(list, el("p", { class: "note" }, count(studies.length, "study", "studies")), box);
  box.scrollLeft = left;
  if (focused) document.getElementById(focused)?.focus();
}

function cellsOf(study, scores, chosen, choose) {
  const check = el("input", { type: "checkbox", id: `choose-${study.id}`, "aria-label": `compare ${study.id}`,
    on: { change: () => choose(study.id, check.checked) } });
  check.checked = chosen.has(study.id);
  const { progress } = study;
  const why = study.waits_for ?? study.reason;
  return [
    check,
    el("a", { href: `#/study/${encodeURIComponent(study.id)}`, id: `open-${study.id}` }, study.id),
    el("div", {}, badge(study.state), why ? el("div", { class: "why", title: why }, why) : null),
    study.owner + (study.shared ? " (shared)" : ""),
    progress === null ? "–" : `${progress.trials}${progress.failed ? ` (${progress.failed} failed)` : ""}`,
    score(progress?.score),
    sparkline(scores) ?? "",
    study.granted.length ? study.granted.join(", ") : `${study.gpus} × ${study.kind}`,
    time(study.created_at),
    duration(secondsBetween(study.started_at, study.ended_at)),
  ];
}
