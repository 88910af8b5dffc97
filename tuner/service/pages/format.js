// Numbers, times and words.

export const ABSENT = "–";

/** Return a number with at least three significant digits; absent is a dash, never 0. */
export function number(value) {
  if (value === null || value === undefined) return ABSENT;
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en");
  return size >= 100 ? value.toFixed(0) : Number(value.toPrecision(4)).toString();
}

/** Return the currency of a metric, empty for one that is no cost and for a price that is unknown. */
export function currency(metric, price) {
  return /(^|\.)cost_per_million_(output|total)_tokens$/.test(metric) ? price?.currency ?? "" : "";
}

/** Return a score. */
export function score(value) {
  return value === null || value === undefined ? ABSENT : value.toFixed(3);
}

/** Return seconds as a duration such as 1 h 05 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return ABSENT;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")} min`;
}

/** Return the seconds between two times of the API; `end` is now if it is null. */
export function secondsBetween(start, end) {
  if (!start) return null;
  return ((end ? new Date(end) : new Date()) - new Date(start)) / 1000;
}

/** Return a time of the API in the reader's zone; the year only where it is not this one. */
export function time(text) {
  if (!text) return ABSENT;
  const moment = new Date(text);
  const year = moment.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return moment.toLocaleString("en-GB", { day: "numeric", month: "short", ...year, hour: "2-digit", minute: "2-digit" });
}

/** Return a time of the day. */
export function clock(text) {
  return new Date(text).toLocaleTimeString("en-GB");
}

/** Return a count with its noun. */
export function count(amount, noun, several = `${noun}s`) {
  return `${amount.toLocaleString("en")} ${amount === 1 ? noun : several}`;
}

/** Return a configuration in a line. */
export function configuration(config) {
  const parts = Object.entries(config).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${value}`);
  return parts.join(" ") || "the defaults";
}

/** Return words separated by blanks, as a shell does; quotes keep blanks, a backslash keeps the next character. */
export function words(text) {
  const found = [];
  for (const match of text.matchAll(/(?:[^\s"'\\]|\\[\s\S]|"(?:[^"\\]|\\[\s\S])*"|'[^']*')+/g)) {
    found.push(match[0].replace(/"((?:[^"\\]|\\[\s\S])*)"|'([^']*)'|\\([\s\S])/g,
      (_, double, single, escaped) => double?.replace(/\\(["\\$`])/g, "$1") ?? single ?? escaped));
  }
  return found;
}
