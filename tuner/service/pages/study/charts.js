// The figures of the report, as far as the study has numbers for them.

import { get, ofStudy, query } from "../api.js";
import { button, el, fill } from "../dom.js";
import { alertOf, say } from "../messages.js";
import { chart } from "../plots.js";

/** Figures that need the importance of the parameters, which takes seconds; they come second. */
const SLOW = ["importance", "slices", "parallel"];

/** The report's figure can be brushed, this page's has labels instead. */
const NOTES = { parallel: "A line is a trial in the colour of its score; point at it to see its values." };

export async function show(root, live, signal) {
  const { charts } = await get("/v1/catalogue", signal);
  const places = new Map(charts.map((name) => [name, el("div")]));
  const hint = el("p", { class: "note" });
  const again = button("draw again", () => draw(), { hidden: true });
  root.append(el("h2", {}, "Charts"), hint, again, ...places.values());
  let stop = new AbortController();

  const draw = async () => {
    stop.abort();
    stop = new AbortController();
    const own = AbortSignal.any([signal, stop.signal]);
    if (!live.searched.some((each) => each.ended_at)) {
      hint.textContent = "The study has no finished trial yet.";
      again.hidden = false;
      return;
    }
    again.disabled = true;
    hint.textContent = "The server draws the charts …";
    let drawn = 0;
    for (const names of [charts.filter((each) => !SLOW.includes(each)), SLOW]) {
      const figures = await get(ofStudy(live.id, `/charts${query({ name: names })}`), own);
      for (const name of names) {
        const found = figures[name];
        if (!found) {
          fill(places.get(name));
          continue;
        }
        const drawing = chart(found.title, NOTES[name] ?? found.note, own);
        fill(places.get(name), drawing.node);
        drawing.draw(found.figure).catch(alertOf);
        drawn += 1;
      }
    }
    hint.textContent = `${drawn} of ${charts.length} charts have numbers in this study.`;
    again.hidden = live.ended;
    again.disabled = false;
    say("The charts are drawn.");
  };
  live.addEventListener("ended", () => draw().catch(() => {}), { signal });
  await draw();
}
