// What if: the prediction of one configuration, and of those before it.

import { get, post } from "../api.js";
import { button, el, fill } from "../dom.js";
import { alertOf, clearAlerts, say } from "../messages.js";
import { chart } from "../plots.js";
import { metricsTable, predictedLine, serverFacts } from "../prediction.js";
import { markProblem, panels, settingsOf } from "../settingsform.js";

const KEPT = 4;
const OPEN = ["Study", "Model and engine"];
const SHOWN = 30;

export async function show(root, asked, signal) {
  const [catalogue, presets] = await Promise.all([get("/v1/catalogue", signal), get("/v1/presets", signal)]);
  const result = el("section", { "aria-label": "Prediction" });
  const go = el("button", { class: "primary" }, "predict");
  const form = el("form", { id: "what-if" },
    panels(catalogue.settings.filter((each) => each.predicted), catalogue, presets, OPEN),
    el("div", { class: "buttons" }, go, button("forget earlier ones", () => { earlier.length = 0; drawn.abort(); fill(result); })));
  const earlier = [];
  let predicted = 0;
  let sent = new AbortController();
  // The charts of the last prediction stay until another one succeeds.
  let drawn = new AbortController();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearAlerts();
    markProblem(form, null);
    sent.abort();
    sent = new AbortController();
    go.disabled = true;
    try {
      const settings = settingsOf(form);
      const found = await post("/v1/simulate", { settings }, AbortSignal.any([signal, sent.signal]));
      predicted += 1;
      const flags = form.elements.namedItem("server_arguments").value.trim() || "defaults";
      earlier.push([`${predicted}: ${flags.length > SHOWN ? `${flags.slice(0, SHOWN)}…` : flags}\n${found.model.split("/").at(-1)}\n${found.gpu}`, found]);
      if (earlier.length > KEPT) earlier.shift();
      drawn.abort();
      drawn = new AbortController();
      draw(result, earlier, catalogue, AbortSignal.any([signal, drawn.signal]));
    } catch (error) {
      if (error.name !== "AbortError") {
        alertOf(error);
        markProblem(form, error);
      }
    } finally {
      go.disabled = false;
    }
  });
  root.append(el("h1", {}, "What if"), el("p", {}, "The simulator predicts one configuration; nothing is started. Up to four predictions stay side by side."), form, result);
}

function draw(place, predictions, catalogue, signal) {
  const [, last] = predictions.at(-1);
  const roofline = chart("Roofline of the card", "Memory bounds a run below the slope, arithmetic one below the flat part.", signal);
  const steps = chart("Where the time of a step goes", "Shares of the time in which the engine is busy.", signal);
  fill(place, el("h2", {}, "Prediction"), predictedLine(last), metricsTable(predictions, last.shown, catalogue), serverFacts(last),
    last.figures.roofline && roofline.node, last.figures.steps && steps.node);
  if (last.figures.roofline) roofline.draw(last.figures.roofline).catch(alertOf);
  if (last.figures.steps) steps.draw(last.figures.steps).catch(alertOf);
  say("The prediction is below the form.");
}
