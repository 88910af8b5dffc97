// Fields of settings, made of what the server's catalogue says of each; the forms of a study and of a prediction share them.

import { el, field, select } from "./dom.js";
import { words } from "./format.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const READ = {
  number: Number,
  text: (text) => text.trim(),
  long: (text) => text.trim(),
  lines,
  words,
  content: (text) => [text],
  pairs: (text) => Object.fromEntries(lines(text).map((line) => [line.split("=", 1)[0], line.slice(line.indexOf("=") + 1)])),
};
const WRITTEN = {
  lines: (value) => value.join("\n"),
  words: (value) => value.map(quoted).join(" "),
  content: ([value]) => value,
  pairs: (value) => Object.entries(value).map(([name, text]) => `${name}=${text}`).join("\n"),
};

/** Return an input for a number. Empty is absent. */
export function numeric(name, label, hint, properties = {}) {
  return field(label, el("input", { name, type: "number", inputmode: "decimal", step: "1", ...properties }), hint);
}

/** Return a group of fields for each panel of settings; those that are not in `open` are folded. */
export function panels(settings, catalogue, presets, open) {
  return [...new Set(settings.map((each) => each.panel))].map((panel) => {
    const own = settings.filter((each) => each.panel === panel).map((each) => fieldOf(each, catalogue, presets));
    const group = el("fieldset", {}, el("legend", {}, panel), el("div", { class: "grid" }, own));
    return open.includes(panel) ? group : el("details", {}, el("summary", {}, panel), group);
  });
}

function fieldOf(each, catalogue, presets) {
  const { name, kind, label, help } = each;
  const more = { name, "data-kind": kind, spellcheck: "false", autocomplete: "off", placeholder: each.shown };
  if (kind === "flag") {
    const control = el("input", { ...more, type: "checkbox", id: `check-${name}`, checked: each.default });
    return el("div", { class: "check" }, control, el("label", { for: control.id }, help));
  }
  if (name === "preset") return field(label, select(name, presets.map((preset) => preset.preset), each.default, more), help);
  if (name === "gpu") return field(label, select(name, [["", each.shown], ...catalogue.cards.map((card) => [card.key, card.name])], null, more), help);
  if (kind === "number") return numeric(name, label, help, { ...more, min: each.least, max: each.most, step: each.step });
  if (kind === "content") return contentOf(label, el("textarea", { ...more, rows: "5" }), help);
  if (kind === "long") return field(label, el("textarea", { ...more, rows: "1" }), help);
  if (kind === "lines" || kind === "pairs") return field(label, el("textarea", { ...more, rows: "3" }), `${help} One a line.`);
  const models = name === "model" ? el("datalist", { id: "models" }, catalogue.models.map((model) => el("option", { value: model }))) : null;
  return [field(label, el("input", { ...more, list: models && models.id }), help), models];
}

function contentOf(label, text, help) {
  const file = el("input", { type: "file", id: "workload-file", accept: ".yaml,.yml", "aria-label": "Read a traffic file of this computer",
    on: { change: async () => { if (file.files[0]) text.value = await file.files[0].text(); } } });
  return el("div", { class: "whole" }, field(label, text, `${help} Its content.`), file);
}

/** Return the settings that a form has; an empty field and a switch that was not changed are left out. */
export function settingsOf(form) {
  const settings = {};
  for (const control of form.elements) {
    const { name, dataset: { kind } } = control;
    if (kind === "flag") {
      if (control.checked !== control.defaultChecked) settings[name] = control.checked;
    } else if (kind && control.value.trim() !== "") settings[name] = READ[kind](control.value);
  }
  return settings;
}

/** Put settings into a form, and return those that it has no field for. */
export function fillForm(form, settings) {
  const rest = {};
  for (const [name, value] of Object.entries(settings)) {
    const control = form.elements.namedItem(name);
    const kind = control instanceof HTMLElement ? control.dataset.kind : undefined;
    if (kind === undefined || (kind === "content" && value.length !== 1)) rest[name] = value;
    else if (kind === "flag") control.checked = value;
    else if (value !== null) control.value = WRITTEN[kind]?.(value) ?? value;
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
