// The form that submits a study, with a preview of what it would search and of its predicted defaults.

import { get, ofStudy, post } from "../api.js";
import { button, el, field, fill, select, table } from "../dom.js";
import { number } from "../format.js";
import { alertOf, clearAlerts, say } from "../messages.js";
import { metricsTable, predictedLine, serverFacts, spaceParts } from "../prediction.js";
import { fillForm, markProblem, numeric, panels, settingsOf } from "../settingsform.js";

const SIMULATED = "simulated";
const OPEN = ["Study", "Objectives and SLOs"];

export async function show(root, asked, signal) {
  const [catalogue, presets] = await Promise.all([get("/v1/catalogue", signal), get("/v1/presets", signal)]);
  const preview = el("section", { "aria-label": "Preview", "aria-live": "polite" });
  const about = el("div", { class: "note" });
  const form = formOf(catalogue, presets, about);
  const preset = form.elements.namedItem("preset");
  const kind = form.elements.namedItem("kind");
  const describe = () => {
    const found = presets.find((each) => each.preset === preset.value);
    fill(about, el("p", {}, found.description), el("p", {}, `Model ${found.model} on ${found.hardware}; objectives ${found.objectives.join(", ")}; SLOs ${found.slos.join(", ") || "none"}.`));
    form.elements.namedItem("objective").placeholder = found.objectives.join("\n");
    form.elements.namedItem("slo").placeholder = found.slos.join("\n");
    const simulated = kind.value === SIMULATED;
    for (const name of ["gpu", "vllm_version"]) form.elements.namedItem(name).disabled = !simulated;
  };
  preset.addEventListener("change", describe);
  kind.addEventListener("change", describe);

  const run = async (action) => {
    clearAlerts();
    markProblem(form, null);
    try {
      await action(bodyOf(form));
    } catch (error) {
      if (error.name === "AbortError") return;
      alertOf(error);
      markProblem(form, error);
    }
  };
  const look = button("preview", () => form.reportValidity() && run(async (body) => {
    look.disabled = true;
    fill(preview, el("p", {}, "Predicting …"));
    try {
      drawPreview(preview, await post("/v1/studies:preview", body, signal), catalogue);
    } catch (error) {
      fill(preview);
      throw error;
    } finally {
      look.disabled = false;
    }
  }));
  form.append(el("div", { class: "buttons" }, look, el("button", { class: "primary" }, "submit")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(async (body) => {
      const found = await post("/v1/studies", body, signal);
      say(`${found.id} is submitted.`);
      location.hash = `#/study/${encodeURIComponent(found.id)}`;
    });
  });
  root.append(el("h1", {}, "Submit a study"), form, preview);
  const like = asked.search.get("like");
  if (like !== null) await fillLike(form, like);
  describe();
}

async function fillLike(form, id) {
  const study = await get(ofStudy(id));
  const { kind, gpus, priority, shared } = form.elements;
  [kind.value, gpus.value, priority.value, shared.checked] = [study.kind, study.gpus, study.priority, study.shared];
  const { engine, ...rest } = fillForm(form, study.settings);
  if (Object.keys(rest).length) form.elements.more.value = JSON.stringify(rest, null, 1);
}

function formOf(catalogue, presets, about) {
  const kinds = Object.entries(catalogue.kinds).map(([name, amount]) => [name, name === SIMULATED ? `simulated (${amount} at once)` : `${name}: ${amount} of this server`]);
  const settings = catalogue.settings.filter((each) => each.name !== "engine");  // the devices decide
  return el("form", { id: "submit" },
    el("fieldset", {}, el("legend", {}, "Queue"), el("div", { class: "grid" },
      field("Name", el("input", { name: "id", pattern: "[a-z0-9][a-z0-9._\\-]{0,99}", maxlength: "100" }), "lower case; empty: one is made up"),
      field("Devices", select("kind", kinds, SIMULATED in catalogue.kinds ? SIMULATED : kinds[0][0]), "simulated studies need no GPU"),
      numeric("gpus", "Devices at once", null, { min: "1", value: "1" }),
      numeric("priority", "Priority", "larger is sooner, among your own", { min: "-100", max: "100", value: "0" }),
      catalogue.webhooks.length > 0 && field("Message at its end", select("webhook", [["", "the server's choice"], ...catalogue.webhooks]), "to a webhook of this server"),
      el("div", { class: "check" }, el("input", { type: "checkbox", name: "shared", id: "check-shared" }), el("label", { for: "check-shared" }, "every token may read it")),
      el("div", { class: "whole" }, about))),
    panels(settings, catalogue, presets, OPEN),
    el("details", {}, el("summary", {}, "More"), field("Other settings", el("textarea", { name: "more", rows: "3", spellcheck: "false", placeholder: "{\"files\": {}}" }), "JSON; keywords of tuner.optimize")));
}

/** Return the body of a submission.
 *
 * Throws: an error for other settings that are not a JSON object.
 */
function bodyOf(form) {
  const { id, kind, gpus, priority, shared, more } = form.elements;
  let other = {};
  if (more.value.trim()) {
    try {
      other = JSON.parse(more.value);
    } catch (error) {
      throw Object.assign(new Error(`other settings: ${error.message}; give a JSON object`), { field: "more" });
    }
  }
  const settings = { ...settingsOf(form), ...other };
  if (settings.size) delete settings.engine; // what is measured decides
  else if (kind.value === SIMULATED) settings.engine = SIMULATED;
  else for (const name of ["gpu", "vllm_version"]) delete settings[name];
  const webhook = form.elements.namedItem("webhook")?.value;
  return { ...(id.value ? { id: id.value } : {}), ...(webhook ? { webhook } : {}), settings, kind: kind.value, gpus: Number(gpus.value), priority: Number(priority.value), shared: shared.checked };
}

function drawPreview(place, found, catalogue) {
  const badges = { true: ["met", "met"], false: ["missed", "missed"], null: ["", "not predicted"] };
  fill(place, el("h2", {}, "Preview"),
    el("p", {}, `The study would be ${found.would_be} on ${found.card}. The space is that of vLLM ${found.vllm}`
      + `${found.would_be === "measured" ? "; the installed one may differ" : ""}.`),
    el("h3", {}, "Predicted defaults"),
    found.defaults === null ? el("p", {}, `There is no prediction: ${found.refusal}.`) : [
      predictedLine(found.defaults), metricsTable([["defaults", found.defaults]], found.shown, catalogue),
      el("h3", {}, "SLOs"), found.slos.length ? table("SLOs", [{ heading: "SLO" }, { heading: "predicted", right: true }, { heading: "" }],
        found.slos.map((each) => ({ cells: [each.slo, number(each.value), el("span", { class: `badge ${badges[each.met][0]}` }, badges[each.met][1])] }))) : el("p", {}, "There are none."),
      serverFacts(found.defaults)],
    spaceParts(found));
  say("The preview is below the form.");
}
