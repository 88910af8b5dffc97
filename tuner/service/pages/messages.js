// Messages for the reader: errors, which stay until they are closed, and news.

import { button, el, fill } from "./dom.js";

/** Show an error. */
export function alertOf(error) {
  const box = document.getElementById("alerts");
  const text = error?.message ?? String(error);
  const line = el("div", { class: "alert" }, el("span", {}, text), button("close", () => line.remove(), { class: "small" }));
  fill(box, line);
}

export function clearAlerts() {
  fill(document.getElementById("alerts"));
}

const NEWS_MS = 8000;
const FRESH_MS = 1500;
let fading = null;
let said = 0;

/** Say what happened, also to a screen reader. */
export function say(text) {
  const place = document.getElementById("news");
  place.textContent = text;
  said = Date.now();
  clearTimeout(fading);
  fading = setTimeout(() => fill(place), NEWS_MS);
}

/** Take away what belongs to an earlier view; what was said just now led to this one. */
export function clearOld() {
  clearAlerts();
  if (Date.now() - said > FRESH_MS) fill(document.getElementById("news"));
}

/** Run something that may fail, and show its error. Return whether it worked. */
export async function attempt(action) {
  clearAlerts();
  try {
    await action();
    return true;
  } catch (error) {
    if (error.name !== "AbortError") alertOf(error);
    return false;
  }
}

/** Call a function now and every `milliseconds` while the page is visible, until the signal. Errors are shown once. */
export function repeat(action, milliseconds, signal) {
  let failed = false;
  let timer = null;
  const run = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        await action();
        if (failed) clearAlerts();
        failed = false;
      } catch (error) {
        if (error.name !== "AbortError" && !failed && !signal.aborted) alertOf(error);
        failed = true;
      }
    }
    if (!signal.aborted) timer = setTimeout(run, milliseconds);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => document.hidden || run(), { signal });
  return run();
}
