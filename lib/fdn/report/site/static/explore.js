// One run of a toy task as three panels. The numbers of a task are a script that calls fdnExplore when it is chosen.
(() => {
  "use strict";

  const W = 360, H = 270, LEFT = 50, RIGHT = 14, TOP = 24, BOTTOM = 42;
  const SVG = "http://www.w3.org/2000/svg";
  const tasks = {};
  const form = document.getElementById("choose");
  const box = document.getElementById("panels");

  function node(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // A scale maps numbers to [0, 1]: through f, between the images of its ends.
  const scale = (f, low, high) => (value) => (f(value) - f(low)) / (f(high) - f(low));
  const linear = (v) => v, log = (v) => Math.log10(Math.max(v, 1e-300)), far = (v) => Math.asinh(v * 2);

  function decades(low, high) {
    const first = Math.ceil(log(low)), last = Math.floor(log(high)), step = Math.max(1, Math.ceil((last - first) / 4));
    const out = [];
    for (let e = first; e <= last; e += step) out.push(10 ** e);
    return out;
  }

  function label(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = size >= 1e4 || size < 1e-2 ? value.toExponential(0).replace("+", "") : String(value);
    return text.replace("-", "−");
  }

  function panel(title, words, x, y, xlabel) {
    const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": words });
    const px = (v) => LEFT + x.at(v) * (W - LEFT - RIGHT), py = (v) => H - BOTTOM - y.at(v) * (H - TOP - BOTTOM);
    const clip = `clip-${title.replace(/\W/g, "")}`;
    const area = { x: LEFT, y: TOP, width: W - LEFT - RIGHT, height: H - TOP - BOTTOM };
    const defs = node("defs", {}), path = node("clipPath", { id: clip });
    path.append(node("rect", area));
    defs.append(path);
    const inside = node("g", { "clip-path": `url(#${clip})` });
    svg.append(defs, node("text", { x: LEFT, y: 15, class: "title" }, title), inside, node("rect", { ...area, class: "frame" }));
    for (const v of x.ticks) svg.append(node("text", { x: px(v), y: H - BOTTOM + 15, "text-anchor": "middle" }, label(v)));
    for (const v of y.ticks) svg.append(node("text", { x: LEFT - 5, y: py(v) + 4, "text-anchor": "end" }, label(v)));
    svg.append(node("text", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, xlabel));
    return { svg, inside, px, py };
  }

  const line = (xs, ys, p) => "M" + xs.map((v, i) => `${p.px(v).toFixed(1)},${p.py(ys[i]).toFixed(1)}`).join("L");

  function functionPanel(d, run, colour) {
    const spread = run.var.map((v) => 2 * Math.sqrt(v));
    const upper = run.mean.map((m, i) => m + spread[i]), lower = run.mean.map((m, i) => m - spread[i]);
    const size = Math.max(2, ...upper.map(Math.abs), ...lower.map(Math.abs)) * 1.1;
    const ticks = [0, ...decades(1, size).flatMap((v) => [v, -v])];
    const first = d.x[0], last = d.x[d.x.length - 1];
    const p = panel("Function and band", "Mean of the draws with two standard deviations, and the target",
      { at: scale(linear, first, last), ticks: [first, first / 2, 0, last / 2, last] }, { at: scale(far, -size, size), ticks }, "x");
    p.inside.append(
      node("rect", { x: p.px(d.band[0]), y: 0, width: p.px(d.band[1]) - p.px(d.band[0]), height: H, class: "id" }),
      node("path", { d: `${line(d.x, upper, p)}L${line([...d.x].reverse(), [...lower].reverse(), p).slice(1)}Z`, fill: colour, opacity: 0.3 }),
      node("path", { d: line(d.x, run.mean, p), stroke: colour, class: "line" }),
      node("path", { d: line(d.x, d.y, p), class: "line target" }));
    return p.svg;
  }

  function scatterPanel(d, run, colour) {
    const all = [...run.var, ...run.mse].filter((v) => v > 0);
    const low = Math.min(...all) / 2, high = Math.max(...all) * 2, axis = { at: scale(log, low, high), ticks: decades(low, high) };
    const p = panel("MSE against Var", "MSE of a draw against the variance, a point per test point; black in the training band",
      axis, axis, "Var (black: training band)");
    p.inside.append(node("path", { d: line([low, high], [low, high], p), class: "line target" }));
    d.x.forEach((x, i) => {
      const inside = x >= d.band[0] && x <= d.band[1];
      p.inside.append(node("circle", { cx: p.px(run.var[i]).toFixed(1), cy: p.py(run.mse[i]).toFixed(1), r: 1.6,
        fill: inside ? "black" : colour, opacity: inside ? 0.35 : 1 }));
    });
    return p.svg;
  }

  function riskPanel(d, run, colour) {
    const order = d.x.map((_, i) => i).sort((i, j) => run.var[i] - run.var[j]);
    let weight = 0, sum = 0;
    const total = d.weight.reduce((a, b) => a + b), coverage = [], risk = [];
    for (const i of order) {
      weight += d.weight[i];
      sum += d.weight[i] * run.mse[i];
      coverage.push(weight / total);
      risk.push(sum / weight);
    }
    const low = Math.min(...risk) / 1.5, high = Math.max(...risk) * 1.5;
    const p = panel("Risk and coverage", "Mean MSE of the most confident share of the test points",
      { at: scale(linear, 0, 1), ticks: [0, 0.5, 1] }, { at: scale(log, low, high), ticks: decades(low, high) }, "share kept, most confident first");
    p.inside.append(node("path", { d: line(coverage, risk, p), stroke: colour, class: "line" }));
    return p.svg;
  }

  function draw() {
    const { task, model, seed } = Object.fromEntries(new FormData(form));
    const d = tasks[task];
    if (!d) return load(task);
    const { error, var: variance, numbers: [rho, b, aurc] } = d.models[model][seed];
    const run = { mean: error.map((e, i) => e + d.y[i]), var: variance, mse: variance.map((v, i) => v + error[i] ** 2) };
    const colour = form.elements.model.selectedOptions[0].dataset.colour;
    box.replaceChildren(functionPanel(d, run, colour), scatterPanel(d, run, colour), riskPanel(d, run, colour));
    document.getElementById("numbers").textContent = `${model} on ${task}, seed ${seed}: ρ ${rho}, b ${b}, AURC ${aurc}.`;
  }

  function load(task) {
    const script = document.createElement("script");
    script.src = `${box.dataset.folder}${task}.js`;
    document.head.append(script);
  }

  window.fdnExplore = (task, data) => {
    tasks[task] = data;
    draw();
  };
  const wanted = location.hash.slice(1);
  if ([...form.elements.task.options].some((option) => option.value === wanted)) form.elements.task.value = wanted;
  form.addEventListener("change", draw);
  draw();
})();
