// The preview of an array: a value, a line or an image, with sliders for the dimensions that are not seen.

import { TEXTS, canReadAll, firstSelection, parseSelection, pythonSelection, read, total, writeSelection } from "./arrays.js";
import { coordinates } from "./coordinates.js";
import { h, onKeys, replace } from "./dom.js";
import { facts, failure, link, notice, turns } from "./parts.js";
import { DIVERGING, MAP_NAMES, colorBar, drawImage, ends, hatch, histogram, lines } from "./picture.js";
import { count, lengths, plural, shown, size } from "./words.js";

const SLIDER_WAIT = 60; // milliseconds, so that a slider that is drawn along does not ask for all on its way
const TALLEST = 600;
const FIGURES = { min: "Minimum", max: "Maximum", mean: "Mean" };

let map = MAP_NAMES[0]; // kept from one array to the next

export function drawPreview(into, context) {
  const { node, commit, ref, query, view, signal } = context;
  if (node.shape.some((each) => each === 0)) return replace(into, notice("The array has no elements."));
  let selection = parseSelection(query.get("sel"), node.shape) ?? firstSelection(node);
  let result = null;
  const begin = turns(signal);
  let wide = 0; // of the stage, when it was last drawn
  let axes = []; // coordinates of the dimensions, where there are some and they are known by now
  let placeSliders = []; // what tells sliders what their places are called
  let pointed = null; // the value that is pointed at: its row, column, and itself
  const name = (i) => node.dimension_names?.[i] || `dim ${i}`;
  const button = (text, label, does) => h("button", { type: "button", class: "button small", "aria-label": label, title: label, onclick: does }, text);
  const readout = h("output", { class: "readout mono" });

  const controls = h("div", { class: "controls" });
  const stage = h("div", { class: "stage card" });
  const side = h("div", { class: "aside" });
  const status = h("p", { class: "quiet status", role: "status" });
  replace(into, controls, h("div", { class: "preview" }, h("div", { class: "stage-column" }, stage, status), side));
  drawControls();
  view.themed = () => result && into.contains(stage) && drawResult();
  const observer = new ResizeObserver(() => result && stage.clientWidth !== wide && drawResult());
  observer.observe(stage);
  signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  tellCoordinates().catch(view.tell);
  return update();

  /** Say what places are called, when that is known: what is seen does not wait for it. */
  async function tellCoordinates() {
    axes = await coordinates(context);
    placeSliders.forEach((tell) => tell());
    if (result) drawResult();
    if (pointed) point(...pointed);
  }

  function drawControls() {
    const kept = selection.flatMap((each, i) => (Array.isArray(each) ? [i] : []));
    const planes = [];
    for (let i = 0; i < node.shape.length; i++)
      for (let j = i + 1; j < node.shape.length; j++) planes.push([[i, j], `${name(i)} × ${name(j)}`]);
    const choices = [...planes, ...node.shape.map((_, i) => [[i], `along ${name(i)}`])];
    placeSliders = [];
    const sliders = selection.flatMap((each, i) => (Array.isArray(each) ? [] : [slider(i)]));
    replace(controls,
      node.shape.length > 1
        ? h("label", { class: "picker" }, h("span", {}, "Show"),
            h("select", { onchange: (event) => setPlane(choices[event.target.selectedIndex][0]) },
              choices.map(([dimensions, label]) => h("option", { selected: String(dimensions) === String(kept) }, label))))
        : null,
      kept.length === 2
        ? h("label", { class: "picker" }, h("span", {}, "Colours"),
            h("select", { onchange: (event) => { map = event.target.value; if (result) drawResult(); } },
              MAP_NAMES.map((each) => h("option", { selected: each === map }, each))))
        : null,
      kept.length
        ? h("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
            button("−", "Farther", () => zoom(2)), button("+", "Nearer", () => zoom(0.5)), button("Whole", "The whole", whole))
        : null,
      sliders.length ? h("div", { class: "sliders" }, sliders) : null);
  }

  function slider(i) {
    const last = node.shape[i] - 1;
    const field = h("input", { type: "number", min: 0, max: last, value: selection[i], "aria-label": `${name(i)}, index` });
    const range = h("input", { type: "range", min: 0, max: last, value: selection[i], "aria-label": name(i) });
    const called = h("small", { class: "coordinate" });
    const tell = () => (called.textContent = axes[i]?.label(selection[i]) ?? "");
    placeSliders.push(tell);
    tell();
    let waiting = 0;
    const set = (value) => {
      selection[i] = Math.min(Math.max(0, Math.round(Number(value) || 0)), last);
      field.value = range.value = selection[i];
      tell();
      clearTimeout(waiting);
      waiting = setTimeout(update, SLIDER_WAIT);
    };
    range.addEventListener("input", () => set(range.value));
    field.addEventListener("change", () => set(field.value));
    return h("div", { class: "slider" }, h("span", {}, name(i)), range, field, h("small", { class: "quiet" }, `of ${count(node.shape[i])}`), called);
  }

  function setPlane(dimensions) {
    selection = node.shape.map((length, i) => (dimensions.includes(i) ? [0, length] : Array.isArray(selection[i]) ? selection[i][0] : selection[i]));
    drawControls();
    update();
  }

  function whole() {
    selection = selection.map((each, i) => (Array.isArray(each) ? [0, node.shape[i]] : each));
    update();
  }

  /** Show a part of what is shown that is `factor` as long, about its middle, or moved aside by parts of its length. */
  function zoom(factor, aside = {}) {
    let kept = 0;
    selection = selection.map((each, i) => {
      if (!Array.isArray(each)) return each;
      const length = Math.min(node.shape[i], Math.max(1, Math.round((each[1] - each[0]) * factor)));
      const middle = (each[0] + each[1]) / 2 + (aside[kept++] ?? 0) * (each[1] - each[0]);
      const start = Math.min(Math.max(0, Math.round(middle - length / 2)), node.shape[i] - length);
      return [start, start + length];
    });
    update();
  }

  async function update(everything = false) {
    const own = begin();
    const whole = selection.every((each, i) => !Array.isArray(each) || (each[0] === 0 && each[1] === node.shape[i]));
    const isFirst = whole && selection.every((each) => Array.isArray(each) || each === 0);
    if (context.tab === "preview") {
      view.permalink(link.tree(ref, node.path, isFirst ? "" : `sel=${writeSelection(selection)}`));
      const of = pythonSelection(selection, node.shape);
      context.setPython(`${context.opening}[${of || "..."}]`);
    }
    stage.classList.add("waiting");
    const asked = selection.map((each) => (Array.isArray(each) ? [...each] : each));
    const begun = performance.now();
    try {
      for (const isGlance of [true, false]) {
        const tell = (done, all) => { if (all > 8) status.textContent = `Reading chunk ${count(done)} of ${count(all)} …`; };
        const found = await read(commit, node, asked, { signal: own, everything, isGlance, progress: tell });
        if (own.aborted) return;
        if (!found) continue;
        pointed = null;
        result = { ...found, selection: asked, milliseconds: performance.now() - begun };
        drawResult();
        drawSide();
        stage.classList.remove("waiting");
      }
    } catch (error) {
      if (own.aborted) return;
      result = null;
      replace(stage, failure(error));
      replace(side);
      status.textContent = "";
      stage.classList.remove("waiting");
    }
  }

  function drawResult() {
    wide = stage.clientWidth;
    if (wide <= 0) return;
    const hadFocus = stage.contains(document.activeElement);
    const { shape, isNumeric } = result;
    if (!isNumeric) drawValues();
    else if (shape.length === 0) replace(stage, h("p", { class: "scalar" }, shown(result.values[0])));
    else if (shape.length === 1) drawLine();
    else drawPlane();
    if (hadFocus) stage.querySelector("[tabindex]")?.focus({ preventScroll: true });
    drawStatus();
  }

  function drawValues() {
    const { values, shape } = result;
    const columns = shape.length === 2 ? shape[1] : 1;
    const listed = [...values.slice(0, TEXTS)].map((value, i) => h("tr", {}, h("th", { scope: "row" }, `[${indices(Math.floor(i / columns), i % columns).join(", ")}]`), h("td", {}, h("pre", {}, typeof value === "object" ? JSON.stringify(value) : String(value)))));
    replace(stage, h("div", { class: "scroll values", tabindex: 0, role: "region", "aria-label": "Values" }, h("table", {}, h("tbody", {}, listed))),
      total(result.selection) > listed.length ? notice(`The first ${count(listed.length)} of ${count(total(result.selection))}.`) : null);
  }

  /** Where in the array a value lies. */
  function indices(row, column) {
    const [at, steps] = [result.shape.length === 2 ? [row, column] : [row + column], [...result.step]];
    return result.selection.map((each) => (Array.isArray(each) ? each[0] + at.shift() * steps.shift() : each));
  }

  /** Say a value, where it lies in the array, and what that place is called. */
  function point(row, column, value) {
    pointed = [row, column, value];
    const place = indices(row, column);
    const called = place.flatMap((at, i) => axes[i]?.label(at) ?? []);
    readout.textContent = `[${place.join(", ")}] = ${shown(value)}${called.length ? ` at ${called.join(", ")}` : ""}`;
  }

  function drawLine() {
    const { values, selection, step, statistics: { min = 0, max = 1 } } = result;
    const along = selection.findIndex(Array.isArray);
    const where = { first: selection[along][0], step: step[0], label: axes[along]?.label };
    const [drawn, placeAt] = lines([{ values, kind: "now" }], { width: wide, height: 340, min, max, ...where });
    const label = `${values.length} values along ${name(along)}`;
    const frame = h("div", { class: "curves", tabindex: 0, role: "img", "aria-label": label }, drawn);
    frame.addEventListener("pointermove", (event) => {
      const at = placeAt(event.offsetX);
      point(0, at, values[at]);
    });
    onKeys(frame, moves);
    replace(stage, frame, readout);
  }

  function drawPlane() {
    const { values, shape, missing, statistics: figures } = result;
    const [rows, columns] = result.selection.filter(Array.isArray).map(([start, stop]) => stop - start);
    const ratio = Math.min(4, Math.max(0.3, rows / columns));
    const width = Math.min(wide, Math.round(TALLEST / ratio));
    const height = Math.round(width * ratio);
    const extent = { width: `${width}px`, height: `${height}px` };
    const canvas = h("canvas", { class: shape[1] < width ? "coarse" : "", style: extent });
    const { min = 0, max = 1 } = figures;
    // Colours that diverge have nothing in their middle.
    const most = map === DIVERGING && min < 0 && max > 0 ? Math.max(-min, max) : null;
    drawImage(canvas, result, most ? { map, min: -most, max: most } : { map, min, max });
    const down = result.selection.findIndex(Array.isArray); // the dimension of the rows
    const isTurned = Boolean(axes[down]?.isLatitude && axes[down].ascends); // north is on top
    const rowAt = (part) => (isTurned ? 1 - part : part);
    const box = h("div", { class: "box", hidden: true });
    const frame = h("div", {
      class: `frame ${isTurned ? "turned" : ""}`, tabindex: 0, role: "img", style: { width: `${width}px` },
      "aria-label": `Image of ${lengths(shape)} values, ${figures.finite ? `${shown(figures.min)} to ${shown(figures.max)}` : "none finite"}. Plus and minus zoom, arrows move; a click shows what is there along another dimension.`,
    }, canvas, hatch(missing, shape, width, height), box);
    const at = (event) => {
      const bounds = canvas.getBoundingClientRect();
      const found = [(event.clientY - bounds.top) / bounds.height, (event.clientX - bounds.left) / bounds.width];
      return found.map((each) => Math.min(1, Math.max(0, each)));
    };
    let from = null;
    frame.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = at(event);
      frame.setPointerCapture(event.pointerId);
    });
    frame.addEventListener("pointermove", (event) => {
      const here = at(event);
      const row = Math.min(shape[0] - 1, Math.floor(rowAt(here[0]) * shape[0]));
      const column = Math.min(shape[1] - 1, Math.floor(here[1] * shape[1]));
      point(row, column, values[row * shape[1] + column]);
      if (!from) return;
      box.hidden = false;
      const [[top, height], [left, width]] = here.map((each, i) => [Math.min(from[i], each), Math.abs(each - from[i])]);
      for (const [side, part] of Object.entries({ top, height, left, width })) box.style[side] = `${part * 100}%`;
    });
    frame.addEventListener("pointerup", (event) => {
      const to = at(event);
      const begun = from;
      from = null;
      box.hidden = true;
      const [far, aside] = [0, 1].map((i) => begun && Math.abs(to[i] - begun[i]) * [height, width][i]);
      if (far < 3 && aside < 3 && begun) return alongOther();
      if (!begun || far < 8 || aside < 8) return;
      const ends = [[rowAt(begun[0]), rowAt(to[0])], [begun[1], to[1]]].map((each) => each.sort((a, b) => a - b));
      selection = result.selection.map((each) => {
        if (!Array.isArray(each)) return each;
        const [low, high] = ends.shift();
        const start = each[0] + Math.floor(low * (each[1] - each[0]));
        return [start, Math.max(start + 1, each[0] + Math.ceil(high * (each[1] - each[0])))];
      });
      update();
    });
    onKeys(frame, () => moves(isTurned ? -1 : 1));
    const [rowsOf, columnsOf] = result.selection.flatMap((each, i) => {
      const ends = Array.isArray(each) && axes[i] ? `, ${axes[i].label(each[0])} to ${axes[i].label(each[1] - 1)}` : "";
      return Array.isArray(each) ? [`${name(i)} ${each.join(":")}${ends}`] : [];
    });
    const labels = [`${isTurned ? "↑" : "↓"} ${rowsOf}`, `→ ${columnsOf}`].map((text) => h("span", {}, text));
    replace(stage, h("div", { class: "axes" }, labels), frame, readout);
  }

  /** Show the values at the place that is pointed at along the first dimension that is not seen: a series in time, mostly. */
  function alongOther() {
    const along = selection.findIndex((each, i) => !Array.isArray(each) && node.shape[i] > 1);
    if (along < 0 || !pointed) return;
    selection = indices(...pointed).map((each, i) => (i === along ? [0, node.shape[i]] : each));
    drawControls();
    update();
  }

  function moves(down = 1) {
    const last = result.shape.length - 1; // the dimension of the columns
    const move = (aside) => () => zoom(1, aside);
    return {
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: whole,
      ArrowLeft: move({ [last]: -0.25 }), ArrowRight: move({ [last]: 0.25 }),
      ...(last && { ArrowUp: move({ 0: -0.25 * down }), ArrowDown: move({ 0: 0.25 * down }) }),
    };
  }

  function drawStatus() {
    const { isOverview, isGlance, step, chunks, milliseconds } = result;
    const spent = `in ${milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`}`;
    replace(status, `${isOverview ? "An overview: " : ""}${plural(chunks, "chunk")} (${size(result.bytes)}) read, ${spent}. `,
      isOverview ? `It shows one of ${step.map(count).join(" × ")} values; zoom in to see each. ` : "",
      isOverview && canReadAll(node, result.selection) ? h("button", { type: "button", class: "as-link", onclick: () => update(true) }, "Read all of it") : null);
    status.dataset.shows = isGlance ? "glance" : isOverview ? "overview" : "all";
  }

  function drawSide() {
    const { statistics: figures, missingChunks, shape, chunks, isOverview } = result;
    const { long_name: long, standard_name: standard, units } = node.attributes;
    const called = [long ?? standard, units && `[${units}]`].filter(Boolean).join(" ");
    if (!figures) return replace(side, h("div", { class: "card pad" }, facts([["Values", count(total(result.selection))]])));
    return replace(side, h("div", { class: "card pad figures" },
      h("h2", {}, isOverview ? "Of what is shown" : "Values", called && h("small", { class: "quiet block" }, called)),
      figures.finite && shape.length > 0 && [histogram(figures), shape.length === 2 && colorBar(map), ends(figures)],
      facts([
        ...Object.entries(FIGURES).map(([each, label]) =>
          figures.finite && [label, h("span", { class: "mono" }, shown(figures[each]))]),
        figures.nan ? ["NaN", count(figures.nan)] : null,
        figures.infinite ? ["Infinite", count(figures.infinite)] : null,
        ["Missing chunks", missingChunks ? `${count(missingChunks)} of ${count(chunks)}: fill value ${shown(node.exact.fill_value)}` : "none"],
      ])));
  }
}

