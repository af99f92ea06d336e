// Drawing numbers: images with colour maps, lines, histograms.

import { h, svg } from "./dom.js";
import { statistics } from "./statistics.js";
import { shown } from "./words.js";

const MAPS = {
  Viridis: ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"],
  Magma: ["000004", "1c1044", "4f127b", "812581", "b5367a", "e55064", "fb8761", "fec287", "fcfdbf"],
  Grey: ["0a0a0a", "f7f7f7"],
  "Blue – red": ["2166ac", "67a9cf", "d1e5f0", "f7f7f7", "fddbc7", "ef8a62", "b2182b"],
};
export const MAP_NAMES = Object.keys(MAPS);
export const DIVERGING = "Blue – red";
const STEPS = 256;

/** 256 colours, each as the number that an Uint32Array over the pixels of a canvas takes (little-endian, opaque). */
function table(name) {
  const anchors = MAPS[name].map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return Uint32Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (anchors.length - 1);
    const low = Math.min(Math.floor(at), anchors.length - 2);
    const [r, g, b] = anchors[low].map((each, k) => Math.round(each + (anchors[low + 1][k] - each) * (at - low)));
    return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
  });
}

/** Draw values as an image, one pixel each; values that are not finite stay transparent. */
export function drawImage(canvas, { values, shape }, { map, min, max }) {
  const [height, width] = shape.length === 2 ? shape : [1, shape[0] ?? 1];
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = table(map);
  const scale = max > min ? (STEPS - 1) / (max - min) : 0;
  for (let i = 0; i < pixels.length; i++) {
    const value = values[i];
    if (value === value && value !== Infinity && value !== -Infinity)
      pixels[i] = colors[Math.min(STEPS - 1, Math.max(0, Math.round((value - min) * scale)))];
  }
  context.putImageData(image, 0, 0);
}

/** What hatches the places that no chunk is stored for. */
export function hatch(places, [rows, columns], width, height) {
  const [x, y] = [(at) => round((at / columns) * width), (at) => round((at / rows) * height)];
  const box = ([top, bottom, left, right]) => `M${x(left)} ${y(top)}H${x(right)}V${y(bottom)}H${x(left)}z`;
  const path = `path("${places.map(box).join("")}")`;
  return h("div", { class: "cover", hidden: !places.length, style: { "clip-path": path } });
}

/** A bar of all colours. */
export function colorBar(map) {
  const canvas = h("canvas", { class: "scale", "aria-hidden": "true" });
  drawImage(canvas, { values: Float32Array.from({ length: STEPS }, (_, i) => i), shape: [1, STEPS] }, { map, min: 0, max: STEPS - 1 });
  return canvas;
}

/** What the ends of a bar, or of a histogram, mean. */
export const ends = ({ min, max }) => h("div", { class: "ends" }, h("span", {}, shown(min)), h("span", {}, shown(max)));

/** How many values lie where between the least and the greatest. */
export function histogram({ histogram: counts, min, max }) {
  const most = Math.max(1, ...counts);
  const bars = counts.map((each) => h("span", { style: { height: each ? `max(1px, ${(100 * each) / most}%)` : "0" } }));
  return h("div", { class: "bars", role: "img", "aria-label": `Histogram from ${shown(min)} to ${shown(max)}` }, bars);
}

/** Round numbers between two, some five of them. */
export function ticks(min, max, wanted = 5) {
  if (!(max > min)) return [min];
  const rough = (max - min) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(min / step) * step; at <= max + step * 1e-9 && found.length <= wanted + 1; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** A number of `ticks`, as short as it can be. */
const onAxis = (at) => {
  const [long, brief] = [shown(at), Number(at.toPrecision(6)).toExponential()];
  return long.length > 8 && brief.length < long.length ? brief : long;
};

const MARGIN = { left: 64, right: 14, top: 12, bottom: 26 };

/**
 * Lines over one another, and what tells which value lies at an x. Where there are more values than pixels, each column
 * shows all of its values, from the lowest to the highest. `series` are {values, kind}; `first` and `step` say where in
 * the array they lie, and `label`, if there is one, what these places are called.
 */
export function lines(series, { width, height, first = 0, step = 1, min, max, label = shown }) {
  const length = Math.max(...series.map((each) => each.values.length));
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const spread = max > min ? max - min : Math.abs(max) || 1;
  const low = min - spread * 0.04;
  const high = max + spread * 0.04;
  const x = (i) => round(MARGIN.left + (length > 1 ? (i / (length - 1)) * inner.width : inner.width / 2));
  const y = (value) => round(MARGIN.top + (1 - (value - low) / (high - low)) * inner.height);
  const levels = ticks(low, high).map((at) => [
    svg("path", { class: "level", d: `M${MARGIN.left} ${Math.round(y(at)) + 0.5}H${width - MARGIN.right}` }),
    svg("text", { x: MARGIN.left - 8, y: y(at), "text-anchor": "end", "dominant-baseline": "central" }, onAxis(at)),
  ]);
  const steps = ticks(first, first + (length - 1) * step, label === shown ? 6 : 4).filter(Number.isInteger);
  const places = steps.map((at) => {
    const place = { x: x((at - first) / step), y: height - MARGIN.bottom + 8 };
    const anchor = place.x > width - 40 ? "end" : "middle";
    return svg("text", { ...place, "text-anchor": anchor, "dominant-baseline": "hanging" }, label(at));
  });
  const drawn = series.map(({ values, kind }) => {
    const d = values.length > inner.width * 2 ? envelope(values, x, y, inner.width) : through(values, x, y);
    const dot = (value, i) => Number.isFinite(value) && svg("circle", { class: kind, cx: x(i), cy: y(value), r: 2.5 });
    return [svg("path", { class: kind, d }), values.length < 40 && Array.from(values, dot)];
  });
  const clip = (i) => Math.min(length - 1, Math.max(0, Math.round(i)));
  const placeAt = (at) => clip(((at - MARGIN.left) / inner.width) * (length - 1));
  return [svg("svg", { class: "lines", width, height }, levels, places, drawn), placeAt];
}

const round = (at) => Math.round(at * 100) / 100;

/** A path through all values that are finite. */
function through(values, x, y) {
  const command = (i) => (Number.isFinite(values[i - 1]) ? "L" : "M");
  return Array.from(values, (value, i) => (Number.isFinite(value) ? `${command(i)}${x(i)} ${y(value)}` : "")).join("");
}

function envelope(values, x, y, columns) {
  const per = values.length / columns;
  const column = (_, at) => {
    const { min, max } = statistics(values.subarray(Math.floor(at * per), Math.ceil((at + 1) * per)));
    return min === undefined ? "" : `M${x(Math.floor(at * per))} ${y(min) + 0.5}V${y(max) - 0.5}`;
  };
  return Array.from({ length: columns }, column).join("");
}
