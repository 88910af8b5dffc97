// Elements. Texts become text nodes, never HTML: names, messages and notes of studies are other people's.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. `on` has listeners, `class`, `text` and attributes have their values; null and false leave out. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  set(node, properties);
  append(node, children);
  return node;
}

/** Return an SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function set(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [kind, listener] of Object.entries(value)) node.addEventListener(kind, listener);
    else if (name === "text") node.textContent = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
}

/** Replace what an element contains. */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Return a table in a box that scrolls sideways. A column is `{heading, right, head}`; cells are texts or nodes. */
export function table(caption, columns, rows, properties = {}) {
  const head = columns.map((column) =>
    el("th", { scope: "col", class: column.right ? "right" : null, "aria-sort": column.sort }, column.heading));
  const body = rows.map(({ cells, faint, ...more }) =>
    el("tr", { class: faint ? "faint" : null, ...more },
      cells.map((cell, index) => el("td", { class: columns[index].right ? "right" : null }, cell))));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", properties, el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

/** Return a labelled field. `control` is an input, a select or a text area. */
export function field(label, control, hint = null) {
  control.id ||= `field-${control.name || Math.random().toString(36).slice(2)}`;
  const about = hint === null ? null : el("span", { class: "hint", id: `${control.id}-hint` }, hint);
  if (about !== null) control.setAttribute("aria-describedby", about.id);
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, about);
}

/** Return a list to choose from. Options are texts, or `[value, text]`. */
export function select(name, options, chosen = null, properties = {}) {
  const node = el("select", { name, ...properties }, options.map((option) => {
    const [value, text] = Array.isArray(option) ? option : [option, option];
    return el("option", { value, selected: value === chosen }, text);
  }));
  return node;
}

/** Return a button. */
export function button(text, click, properties = {}) {
  return el("button", { type: "button", on: { click }, ...properties }, text);
}

/** Return a button that copies a text. */
export function copyButton(text) {
  const node = button("copy", async () => {
    await navigator.clipboard.writeText(text);
    node.textContent = "copied";
  }, { class: "small" });
  return node;
}

/** Ask a question in a dialog, and return whether the answer was the button `yes`. */
export function ask(question, yes) {
  return new Promise((resolve) => {
    const dialog = el("dialog", { "aria-label": question, on: { close: () => { resolve(dialog.returnValue === "yes"); dialog.remove(); } } },
      el("form", { method: "dialog" }, el("p", {}, question),
        el("div", { class: "buttons" }, el("button", { value: "no" }, "go back"),
          el("button", { value: "yes", class: "danger" }, yes))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Open a dialog with a title and something below it. */
export function show(title, ...children) {
  const dialog = el("dialog", { class: "wide", "aria-label": title, on: { close: () => dialog.remove() } },
    el("form", { method: "dialog", class: "dialog-head" }, el("h2", {}, title), el("button", { class: "small" }, "close")),
    children);
  document.body.append(dialog);
  dialog.showModal();
}
