// Who is logged in. Only a mark is kept here, which says that there may be a session; the token is in a cookie.

import { get, post, remove } from "./api.js";

const MARK = "tuner-session";
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

export async function logIn(token) {
  await post("/v1/session", { token });
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
