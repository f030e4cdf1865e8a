// The theme, printing, sortable tables, the eps of the ranking, and choosers of matrices. Charts and the gallery have files of their own.
"use strict";
document.documentElement.classList.add("js");

/** Return a new element with properties and children. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Return a labelled select of texts; `onChange` gets the chosen one. */
function makeSelect(label, options, chosen, onChange) {
  const select = make("select", {}, ...options.map((text) => make("option", { value: text, textContent: text })));
  select.value = chosen;
  select.addEventListener("change", () => onChange(select.value));
  return make("label", {}, label + " ", select);
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = current() === "dark" ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = current() === "dark" ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();
}

/** The value that a cell is sorted by: its number, or its text. */
function sortValue(cell) {
  const shown = [...cell.childNodes].find((node) => !node.hidden && node.textContent.trim());
  const text = ((shown?.firstChild?.nodeType === Node.TEXT_NODE ? shown.firstChild : shown)?.textContent ?? "").trim();
  const number = Number(text.replaceAll(",", ""));
  return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
}

function compareValues(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function setUpSorting(table) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const rows = [...table.tBodies[0].rows].map((row) => [sortValue(row.cells[column]), row]);
      rows.sort(([a], [b]) => (a === null || b === null ? 1 : sign) * compareValues(a, b));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

function setUpRanking(table) {
  const select = table.querySelector("select");
  select.hidden = false;
  select.addEventListener("change", () => {
    for (const point of table.querySelectorAll("[data-eps]")) point.hidden = point.dataset.eps !== select.value;
  });
}

/** Show one matrix at a time: a select for every key in which the matrices differ. */
function setUpChooser(chooser) {
  const panels = [...chooser.querySelectorAll(".panel")].map((element) => ({ element, keys: JSON.parse(element.dataset.keys) }));
  const controls = chooser.querySelector(".controls");
  let chosen = panels.at(-1).keys;
  chosen = { ...panels[0].keys, eps: panels.filter((panel) => sameExceptEps(panel.keys, panels[0].keys)).at(-1).keys.eps };
  function sameExceptEps(a, b) { return Object.keys(a).every((key) => key === "eps" || a[key] === b[key]); }
  function show(changed, value) {
    const wanted = { ...chosen, [changed]: value };
    const score = (keys) => Object.keys(keys).reduce((sum, key) => sum + (keys[key] === wanted[key]) * (key === changed ? 100 : 1), 0);
    chosen = panels.reduce((best, panel) => (score(panel.keys) > score(best) ? panel.keys : best), panels[0].keys);
    for (const panel of panels) panel.element.classList.toggle("chosen", panel.keys === chosen);
    for (const select of controls.querySelectorAll("select")) select.value = chosen[select.dataset.key];
  }
  for (const key of Object.keys(chosen)) {
    const values = [...new Set(panels.map((panel) => panel.keys[key]))];
    if (values.length < 2) continue;
    const label = makeSelect(key, values, chosen[key], (value) => show(key, value));
    label.querySelector("select").dataset.key = key;
    controls.append(label);
  }
  show("eps", chosen.eps);
}

/** On paper nothing can be unfolded: show all details while printing. */
function setUpPrinting() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of opened) details.open = false; });
}

setUpTheme();
setUpPrinting();
document.querySelectorAll("table.sortable").forEach(setUpSorting);
document.querySelectorAll("table.rank").forEach(setUpRanking);
document.querySelectorAll(".chooser").forEach(setUpChooser);
