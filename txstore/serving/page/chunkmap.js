// The chunk map: the grid of an array, each chunk in the colour of the commit that wrote it.

import { api } from "./api.js";
import { color, h, onKeys, replace } from "./dom.js";
import { asker, link, moment, notice, pythonRef, pythonRepository } from "./parts.js";
import { count, plural, quoted, short, title } from "./words.js";

const TALLEST = 520;
const MARGIN = 14;
const NAMED = 12; // commits in the legend
const PALETTE = 8;

export function drawChunkMap(into, context) {
  const { node, commit, signal, view } = context;
  const lengths = node.shards ?? node.chunks;
  if (!Array.isArray(lengths) || node.shape.some((each) => each === 0))
    return void replace(into, notice("There is no grid of chunks to show."));
  const grid = node.shape.map((length, i) => Math.max(1, Math.ceil(length / lengths[i])));
  const from = grid.map(() => 0);
  const [rowAxis, columnAxis] = [-2, -1, ...grid.keys()].filter((i) => i < 0 || grid[i] > 1).slice(-2); // the last ones that have chunks
  const name = (i) => node.dimension_names?.[i] || `dim ${i}`;
  let found = null;
  let colored = "blame";
  let at = [0, 0];

  const tooltip = h("p", { class: "readout", role: "status" });
  const stage = h("div", { class: "card stage" });
  const legend = h("div", { class: "aside" });
  const modes = h("div", { class: "zoom", role: "group", "aria-label": "Colour by" },
    [["blame", "Who wrote each"], ["this", "What this commit wrote"]].map(([key, label]) =>
      h("button", { type: "button", class: "button small", "aria-pressed": String(key === colored), onclick: (event) => {
        colored = key;
        for (const each of event.target.parentNode.children) each.setAttribute("aria-pressed", String(each === event.target));
        draw();
      } }, label)));
  const sliders = grid.flatMap((length, i) => (i === rowAxis || i === columnAxis || length === 1 ? [] : [slider(i)]));
  replace(into, h("div", { class: "controls" }, modes, sliders.length ? h("div", { class: "sliders" }, sliders) : null),
    h("div", { class: "preview" }, h("div", { class: "stage-column" }, stage, tooltip), legend));
  const blamed = [quoted(node.path), pythonRef(context.ref).replace(/^tag=/, "")].filter(Boolean).join(", ");
  context.setPython(`${pythonRepository()}.blame(${blamed}).chunks`);
  view.themed = () => found && into.contains(stage) && draw();
  let wide = 0; // of the stage, when it was last drawn
  const observer = new ResizeObserver(() => found && stage.clientWidth !== wide && draw());
  observer.observe(stage);
  signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  const ask = asker(signal);
  load();

  function slider(i) {
    const output = h("output", { class: "mono" }, "0");
    return h("label", { class: "slider" }, h("span", {}, `${name(i)}, chunk`),
      h("input", { type: "range", min: 0, max: grid[i] - 1, value: 0, "aria-label": `${name(i)}, chunk`, oninput: (event) => {
        from[i] = Number(event.target.value);
        output.textContent = from[i];
        load();
      } }), output);
  }

  function load() {
    const shape = grid.map((length, i) => (i === rowAxis || i === columnAxis ? length : 1));
    ask(stage, (own) => api.chunks(commit, node.path, { from: [...from], shape }, own), (answer) => {
      found = answer;
      draw();
    });
  }

  let colorOf = null; // of the commits of the map

  function draw() {
    const [rows = 1, columns = 1] = [found.shape[rowAxis], found.shape[columnAxis]]; // of cells
    wide = stage.clientWidth;
    if (wide <= 0) return;
    const hadFocus = stage.contains(document.activeElement);
    const side = Math.min(56, (wide - 2 * MARGIN) / columns, Math.max(2, TALLEST / rows));
    const width = Math.max(1, Math.round(side * columns));
    const height = Math.max(8, Math.round(side * rows));
    const scale = devicePixelRatio; // so that it is sharp on dense screens, too
    const canvas = h("canvas", {
      class: "map", tabindex: 0, role: "application", "aria-roledescription": "chunk map",
      "aria-label": `Chunk map of ${plural(rows, "row")} and ${plural(columns, "column")}. Arrows choose a chunk.`,
      width: Math.round(width * scale), height: Math.round(height * scale),
      style: { width: `${width}px`, height: `${height}px` },
    });
    const context2d = canvas.getContext("2d");
    context2d.scale(scale, scale);
    colorOf = colors(found.seqs.length);
    const gap = side > 5 ? 1 : 0;
    const empty = color("--empty");
    const accent = color("--accent");
    const dim = color("--dim");
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        const index = found.cells[row * columns + column];
        const mine = index >= 0 && index === found.this;
        context2d.fillStyle = index < 0 ? empty : colored === "blame" ? colorOf(index) : mine ? accent : dim;
        context2d.fillRect(column * (width / columns), row * (height / rows), width / columns - gap, height / rows - gap);
      }
    const cursor = h("span", { class: "cursor", hidden: true });
    const place = () => {
      cursor.hidden = false;
      Object.assign(cursor.style, { left: `${(at[1] * width) / columns}px`, top: `${(at[0] * height) / rows}px`, width: `${width / columns}px`, height: `${height / rows}px` });
      tell();
    };
    const moveTo = (row, column) => {
      at = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
      place();
    };
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) =>
      moveTo(Math.floor((offsetY / height) * rows), Math.floor((offsetX / width) * columns)));
    canvas.addEventListener("click", open);
    canvas.addEventListener("focus", place);
    const step = (down, across) => () => moveTo(at[0] + down, at[1] + across);
    onKeys(canvas, () => ({
      Enter: open, ArrowUp: step(-1, 0), ArrowDown: step(1, 0), ArrowLeft: step(0, -1), ArrowRight: step(0, 1),
    }));
    replace(stage, h("div", { class: "map-frame" }, canvas, cursor));
    if (hadFocus) canvas.focus({ preventScroll: true });
    drawLegend();
  }

  const cell = () => found.cells[at[0] * (found.shape[columnAxis] ?? 1) + at[1]];

  /** The commit that the map has by this number: null if it is no longer kept. Of many commits, the older ones are looked for one by one. */
  const writer = async (index) => (found.commits[index] === undefined ? (found.commits[index] = await api.bySeq(commit, found.seqs[index])) : found.commits[index]);

  async function open() {
    const index = cell();
    const by = index >= 0 && (await writer(index).catch(view.tell));
    if (by) location.hash = link.history(by.id);
  }

  async function tell() {
    const { step } = found;
    const index = cell();
    const chunk = from.map((each, i) => (i === rowAxis ? at[0] * step[i] : i === columnAxis ? at[1] * step[i] : each));
    const many = step.reduce((a, b) => a * b, 1);
    const where = `Chunk [${chunk.join(", ")}]${many > 1 ? ` and ${count(many - 1)} beside it` : ""}: `;
    const here = `${at}`;
    const by = index < 0 ? null : await writer(index).catch(view.tell);
    if (here !== `${at}` || by === undefined) return;
    tooltip.textContent = where + (index < 0 ? "not stored, all fill value" : by ? `${title(by.message)}${by.author ? ` · ${by.author}` : ""}` : "by a commit that is no longer kept");
  }

  function drawLegend() {
    const commits = found.commits.slice(0, NAMED);
    const counts = new Map();
    for (const index of found.cells) counts.set(index, (counts.get(index) ?? 0) + 1);
    const written = found.this >= 0 ? counts.get(found.this) : 0;
    const swatch = (name) => h("span", { class: "swatch", style: { background: name } });
    const entries = colored === "this"
      ? [h("li", {}, swatch(color("--accent")), `written by this commit: ${count(written)}`), h("li", {}, swatch(color("--dim")), "written before")]
      : commits.map((each, i) => h("li", {}, swatch(colorOf(i)),
          h("div", { class: "cut" },
            each ? h("a", { href: link.history(each.id) }, title(each.message)) : "no longer kept",
            h("small", { class: "quiet cut block" }, each ? [h("span", { class: "mono" }, short(each.id)), " · ", moment(each.time), " · "] : "", count(counts.get(i) ?? 0)))));
    replace(legend, h("div", { class: "card pad" },
      h("h2", {}, colored === "this" ? "This commit" : plural(found.seqs.length, "commit")),
      h("ul", { class: "legend" }, entries,
        found.seqs.length > commits.length && colored === "blame" ? h("li", { class: "quiet" }, `and ${plural(found.seqs.length - commits.length, "older commit")}`) : null,
        counts.has(-1) ? h("li", {}, h("span", { class: "swatch empty" }), `not stored: ${count(counts.get(-1))}`) : null)));
  }
}

/** What gives each of so many commits a colour: of many, from the newest, which stands out, to the oldest. */
function colors(many) {
  if (many <= PALETTE) {
    const found = Array.from({ length: many }, (_, i) => color(`--c${i}`));
    return (index) => found[index];
  }
  const [newest, middle, oldest] = ["--newest", "--middle", "--oldest"].map((name) => color(name).match(/\d+/g).map(Number));
  return (index) => {
    const part = index / (many - 1);
    const [from, to, share] = part < 0.5 ? [newest, middle, part * 2] : [middle, oldest, part * 2 - 1];
    return `rgb(${from.map((each, i) => Math.round(each + (to[i] - each) * share)).join(",")})`;
  };
}
