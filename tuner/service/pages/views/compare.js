// Two or more studies side by side, as the report of several has them.

import { get, ofStudy, query } from "../api.js";
import { el, fill } from "../dom.js";
import { parts } from "../document.js";
import { attempt } from "../messages.js";
import { badge } from "../states.js";

const MOST = 12;

export async function show(root, asked, signal) {
  const { studies } = await get("/v1/studies?limit=200", signal);
  const usable = studies.filter((each) => each.progress?.trials);
  const chosen = new Set(asked.search.getAll("study"));
  const result = el("div");
  const open = el("a", { class: "button", target: "_blank", rel: "noopener" }, "report");
  const hint = el("p", { class: "note" });
  let stop = new AbortController();

  const draw = async () => {
    stop.abort();
    stop = new AbortController();
    const names = [...chosen];
    history.replaceState(null, "", `#/compare${query({ study: names })}`);
    open.hidden = names.length < 2;
    if (names.length) open.href = ofStudy(names[0], `/report${query({ other: names.slice(1) })}`);
    hint.textContent = names.length < 2 ? "Choose two or more studies." : "";
    if (names.length < 2) return void fill(result);
    const own = AbortSignal.any([signal, stop.signal]);
    const page = await get(`/v1/comparison${query({ study: names })}`, own);
    fill(result, parts(page, own));
  };
  const checks = usable.map((study) => {
    const check = el("input", { type: "checkbox", id: `choose-${study.id}`, checked: chosen.has(study.id), on: { change: () => {
      if (check.checked) chosen.add(study.id);
      else chosen.delete(study.id);
      for (const each of root.querySelectorAll("fieldset input")) each.disabled = chosen.size >= MOST && !each.checked;
      attempt(draw);
    } } });
    return el("span", {}, check, el("label", { for: check.id }, study.id), " ", badge(study.state));
  });
  root.append(el("h1", {}, "Compare studies"),
    el("fieldset", {}, el("legend", {}, "Studies with finished trials, the newest first"),
      usable.length ? el("div", { class: "checks" }, checks) : el("p", {}, "There is none yet.")),
    hint, open, result);
  await draw();
}
