// Draws the charts of the page. Their specifications are Vega-Lite; parameters with a list of choices get a select,
// and lines that can be left out a checkbox each. Colours of text and grid are CSS variables, so charts follow the theme.
"use strict";

const CHART_CONFIG = {
  background: "transparent",
  font: "system-ui, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: "var(--muted)", titleColor: "var(--ink)", gridColor: "var(--line)", domainColor: "var(--muted)",
    tickColor: "var(--muted)", labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, labelOverlap: "greedy", labelSeparation: 5, labelLimit: 170,
  },
  legend: { labelColor: "var(--ink)", titleColor: "var(--muted)", labelFontSize: 12, titleFontSize: 12, labelLimit: 200, symbolBaseFillColor: "var(--ink)", symbolBaseStrokeColor: "var(--ink)" },
  text: { fontSize: 12 },
};

async function drawChart(container, spec) {
  const controls = container.parentElement.querySelector(".controls");
  const choices = (spec.params ?? []).filter((param) => param.bind?.input === "select");
  const unbound = { ...spec, params: (spec.params ?? []).map(({ bind, ...rest }) => (bind?.input === "select" ? rest : { ...rest, ...(bind && { bind }) })) };
  const options = { actions: false, ast: true, renderer: "svg", config: CHART_CONFIG, tooltip: { disableDefaultStyle: true } };
  const { view } = await vegaEmbed(container, unbound, options);
  for (const { name, value, bind } of choices) {
    if (bind.options.length > 1) controls.append(makeSelect(bind.name, bind.options, value, (chosen) => view.signal(name, chosen).runAsync()));
  }
  for (const [name, lines] of Object.entries(spec.usermeta?.lines ?? {})) controls.append(makeCheckboxes(view, name, lines));
}

/** A checkbox for every line of a chart, in its colour. */
function makeCheckboxes(view, name, { domain, range }) {
  const fieldset = make("fieldset", {}, make("legend", { textContent: "Lines" }));
  domain.forEach((line, place) => {
    const box = make("input", { type: "checkbox", checked: true, value: line });
    box.style.setProperty("--swatch", range[place]);
    fieldset.append(make("label", {}, box, " " + line));
  });
  fieldset.addEventListener("change", () => {
    view.signal(name, [...fieldset.querySelectorAll(":checked")].map((box) => box.value)).runAsync();
  });
  return fieldset;
}

const { figures } = JSON.parse(document.getElementById("data").textContent);
const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting) draw(target);
  }
}, { rootMargin: "600px" });

/** Draw a chart once, when it is about to be seen. */
function draw(container) {
  if (container.dataset.drawn) return;
  container.dataset.drawn = "yes";
  observer.unobserve(container);
  drawChart(container, figures[container.dataset.chart]);
}

document.querySelectorAll("[data-chart]").forEach((container) => observer.observe(container));
addEventListener("beforeprint", () => document.querySelectorAll("[data-chart]").forEach(draw));
