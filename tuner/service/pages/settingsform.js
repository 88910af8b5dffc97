// Fields of settings, which the forms of a study and of a prediction share.

import { el, field, select } from "./dom.js";
import { words } from "./format.js";

const NUMBERS = [
  ["max_concurrency", "Users", "concurrent requests of a closed loop", { min: "1", step: "1" }],
  ["num_prompts", "Requests", "in each benchmark", { min: "1", step: "1" }],
  ["input_len", "Prompt tokens", "", { min: "1", step: "1" }],
  ["output_len", "Answer tokens", "", { min: "1", step: "1" }],
  ["rate", "Requests per second", "of a traffic file", { min: "0", step: "any" }],
  ["temperature", "Temperature", "of the sampling", { min: "0", step: "any" }],
];

/** Return an input for a number. Empty is absent. */
export function numeric(name, label, hint, bounds, properties = {}) {
  return field(label, el("input", { name, type: "number", inputmode: "decimal", ...bounds, ...properties }), hint || null);
}

/** Return the fields of model, preset and card. */
export function targetFields(catalogue, presets, chosen = null) {
  const models = el("datalist", { id: "models" }, catalogue.models.map((each) => el("option", { value: each })));
  const cards = [["", "the preset's"], ...catalogue.cards.map((card) => [card.key, card.name])];
  return [
    field("Preset", select("preset", presets.map((each) => each.preset), chosen), "model, workload, card, objectives and SLOs under one name"),
    field("Model", el("input", { name: "model", list: "models", autocomplete: "off" }), "empty: the preset's"), models,
    field("Card", select("gpu", cards), "that is simulated"),
    field("vLLM version", el("input", { name: "vllm_version", pattern: "\\d+\\.\\d+(\\.\\d+)?", placeholder: "0.25.1" }), "that is simulated; empty: the card's default"),
  ];
}

/** Return the fields of the workload: changes of the preset's, or the content of a traffic file. */
export function workloadFields() {
  const text = el("textarea", { name: "workload", spellcheck: "false", rows: "5" });
  const file = el("input", { type: "file", id: "workload-file", accept: ".yaml,.yml", "aria-label": "Read a traffic file of this computer",
    on: { change: async () => { if (file.files[0]) text.value = await file.files[0].text(); } } });
  return [
    ...NUMBERS.map(([name, label, hint, bounds]) => numeric(name, label, hint, bounds)),
    el("div", { class: "whole" }, field("Traffic file", text, "its content, in YAML; empty: the preset's workload"), file),
  ];
}

const LISTS = ["objective", "slo", "only", "enqueue"];
const FLAGS = ["keep_answers", "bunched_tokens", "ablate"];

/** Return the settings that a form has; an empty field is left out. */
export function settingsOf(form) {
  const settings = {};
  for (const control of form.elements) {
    const { name } = control;
    if (!name || control.dataset.apart !== undefined) continue;
    if (FLAGS.includes(name)) {
      if (control.checked) settings[name] = true;
    } else if (control.value.trim() === "") continue;
    else if (name === "workload") settings.workload = [control.value];
    else if (LISTS.includes(name)) settings[name] = control.value.split("\n").map((line) => line.trim()).filter(Boolean);
    else if (name === "server_arguments") settings[name] = words(control.value);
    else settings[name] = control.type === "number" ? Number(control.value) : control.value.trim();
  }
  return settings;
}

/** Put settings into a form, and return those that it has no field for. */
export function fillForm(form, settings) {
  const rest = {};
  for (const [name, value] of Object.entries(settings)) {
    const control = form.elements.namedItem(name);
    if (!(control instanceof HTMLElement) || control.dataset.apart !== undefined) rest[name] = value;
    else if (FLAGS.includes(name)) control.checked = value;
    else if (name === "workload") [control.value] = value;
    else if (name === "server_arguments") control.value = value.map(quoted).join(" ");
    else if (value !== null) control.value = Array.isArray(value) ? value.join("\n") : value;
  }
  return rest;
}

function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Mark the field of a problem, and put the focus there. */
export function markProblem(form, problem) {
  for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
  const control = problem?.field ? form.elements.namedItem(problem.field) : null;
  if (!(control instanceof HTMLElement)) return;
  control.setAttribute("aria-invalid", "true");
  control.closest("details")?.setAttribute("open", "");
  control.focus();
}
