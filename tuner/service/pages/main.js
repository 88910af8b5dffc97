// The frame of the page: which view is shown, who is logged in, and messages.

import { LOGGED_OUT } from "./api.js";
import { button, el, fill } from "./dom.js";
import { alertOf, clearOld } from "./messages.js";
import { current, finishSignIn, forget, logOut, restore } from "./session.js";

const VIEWS = {
  login: { title: "Log in", load: () => import("./views/login.js") },
  studies: { title: "Studies", load: () => import("./views/studies.js"), link: "Studies" },
  study: { title: "Study", load: () => import("./views/study.js") },
  submit: { title: "Submit a study", load: () => import("./views/submit.js"), link: "Submit", roles: ["user", "admin"] },
  compare: { title: "Compare studies", load: () => import("./views/compare.js") },
  "what-if": { title: "What if", load: () => import("./views/whatif.js"), link: "What if" },
  queue: { title: "Queue and devices", load: () => import("./views/queue.js"), link: "Queue" },
  tokens: { title: "Tokens", load: () => import("./views/tokens.js"), link: "Tokens", roles: ["admin"] },
};

let shown = { key: null, update: null, stop: new AbortController() };

/** Return the view, its parts and its query of an address such as `#/study/ID/trials?state=ok`. */
function route() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map(decodeURIComponent);
  return { view: view in VIEWS ? view : "studies", parts, search: new URLSearchParams(search ?? "") };
}

function allowed(view) {
  const roles = VIEWS[view].roles;
  return roles === undefined || roles.includes(current()?.role);
}

function drawFrame(view) {
  const who = current();
  const nav = document.getElementById("nav");
  nav.hidden = who === null;
  fill(nav, who === null ? [] : Object.entries(VIEWS)
    .filter(([name, each]) => each.link && allowed(name))
    .map(([name, each]) => el("a", { href: `#/${name}`, "aria-current": name === view ? "page" : null }, each.link)));
  fill(document.getElementById("who"), who === null ? [] : [
    el("span", { title: `token ${who.token}` }, `${who.owner} (${who.role})`),
    button("log out", leave, { class: "small", id: "log-out" }),
  ]);
}

async function leave() {
  await logOut();
  location.hash = "#/login";
}

async function draw() {
  const asked = route();
  if (await restore() === null) asked.view = "login";
  else if (asked.view === "login" || !allowed(asked.view)) asked.view = "studies";
  const key = asked.view === "study" ? `study ${asked.parts[0]}` : asked.view;
  drawFrame(asked.view);
  if (shown.key === key && shown.update) {
    shown.update(asked);
    return;
  }
  shown.stop.abort();
  clearOld();
  const stop = new AbortController();
  shown = { key, update: null, stop };
  document.title = `${VIEWS[asked.view].title} – tuner`;
  const main = document.getElementById("main");
  const root = el("div", { class: `view ${asked.view}` });
  fill(main, root);
  const module = await VIEWS[asked.view].load();
  if (stop.signal.aborted) return;
  const update = await module.show(root, asked, stop.signal);
  if (shown.stop === stop) shown.update = update ?? null;
  if (document.activeElement === document.body) main.focus({ preventScroll: true });
}

function redraw() {
  return draw().catch((error) => {
    if (error.name !== "AbortError") alertOf(error);
  });
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
document.addEventListener(LOGGED_OUT, () => {
  forget();
  redraw();
});
window.addEventListener("hashchange", redraw);
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") return;
  if (event.reason?.status !== undefined) event.preventDefault();
  alertOf(event.reason);
});
finishSignIn().then(redraw, async (error) => {
  await redraw();
  alertOf(error);
});
