// Drawing numbers: images with colour maps, lines, histograms.

import { color, sharp } from "./dom.js";
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

const tables = new Map();

/** 256 colours, each as the number that an Uint32Array over the pixels of a canvas takes (little-endian, opaque). */
function table(name) {
  if (!tables.has(name)) {
    const anchors = MAPS[name].map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    tables.set(name, Uint32Array.from({ length: STEPS }, (_, i) => {
      const at = (i / (STEPS - 1)) * (anchors.length - 1);
      const low = Math.min(Math.floor(at), anchors.length - 2);
      const [r, g, b] = anchors[low].map((each, k) => Math.round(each + (anchors[low + 1][k] - each) * (at - low)));
      return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    }));
  }
  return tables.get(name);
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

/** Hatch the places that no chunk is stored for. */
export function drawHatch(canvas, places, shape, width, height) {
  const context = sharp(canvas, width, height);
  const [rows, columns] = shape;
  context.beginPath();
  for (const [top, bottom, left, right] of places) context.rect((left / columns) * width, (top / rows) * height, ((right - left) / columns) * width, ((bottom - top) / rows) * height);
  context.clip();
  // One stroke is seen on dark colours, the other on light ones.
  if (places.length)
    for (const [style, aside] of [["#ffffff70", 0], ["#00000060", 1]]) {
      context.strokeStyle = style;
      context.beginPath();
      for (let x = -height + aside; x < width; x += 8) {
        context.moveTo(x, height);
        context.lineTo(x + height, 0);
      }
      context.stroke();
    }
}

export function drawColorBar(canvas, map) {
  drawImage(canvas, { values: Float32Array.from({ length: STEPS }, (_, i) => i), shape: [1, STEPS] }, { map, min: 0, max: STEPS - 1 });
}

export function drawHistogram(canvas, histogram, width, height) {
  const context = sharp(canvas, width, height);
  const most = Math.max(1, ...histogram);
  const bar = width / histogram.length;
  context.fillStyle = color("--accent-mid");
  histogram.forEach((each, i) => {
    const tall = each ? Math.max(1, (each / most) * (height - 2)) : 0;
    context.fillRect(i * bar + 0.5, height - tall, Math.max(1, bar - 1), tall);
  });
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
 * Draw lines over one another. Where there are more values than pixels, each column shows all of its values, from the
 * lowest to the highest. `series` are {values, color}; `first` and `step` say where in the array they lie, and `label`, if
 * there is one, what these places are called.
 */
export function drawLines(canvas, series, { width, height, first = 0, step = 1, min, max, label = shown }) {
  const context = sharp(canvas, width, height);
  const length = Math.max(...series.map((each) => each.values.length));
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const spread = max > min ? max - min : Math.abs(max) || 1;
  const low = min - spread * 0.04;
  const high = max + spread * 0.04;
  const x = (i) => MARGIN.left + (length > 1 ? (i / (length - 1)) * inner.width : inner.width / 2);
  const y = (value) => MARGIN.top + (1 - (value - low) / (high - low)) * inner.height;
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.lineWidth = 1;
  context.strokeStyle = color("--line");
  context.fillStyle = color("--muted");
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const at of ticks(low, high)) {
    const level = Math.round(y(at)) + 0.5;
    context.beginPath();
    context.moveTo(MARGIN.left, level);
    context.lineTo(width - MARGIN.right, level);
    context.stroke();
    context.fillText(onAxis(at), MARGIN.left - 8, level);
  }
  context.textBaseline = "top";
  for (const at of ticks(first, first + (length - 1) * step, label === shown ? 6 : 4)) {
    const place = x((at - first) / step);
    context.textAlign = place > width - 40 ? "right" : "center";
    if (Number.isInteger(at)) context.fillText(label(at), place, height - MARGIN.bottom + 8);
  }
  for (const { values, color: name, isDashed } of series) {
    context.strokeStyle = color(name);
    context.lineWidth = 1.5;
    context.setLineDash(isDashed ? [5, 4] : []);
    context.lineJoin = "round";
    context.beginPath();
    if (values.length > inner.width * 2) drawEnvelope(context, values, x, y, inner.width);
    else {
      let isDown = false; // the pen
      values.forEach((value, i) => {
        if (Number.isFinite(value)) context[isDown ? "lineTo" : "moveTo"](x(i), y(value));
        isDown = Number.isFinite(value);
      });
    }
    context.stroke();
    context.setLineDash([]);
    if (values.length < 40) {
      context.fillStyle = color(name);
      values.forEach((value, i) => {
        if (!Number.isFinite(value)) return;
        context.beginPath();
        context.arc(x(i), y(value), 2.5, 0, 7);
        context.fill();
      });
    }
  }
  return (clientX) => Math.min(length - 1, Math.max(0, Math.round(((clientX - MARGIN.left) / inner.width) * (length - 1))));
}

function drawEnvelope(context, values, x, y, columns) {
  const per = values.length / columns;
  for (let column = 0; column < columns; column++) {
    let low = Infinity;
    let high = -Infinity;
    for (let i = Math.floor(column * per); i < Math.min(values.length, Math.ceil((column + 1) * per)); i++) {
      if (values[i] < low) low = values[i];
      if (values[i] > high) high = values[i];
    }
    if (low > high || !Number.isFinite(low) || !Number.isFinite(high)) continue;
    const at = x(Math.floor(column * per));
    context.moveTo(at, y(low) + 0.5);
    context.lineTo(at, y(high) - 0.5);
  }
}
