// What was asked for.

import { copyButton, el, table } from "../dom.js";

export function show(root, live) {
  const settings = live.study.settings ?? {};
  const text = JSON.stringify(settings, null, 1);
  const rows = Object.entries(settings).map(([name, value]) => ({ cells: [name,
    el("span", { class: "message" }, typeof value === "string" ? value : JSON.stringify(value))] }));
  root.append(
    el("h2", {}, "Settings"),
    rows.length ? table("Settings", [{ heading: "setting" }, { heading: "value" }], rows) : el("p", {}, "Everything is as by default."),
    el("h3", {}, "As JSON"),
    el("div", { class: "command" }, copyButton(text), el("pre", { tabindex: "0" }, el("code", {}, text))),
    el("p", {}, el("a", { href: `#/submit?like=${encodeURIComponent(live.id)}` }, "Submit one like it")));
}
