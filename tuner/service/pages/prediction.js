// Predictions of the simulator: metrics with their error bands, and the place on the roofline.

import { el, table } from "./dom.js";
import { count, currency, number, duration } from "./format.js";

const COST = "cost_per_million_output_tokens";

/** Return the line that says what is predicted. */
export function predictedLine(found) {
  return el("p", { class: "banner" }, `Predicted, not measured: vLLM ${found.vllm} serving ${found.model} on ${found.gpus === 1 ? "one" : `${found.gpus} ×`} ${found.gpu}.`);
}

/** Return the table of some metrics of predictions: a column for each, with the error band of nine in ten recorded runs if there is one. */
export function metricsTable(predictions, shown, catalogue) {
  const [, last] = predictions.at(-1);
  const bands = predictions.every(([, each]) => each.no_error_band === null) ? last.error_bands : {};
  const names = [...shown, COST].filter((name) => predictions.some(([, each]) => each[name] !== null && each[name] !== undefined));
  const known = Object.keys(bands).length > 0;
  const columns = [{ heading: "metric" }, { heading: "unit" }, ...predictions.map(([name]) => ({ heading: name, right: true })),
    ...(known ? [{ heading: "nine of ten errors were below", right: true }] : [])];
  return table("Predicted metrics", columns, names.map((name) => ({ cells: [name, `${currency(name, last.price)} ${catalogue.metrics[name]?.unit ?? ""}`.trim(),
    ...predictions.map(([, each]) => number(each[name])), ...(known ? [bands[name] ? `${Math.round(100 * bands[name])} %` : "–"] : [])] })));
}

/** Return what else is known of a prediction, as a list. */
export function serverFacts(found) {
  const roof = found.roofline;
  const side = roof.intensity < roof.ridge ? "below" : "above";
  const facts = [
    ["requests", `${number(found.completed)} of ${number(found.num_prompts)} completed in ${duration(found.duration)}`],
    ["model", found.model_layers],
    ["KV cache", `${number(found.kv_cache_tokens)} tokens`],
    ["preemptions", number(found.preemptions)],
    ["attention", found.attention_backend],
    ["roofline", `${number(Math.round(roof.intensity))} FLOP per byte, ${side} the ridge at ${number(Math.round(roof.ridge))}: bound by ${roof.roof}, ${Math.round(100 * roof.share)} % of it reached`],
    ...(found.learned === null ? [] : [["corrected by", `${count(found.learned.trials, "measured trial")} on ${found.learned.host}`]]),
    ...(found.no_error_band === null ? [] : [["errors", found.no_error_band]]),
    ["price", found.price === null ? "unknown" : `${found.price.per_gpu_hour} ${found.price.currency ?? ""} per GPU-hour`],
  ];
  return el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

/** Return the space of a preview: what is searched, and what is ruled out. */
export function spaceParts(found) {
  const { space } = found;
  const named = Object.keys(space.named);
  const defaults = found.known_defaults;
  return [
    el("h3", {}, `Search space ${space.name} on ${space.hardware}: ${count(space.parameters.length, "parameter")}`),
    table("Search space", [{ heading: "parameter" }, { heading: "values" }, { heading: "default" }, { heading: "only when" }, { heading: "changes" }],
      space.parameters.map((each) => ({ cells: [each.name, el("span", { class: "message" }, each.domain), String(defaults[each.name] ?? ""),
        el("span", { class: "message" }, each.when ?? ""), each.changes_answers ? "answers" : each.changes_stream ? "stream" : ""] }))),
    space.dropped.length ? el("details", {}, el("summary", {}, `Ruled out: ${count(space.dropped.length, "choice")}`),
      table("Ruled out", [{ heading: "parameter" }, { heading: "value" }, { heading: "why" }],
        space.dropped.map((each) => ({ cells: [each.parameter, each.value === null ? "the whole" : String(each.value), el("span", { class: "message" }, each.reason)] })))) : null,
    named.length ? el("details", {}, el("summary", {}, count(named.length, "named configuration")), el("p", {}, named.join(", "))) : null,
  ];
}
