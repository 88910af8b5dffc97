// States of studies, as docs/design/service.md lists them.

import { el } from "./dom.js";

export const STATES = ["QUEUED", "RUNNING", "STOPPING", "CONCLUDING", "DONE", "STOPPED", "CANCELLED", "FAILED"];
export const ACTIVE = ["RUNNING", "STOPPING", "CONCLUDING"];
export const RESUMABLE = ["STOPPED", "CANCELLED", "FAILED"];
export const ENDED = ["DONE", ...RESUMABLE];

export function badge(state) {
  return el("span", { class: `badge state-${state.toLowerCase()}` }, state.toLowerCase());
}

/** Return a bar with how many of the planned trials have ended. */
export function bar(done, planned, label) {
  return el("progress", { value: planned ? Math.min(done, planned) : 0, max: planned || 1, "aria-label": label });
}
