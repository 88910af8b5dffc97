// One study: its head with the verbs, and its parts under addresses of their own.

import { el, fill } from "../dom.js";
import { Live } from "../study/live.js";
import { head } from "../study/head.js";

const PARTS = {
  overview: ["Overview", () => import("../study/overview.js")],
  trials: ["Trials", () => import("../study/trials.js")],
  charts: ["Charts", () => import("../study/charts.js")],
  log: ["Log", () => import("../study/log.js")],
  settings: ["Settings", () => import("../study/settings.js")],
};

const OF_TRIALS = ["trials", "charts"];

export async function show(root, asked, signal) {
  const id = asked.parts[0] ?? "";
  document.title = `${id} – tuner`;
  const live = new Live(id, signal);
  await live.start();
  const nav = el("nav", { class: "parts", "aria-label": "Parts of the study" });
  const place = el("div");
  root.append(head(live, signal), nav, place);
  let leave = null;

  const update = async ({ parts }) => {
    const name = parts[1] in PARTS ? parts[1] : "overview";
    fill(nav, Object.entries(PARTS).filter(([each]) => !live.sized || !OF_TRIALS.includes(each)).map(([each, [label]]) => el("a", {
      href: `#/study/${encodeURIComponent(id)}/${each}`, "aria-current": each === name ? "page" : null,
    }, label)));
    leave?.abort();
    leave = new AbortController();
    const own = AbortSignal.any([signal, leave.signal]);
    const module = await PARTS[name][1]();
    if (!own.aborted) await module.show(fill(place), live, own);
  };
  await update(asked);
  return (next) => update(next);
}
