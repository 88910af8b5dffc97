// Requests to the API. The session's cookie goes with each; scripts cannot read it.

/** An answer that is an error: `message` is the problem's detail, `field` the setting that it is about. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered with ${status}`);
    this.status = status;
    this.field = body.field ?? null;
  }
}

export const LOGGED_OUT = "logged-out";
const LOGGING_IN = new Set(["/v1/session", "/v1/sign-in"]);

async function send(method, path, body, signal) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the server does not answer; try again" });
  }
  if (answer.ok) return answer;
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401 && !LOGGING_IN.has(path)) document.dispatchEvent(new CustomEvent(LOGGED_OUT));
  throw problem;
}

async function json(answer) {
  return answer.status === 204 ? null : answer.json();
}

export const get = async (path, signal) => json(await send("GET", path, undefined, signal));
export const post = async (path, body, signal) => json(await send("POST", path, body ?? {}, signal));
export const put = async (path, body) => json(await send("PUT", path, body));
export const patch = async (path, body) => json(await send("PATCH", path, body));
export const remove = async (path) => json(await send("DELETE", path));

/** Return the answer itself, for texts and files. */
export const raw = (path, signal) => send("GET", path, undefined, signal);

/** Return the address of a study, or of something below it. */
export function ofStudy(id, rest = "") {
  return `/v1/studies/${encodeURIComponent(id)}${rest}`;
}

/** Return a query string; a value that is a list is repeated, an empty one left out. */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") found.append(name, each);
    }
  }
  return found.size ? `?${found}` : "";
}
