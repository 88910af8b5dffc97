// Who is logged in. Only a mark is kept here, which says that there may be a session; the token is in a cookie.

import { get, post, remove } from "./api.js";

const MARK = "tuner-session";
const REASON = /^[a-z_]{1,40}$/; // a link could hold any other text
let who = null;

/** Return who is logged in: `owner`, `role` and the token's name; null for nobody. */
export function current() {
  return who;
}

/** Ask the server who is logged in, if there may be somebody. */
export async function restore() {
  if (who === null && localStorage.getItem(MARK) !== null) {
    try {
      who = await get("/v1/session");
    } catch (problem) {
      if (problem.status !== 401) throw problem;
      forget();
    }
  }
  return who;
}

/** Return the name of the provider at which people sign in; empty: people log in with tokens alone. */
export function provider() {
  return document.querySelector("meta[name=provider]").content;
}

/** Leave for the provider. */
export async function signIn() {
  location.assign((await get("/v1/sign-in")).address);
}

/** Log in with the code in the page's address, if the provider has just sent the browser back. */
export async function finishSignIn() {
  const given = new URLSearchParams(location.search);
  if (!given.has("state") && !given.has("error")) return;
  history.replaceState(null, "", location.pathname);
  if (!given.has("code")) throw new Error(`${provider()} did not let you in${REASON.test(given.get("error")) ? `: ${given.get("error")}` : ""}`);
  await enter("/v1/sign-in", { code: given.get("code"), state: given.get("state") });
}

export async function logIn(token) {
  await enter("/v1/session", { token });
}

async function enter(path, proof) {
  await post(path, proof);
  localStorage.setItem(MARK, "1");
  who = await get("/v1/session");
}

export async function logOut() {
  await remove("/v1/session");
  forget();
}

export function forget() {
  localStorage.removeItem(MARK);
  who = null;
}
