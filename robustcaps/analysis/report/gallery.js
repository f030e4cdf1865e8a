// The gallery: decodes originals and perturbations when they are shown, and follows the choices of its controls.
"use strict";

class Gallery {
  constructor(data, pixels) {
    Object.assign(this, data);
    this.pixels = pixels;
    this.get = (name) => document.getElementById(`gallery-${name}`);
    this.chosen = this.firstChoice();
    for (const name of ["data", "model", "attack"]) this.get(name).addEventListener("change", (event) => this.choose({ [name]: event.target.value }));
    this.get("eps").addEventListener("input", (event) => this.choose({ eps: this.current().steps[event.target.value].eps }));
    this.show();
  }

  /** The first sample that an attack turns from right to wrong, at the smallest eps that does it. */
  firstChoice() {
    const turned = (series) => series.clean[0] === this.samples[series.sample].label && series.steps.some((step) => step.state === "fooled");
    const series = this.series.find((each) => turned(each) && each.goal === "untargeted") ?? this.series.find((each) => each.steps.at(-1).eps > 0) ?? this.series[0];
    const step = series.steps.find((each) => each.state === "fooled") ?? series.steps.at(-1);
    return { data: series.data, model: series.model, attack: this.attackName(series), sample: series.sample, eps: step.eps };
  }

  attackName(series) {
    return `${series.attack}${series.goal === "targeted" ? ", targeted" : ""} (${series.norm})`;
  }

  find(wanted) {
    return this.series.find((each) => each.data === wanted.data && each.model === wanted.model && this.attackName(each) === wanted.attack && each.sample === wanted.sample);
  }

  current() { return this.find(this.chosen); }

  /** Change the choice; where there is no such series, keep as much of the rest as possible. */
  choose(change) {
    const wanted = { ...this.chosen, ...change };
    const keys = [...Object.keys(change), "data", "model", "attack", "sample"];
    const value = (series, key) => (key === "attack" ? this.attackName(series) : series[key]);
    const score = (series) => keys.reduce((sum, key, place) => sum + (value(series, key) === wanted[key]) * 2 ** (keys.length - place), 0);
    const best = this.series.reduce((a, b) => (score(b) > score(a) ? b : a));
    this.chosen = { ...wanted, data: best.data, model: best.model, attack: this.attackName(best), sample: best.sample };
    this.show();
  }

  /** The step of a series at the chosen eps, or at the nearest. */
  stepOf(series) {
    const distance = (step) => Math.abs(step.eps - this.chosen.eps);
    return series.steps.reduce((best, step) => (distance(step) < distance(best) ? step : best));
  }

  className(data, number) {
    return number < 0 ? "no answer" : (this.classes[data]?.[number] ?? String(number));
  }

  answer(data, [prediction, confidence]) {
    const share = confidence > 0.999 ? "> 99.9" : (100 * confidence).toFixed(confidence > 0.99 ? 1 : 0);
    return this.className(data, prediction) + (confidence === null ? "" : ` (${share} %)`);
  }

  /** Paint a sample on a canvas; `value(k)` is pixel k in [0,1], in the order channels, height, width. */
  paint(canvas, { channels, height, width }, value, label) {
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const area = width * height;
    for (let k = 0; k < area; k += 1) {
      for (let channel = 0; channel < 3; channel += 1) image.data[4 * k + channel] = 255 * value((channels === 3 ? channel : 0) * area + k);
      image.data[4 * k + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    canvas.setAttribute("aria-label", label);
  }

  original(sample) { return (k) => this.pixels[sample.at + k] / 255; }

  change(step) { return (k) => ((this.pixels[step.at + k] << 24) >> 24) * step.unit; }

  adversarial(sample, step) {
    const [before, change] = [this.original(sample), this.change(step)];
    return (k) => before(k) + change(k);
  }

  show() {
    const series = this.current();
    const step = this.stepOf(series);
    this.chosen.eps = step.eps;
    this.fill("data", [...new Set(this.series.map((each) => each.data))]);
    const ofData = this.series.filter((each) => each.data === series.data);
    this.fill("model", [...new Set(ofData.map((each) => each.model))]);
    this.fill("attack", [...new Set(ofData.filter((each) => each.model === series.model).map((each) => this.attackName(each)))]);
    const slider = this.get("eps");
    slider.max = series.steps.length - 1;
    slider.value = series.steps.indexOf(step);
    slider.setAttribute("aria-valuetext", `eps ${step.eps}`);
    slider.disabled = series.steps.length < 2;
    this.get("eps-value").textContent = step.eps;
    this.showSamples(series);
    this.showTriple(series, step);
    this.showModels(series);
  }

  fill(name, options) {
    const select = this.get(name);
    select.replaceChildren(...options.map((text) => make("option", { value: text, textContent: text })));
    select.value = this.chosen[name];
    select.closest("label").hidden = options.length < 2;
  }

  showSamples(series) {
    const focused = document.activeElement?.name === "gallery-sample";
    const thumbs = this.samples.map((sample, place) => {
      const other = this.find({ ...this.chosen, sample: place });
      if (!other) return null;
      const step = this.stepOf(other);
      const canvas = make("canvas");
      const name = `sample ${sample.index}, ${this.className(sample.data, sample.label)}${step.state === "fooled" ? ", fooled" : ""}`;
      this.paint(canvas, sample, this.adversarial(sample, step), name);
      const radio = make("input", { type: "radio", name: "gallery-sample", checked: place === series.sample, ariaLabel: name });
      radio.addEventListener("change", () => this.choose({ sample: place }));
      return make("label", { className: step.state === "fooled" ? "fooled" : "", title: name }, radio, canvas);
    });
    this.get("samples").replaceChildren(...thumbs.filter(Boolean));
    if (focused) this.get("samples").querySelector(":checked").focus();
  }

  showTriple(series, step) {
    const sample = this.samples[series.sample];
    const { data } = series;
    const truth = this.className(data, sample.label);
    const [before, after] = [this.answer(data, series.clean), this.answer(data, step.to)];
    const scale = step.largest ? 0.5 / step.largest : 0;
    const change = this.change(step);
    this.paint(this.get("original"), sample, this.original(sample), `Original, ${truth}, predicted ${before}`);
    this.paint(this.get("perturbation"), sample, (k) => 0.5 + scale * change(k), "Perturbation, amplified");
    this.paint(this.get("adversarial"), sample, this.adversarial(sample, step), `Adversarial image, predicted ${after}`);
    this.caption("original", `Original: ${truth}`, `predicted ${before}`, series.clean[1], series.clean[0] === sample.label ? "good" : "bad");
    const goal = series.goal === "targeted" ? `; target: ${this.className(data, series.target)}` : "";
    const size = step.largest ? `shown ×${Number(scale.toPrecision(2))}, largest change ${step.largest.toPrecision(2)}` : "none";
    this.caption("perturbation", "Perturbation", size + goal, null, "");
    const state = { fooled: "fooled", held: "not fooled", invalid: "invalid" }[step.state];
    this.caption("adversarial", `Adversarial: ${state}`, `predicted ${after}`, step.to[1], step.state === "fooled" ? "bad" : "good");
  }

  caption(name, title, text, confidence, tone) {
    const parts = [make("b", { textContent: title, className: tone }), text];
    if (confidence !== null) {
      const bar = make("i");
      bar.style.width = `${100 * confidence}%`;
      parts.push(make("span", { className: "confidence", ariaHidden: "true" }, bar));
    }
    this.get(`${name}-text`).replaceChildren(...parts);
  }

  showModels(series) {
    const sample = this.samples[series.sample];
    const others = this.series.filter((each) => each.sample === series.sample && this.attackName(each) === this.chosen.attack);
    const rows = others.map((other) => {
      const step = this.stepOf(other);
      const canvas = make("canvas");
      this.paint(canvas, sample, this.adversarial(sample, step), `on ${other.model}`);
      const first = other.steps.find((each) => each.state === "fooled");
      return make("tr", {},
        make("th", { scope: "row", textContent: other.model }),
        make("td", {}, canvas),
        make("td", { textContent: this.answer(other.data, other.clean) }),
        make("td", { textContent: this.answer(other.data, step.to), className: step.state === "fooled" ? "bad" : "good" }),
        make("td", { textContent: first ? `eps ${first.eps}` : "never" }));
    });
    this.get("models").replaceChildren(...rows);
  }
}

/** Return the bytes of deflated base64. */
async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function setUpGallery(data) {
  document.getElementById("gallery-content").hidden = false;
  new Gallery(data, await inflate(data.pixels));
}

if (document.getElementById("gallery-content")) setUpGallery(JSON.parse(document.getElementById("data").textContent).gallery);
