// The head of a study: state, progress, and what can be done with it.

import { get, ofStudy, patch, post, put, remove } from "../api.js";
import { ask, button, el, field, fill, select, show } from "../dom.js";
import { count, duration, number, score, secondsBetween, time } from "../format.js";
import { attempt, say } from "../messages.js";
import { current } from "../session.js";
import { badge, bar, RESUMABLE } from "../states.js";
import { download } from "./download.js";

export function head(live, signal) {
  const state = el("p", { class: "state-line" });
  const facts = el("dl", { class: "facts" });
  const verbs = el("div", { class: "buttons" });
  const files = el("div", { class: "buttons" });
  let drawn = "";
  const draw = () => {
    const { study } = live;
    drawState(state, live);
    drawFacts(facts, live);
    const now = JSON.stringify([study.state, study.shared, study.priority, study.watch === null, live.trials.size > 0]);
    if (now === drawn) return; // a button that is drawn anew would lose the focus
    drawn = now;
    fill(verbs, verbsOf(live));
    filesOf(live).then((each) => fill(files, each)).catch(() => {});
  };
  live.addEventListener("change", draw, { signal });
  draw();
  return el("header", { class: "study-head" }, el("h1", {}, live.id), state, facts, verbs, files);
}

function drawState(place, live) {
  const { study } = live;
  const why = study.waits_for ?? study.reason;
  const lost = !live.ended && live.connection === "lost";
  fill(place, badge(study.state), study.culprit ? ` ${study.culprit}` : "", why ? el("span", {}, ` ${why}`) : null,
    lost ? el("span", { class: "warn" }, " The connection is lost; trying again.") : null);
}

function drawFacts(place, live) {
  const { study } = live;
  const [done, single] = [false, true].map((reduced) => live.searched.filter((each) => each.ended_at && (each.kind === "reduced") === reduced).length);
  const planned = live.opened?.trials ?? study.settings?.trials ?? 60;
  const best = live.searched.reduce((most, each) => (each.state === "ok" && each.score > (most ?? -Infinity) ? each.score : most), null);
  const facts = [
    ...(live.sized ? [["finds", "servers for a load"]] : [
      ["trials", [bar(done, planned, "trials of the search"), ` ${done} of ${planned}${single ? `, ${single} more of finalists and smaller forms` : ""}`]],
      ["best of the search", score(best)],
      ["values are", live.opened?.provenance ?? (study.kind === "simulated" ? "simulated" : "measured")]]),
    ["owner", study.owner + (study.shared ? ", shared" : "")],
    ["devices", study.granted.join(", ") || `asks for ${study.gpus} × ${study.kind}`],
    ["priority", String(study.priority)],
    ["submitted", time(study.created_at)],
    ["runs for", duration(secondsBetween(study.started_at, study.ended_at))],
    ["device time", duration(study.gpu_seconds)],
  ];
  if (study.watch) facts.push(["deployed servers", el("span", { class: study.watch.problem || Object.keys(study.watch.drifted ?? {}).length ? "warn" : null }, study.watch.text)]);
  fill(place, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function mayChange({ study }) {
  const who = current();
  return who.role !== "viewer" && (who.role === "admin" || who.owner === study.owner);
}

function verbsOf(live) {
  const { study } = live;
  if (!mayChange(live)) return [];
  const verb = (name, after, question = null) => button(name, async () => {
    if (question !== null && !await ask(question, name)) return;
    await attempt(async () => {
      live.study = await post(ofStudy(live.id, `:${name}`));
      say(after);
      live.changed();
      if (name === "resume") await live.resumed();
    });
  }, { class: name === "cancel" ? "danger" : null });
  const open = ["QUEUED", "RUNNING", "CONCLUDING"].includes(study.state);
  return [
    open && study.state !== "CONCLUDING" && verb("stop", "Running trials finish, then it concludes."),
    (open || study.state === "STOPPING") && verb("cancel", "It ends at once.", `End ${live.id} at once, without a conclusion? Its finished trials stay.`),
    RESUMABLE.includes(study.state) && verb("resume", "It is queued again."),
    live.ended && button("delete", () => erase(live), { class: "danger" }),
    study.watch && button("stop watching servers", () => watch(live, null)),
    button(study.shared ? "stop sharing" : "share", () => change(live, { shared: !study.shared })),
    study.state === "QUEUED" && button("sooner", () => change(live, { priority: Math.min(study.priority + 1, 100) })),
    study.state === "QUEUED" && button("later", () => change(live, { priority: Math.max(study.priority - 1, -100) })),
  ];
}

async function change(live, body) {
  await attempt(async () => {
    live.study = await patch(ofStudy(live.id), body);
    live.changed();
    say("priority" in body ? `Its priority is ${number(body.priority)}.` : body.shared ? "Every token may read it." : "Only its owner and admins may read it.");
  });
}

async function watch(live, urls) {
  await attempt(async () => {
    const path = ofStudy(live.id, "/watch");
    live.study = await (urls === null ? remove(path) : put(path, { urls }));
    live.changed();
    say(urls === null ? "Its servers are read no more." : "Its servers are read from now on.");
  });
}

function askForServers(live) {
  const urls = el("textarea", { name: "urls", rows: "3", placeholder: "their addresses, one a line" });
  show("Watch deployed servers", el("p", {}, "The service reads /metrics of servers that its operator allows, and says when their traffic is no longer that of the study."),
    field("Addresses", urls, "One a line."),
    el("div", { class: "buttons" }, button("watch them", (event) => {
      event.target.closest("dialog").close();
      watch(live, urls.value.split("\n").map((line) => line.trim()).filter(Boolean));
    }, { class: "primary" })));
}

async function erase(live) {
  if (!await ask(`Delete ${live.id} with all its trials and files?`, "delete")) return;
  if (await attempt(() => remove(ofStudy(live.id)))) location.hash = "#/studies";
}

async function filesOf(live) {
  const report = el("a", { class: "button", href: ofStudy(live.id, "/report"), target: "_blank", rel: "noopener" }, "report");
  if (live.sized) return live.answered ? report : [];
  if (!live.trials.size) return [];
  const { formats, watches } = await get("/v1/catalogue");
  const format = select("format", formats, "script", { "aria-label": "Format of the export" });
  return [
    report,
    format, button("export", () => attempt(() => download(live.id, format.value)), { title: "of the winner" }),
    el("a", { class: "button", href: `#/compare?study=${encodeURIComponent(live.id)}` }, "compare with …"),
    watches && live.ended && mayChange(live) && !live.study.watch && button("watch servers", () => askForServers(live)),
  ];
}
