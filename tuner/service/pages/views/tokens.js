// Tokens, owners and the audit log, for admins.

import { get, post, put } from "../api.js";
import { ask, button, copyButton, el, field, fill, select, table } from "../dom.js";
import { number, time } from "../format.js";
import { attempt, say } from "../messages.js";

const NAME = "[A-Za-z0-9][A-Za-z0-9._@+\\-]{0,62}";

export async function show(root, asked, signal) {
  const secret = el("div");
  const list = el("div");
  const owners = el("div");
  const audit = el("div");

  const refresh = async () => {
    const [tokens, shares, actions] = await Promise.all([get("/v1/tokens", signal), get("/v1/owners", signal), get("/v1/audit?limit=50", signal)]);
    drawTokens(list, tokens, refresh);
    drawOwners(owners, tokens, shares);
    drawAudit(audit, actions);
  };
  root.append(el("h1", {}, "Tokens"), makeForm(secret, refresh), secret, list,
    el("h2", {}, "Owners"), ownerForm(refresh), owners, el("h2", {}, "Audit log"), audit);
  await refresh();
}

function makeForm(secret, refresh) {
  const name = el("input", { name: "name", required: true, pattern: NAME, maxlength: "63" });
  const owner = el("input", { name: "owner", required: true, pattern: NAME, maxlength: "63" });
  const role = select("role", ["user", "viewer", "admin"], "user");
  const days = el("input", { name: "days", type: "number", min: "1", max: "3650" });
  const submit = (event) => {
    event.preventDefault();
    attempt(async () => {
      const made = await post("/v1/tokens", { name: name.value, owner: owner.value, role: role.value, days: days.value ? Number(days.value) : null });
      fill(secret, el("div", { class: "secret" }, el("p", {}, `The token ${made.name} of ${made.owner}, shown once:`),
        el("div", { class: "command" }, copyButton(made.token), el("pre", { tabindex: "0", id: "secret" }, made.token))));
      event.target.reset();
      await refresh();
      say("The token is made. Copy it now.");
    });
  };
  return el("form", { on: { submit } }, el("fieldset", {}, el("legend", {}, "Make a token"),
    el("div", { class: "grid" }, field("Name", name, "of the token, such as ada-laptop"), field("Owner", owner, "whose studies it submits and reads"),
      field("Role", role, "a viewer only reads"), field("Days until it expires", days, "empty: it does not")),
    el("div", { class: "buttons" }, el("button", { class: "primary" }, "make the token"))));
}

function drawTokens(place, tokens, refresh) {
  const columns = ["token", "owner", "role", "made", "expires", "last used", "state"].map((heading) => ({ heading }));
  fill(place, table("Tokens", columns, tokens.map((token) => {
    const over = token.expires_at !== null && new Date(token.expires_at) < new Date();
    const state = token.revoked_at ? `revoked ${time(token.revoked_at)}` : over ? "expired" : button("revoke", async () => {
      if (!await ask(`Revoke the token ${token.name} of ${token.owner}? It is worthless from then on.`, "revoke")) return;
      await attempt(async () => {
        await post(`/v1/tokens/${encodeURIComponent(token.name)}:revoke`);
        await refresh();
        say(`The token ${token.name} is revoked.`);
      });
    }, { class: "danger small", "aria-label": `revoke ${token.name}` });
    return { faint: token.revoked_at !== null || over, cells: [token.name, token.owner, token.role, time(token.created_at),
      time(token.expires_at), time(token.used_at), state] };
  })));
}

function ownerForm(refresh) {
  const owner = el("input", { name: "of", id: "owner-of", required: true, maxlength: "64" });
  const weight = el("input", { name: "weight", type: "number", min: "0.01", max: "1000", step: "any", value: "1", required: true });
  const gpus = el("input", { name: "most_gpus", type: "number", min: "0" });
  const hours = el("input", { name: "gpu_hours_a_week", type: "number", min: "0", step: "any" });
  const submit = (event) => {
    event.preventDefault();
    const optional = (input) => (input.value === "" ? null : Number(input.value));
    attempt(async () => {
      await put(`/v1/owners/${encodeURIComponent(owner.value)}`, { weight: Number(weight.value), most_gpus: optional(gpus), gpu_hours_a_week: optional(hours) });
      await refresh();
      say(`The share of ${owner.value} is set.`);
    });
  };
  return el("form", { on: { submit } }, el("fieldset", {}, el("legend", {}, "Set an owner's share"),
    el("div", { class: "grid" }, field("Owner", owner), field("Weight", weight, "share of the devices relative to others"),
      field("Devices at once", gpus, "empty: no quota"), field("GPU-hours a week", hours, "empty: no quota")),
    el("div", { class: "buttons" }, el("button", {}, "set the share"))));
}

function drawOwners(place, tokens, shares) {
  const names = [...new Set([...Object.keys(shares), ...tokens.map((each) => each.owner)])].sort();
  const none = { weight: 1, most_gpus: null, gpu_hours_a_week: null };
  fill(place, table("Owners", [{ heading: "owner" }, { heading: "weight", right: true }, { heading: "devices at once", right: true }, { heading: "GPU-hours a week", right: true }],
    names.map((name) => {
      const share = shares[name] ?? none;
      return { cells: [name, number(share.weight), number(share.most_gpus), number(share.gpu_hours_a_week)] };
    })));
}

function drawAudit(place, actions) {
  fill(place, table("Audit log", ["time", "token", "owner", "address", "action", "resource", "result"].map((heading) => ({ heading })),
    actions.map((each) => ({ cells: [time(each.at), each.token ?? "–", each.owner ?? "–", each.address ?? "–", each.action, each.resource, result(each)] }))));
}

function result(action) {
  const why = [action.status, action.field].filter(Boolean).join(", ");
  return why ? `${action.result} (${why})` : action.result;
}
