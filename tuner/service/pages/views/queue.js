// Devices, who has them, and what waits for them.

import { get, query } from "../api.js";
import { el, fill, table } from "../dom.js";
import { count, duration, secondsBetween } from "../format.js";
import { repeat } from "../messages.js";
import { ACTIVE, badge, STATES } from "../states.js";

const EVERY_MS = 3000;
const COLUMNS = [{ heading: "study" }, { heading: "state" }, { heading: "owner" }, { heading: "priority", right: true },
  { heading: "asks for" }, { heading: "has" }, { heading: "for", right: true }, { heading: "why it waits" }];

export async function show(root, asked, signal) {
  const place = el("div");
  root.append(el("h1", {}, "Queue and devices"), place);
  let seen = "";
  await repeat(async () => {
    const queue = await get("/v1/queue", signal);
    const { studies } = await get(`/v1/studies${query({ state: ["QUEUED", ...ACTIVE], limit: 200 })}`, signal);
    const now = JSON.stringify([queue, studies]);
    if (now === seen && !studies.length) return;
    seen = now;
    draw(place, queue, studies);
  }, EVERY_MS, signal);
}

function draw(place, queue, studies) {
  const busy = queue.devices.filter((each) => each.busy).length;
  const focused = place.contains(document.activeElement) ? document.activeElement.id : null;
  const order = studies.toReversed().sort((a, b) => (a.state === "QUEUED") - (b.state === "QUEUED"));
  fill(place,
    el("p", {}, `${busy} of ${count(queue.devices.length, "device")} busy, ${count(queue.waiting, "study", "studies")} waiting.`),
    el("ul", { class: "devices", "aria-label": "Devices" }, queue.devices.map((device) => el("li", {},
      el("strong", {}, device.name), " ",
      device.study ? el("a", { id: `device-${device.name}`, href: `#/study/${encodeURIComponent(device.study)}` }, device.study)
        : device.busy ? "another owner's study" : "free"))),
    el("h2", {}, "Running and waiting"),
    order.length ? table("Running and waiting studies", COLUMNS, order.map((study) => ({ cells: [
      el("a", { id: `open-${study.id}`, href: `#/study/${encodeURIComponent(study.id)}` }, study.id),
      badge(study.state), study.owner, String(study.priority), `${study.gpus} × ${study.kind}`, study.granted.join(", ") || "–",
      duration(secondsBetween(study.state === "QUEUED" ? study.queued_at : study.started_at)),
      el("span", { class: "message" }, study.waits_for ?? "–")] }))) : el("p", {}, "None of those that you may read."),
    el("h2", {}, "All studies by state"),
    table("Studies by state", STATES.map((state) => ({ heading: state.toLowerCase(), right: true })),
      [{ cells: STATES.map((state) => String(queue.states[state] ?? 0)) }]));
  if (focused) document.getElementById(focused)?.focus();
}
