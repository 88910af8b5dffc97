// Log in with a token.

import { button, el, field } from "../dom.js";
import { attempt } from "../messages.js";
import { logIn, provider, signIn } from "../session.js";

export function show(root) {
  const token = el("input", { name: "token", type: "password", autocomplete: "current-password", required: true,
    pattern: "tnr_[0-9a-f]{64}", title: "tnr_ and 64 hexadecimal digits", spellcheck: "false" });
  const submit = async (event) => {
    event.preventDefault();
    const done = await attempt(() => logIn(token.value.trim()));
    token.value = "";
    if (!done) token.focus();
    else if (location.hash.startsWith("#/login") || location.hash === "") location.hash = "#/studies";
    else window.dispatchEvent(new HashChangeEvent("hashchange"));
  };
  root.append(
    el("h1", {}, "Log in"),
    ...(provider() ? [el("p", {}, button(`sign in with ${provider()}`, () => attempt(signIn), { class: "primary", id: "sign-in" })), el("p", {}, "Or with a token:")] : []),
    el("form", { class: "narrow", on: { submit } },
      field("Token", token, "An admin of this server makes tokens. The first one was printed when the server was started."),
      el("button", { class: "primary" }, "log in")));
  token.focus();
}
