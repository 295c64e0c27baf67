// Elements without markup: whatever comes from models or files goes in as text.

// make("a", { href: "#/chat", onclick: f }, "text", element): on... listens, true and false set or leave an attribute.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function button(text, onclick, more = {}) {
  return make("button", { type: "button", onclick, ...more }, text);
}

// A control under its label.
export function field(label, control, kind) {
  return control.type === "checkbox" ? make("label", { class: "check" }, control, label)
    : make("label", { class: kind }, label, control);
}

export function select(values, chosen, more = {}) {
  const options = values.map((each) => make("option", { value: each, selected: each === chosen }, each));
  return make("select", more, ...options);
}

// columns: titles, of numbers as [title]; rows: lists of texts and elements.
export function table(caption, columns, rows, empty = "none") {
  const kind = (i) => ({ class: Array.isArray(columns[i]) ? "number" : undefined });
  const head = make("tr", {}, ...columns.map((title, i) => make("th", { scope: "col", ...kind(i) }, String(title))));
  const lines = rows.map((row) => make("tr", {}, ...row.map((cell, i) => make("td", kind(i), cell))));
  if (!rows.length) lines.push(make("tr", {}, make("td", { colspan: columns.length, class: "soft" }, empty)));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...lines)));
}

// Shows a table in the place of the one before: where that was scrolled to, and its focus, stay.
export function put(place, made) {
  if (place.firstElementChild) place.firstElementChild.replaceChildren(...made.children);
  else place.append(made);
}

// 1234567 as 1.23M; digits: how many count.
export function brief(value, digits = 3) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  for (const [from, size, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (Math.abs(value) >= from) return Number((value / size).toPrecision(Math.min(9, digits))) + unit;
  }
  return String(Number(value.toPrecision(Math.min(9, Number.isInteger(value) ? Math.max(5, digits) : digits))));
}

export function bytes(value) {
  if (value < 2 ** 10) return `${value} B`;
  if (value < 2 ** 20) return `${Number((value / 2 ** 10).toPrecision(3))} KiB`;
  return value >= 2 ** 30 ? (value / 2 ** 30).toFixed(1) + " GiB" : (value / 2 ** 20).toFixed(1) + " MiB";
}

export function seconds(value) {
  if (value === undefined || Number.isNaN(value)) return "–";
  return value < 1 ? Number((value * 1000).toPrecision(3)) + " ms" : Number(value.toPrecision(3)) + " s";
}
