// The differences between two commits: nodes, fields, attributes, regions; pictures of arrays, before and after.

import { api } from "./api.js";
import { read } from "./arrays.js";
import { coordinates } from "./coordinates.js";
import { h, icon, replace } from "./dom.js";
import { table } from "./node.js";
import { failure, line, link, mainBranch, notice, pythonAt, pythonRepository, repository } from "./parts.js";
import { DIVERGING, MAP_NAMES, colorBar, drawImage, ends, lines } from "./picture.js";
import { statistics } from "./statistics.js";
import { count, isId, json, lengths, plural, quoted, short, shown, size } from "./words.js";

const NODES_SHOWN = 200;
const WIDE = 2048; // an image longer than this is shown by its first part
const BESIDE = 50; // members of a group that are looked at for coordinates
const CHANGES = ["added", "removed", "moved", "changed"];

export async function show(view, parts) {
  const head = mainBranch()?.head;
  let [a, b] = parts;
  b ??= head;
  if (!b) return void replace(view.root, h("h1", {}, "Compare"), notice("Nothing was ever committed here."));
  if (!a) {
    const commit = await api.commitOf(b, view.signal);
    a = commit.parents?.[0] ?? commit.id;
  }
  const results = h("div", {}, notice("Comparing …"));
  const go = (from, to) => { location.hash = link.diff(from, to); };
  const fields = [field("Before", a), field("After", b)];
  replace(view.root,
    h("div", { class: "tools" }, h("h1", {}, "Compare"),
      h("form", { class: "compare", onsubmit: (event) => { event.preventDefault(); go(...fields.map((each) => each.querySelector("input").value.trim() || head)); } },
        fields[0], fields[1],
        h("button", { class: "button", type: "submit" }, "Compare"),
        h("button", { class: "icon", type: "button", "aria-label": "Swap before and after", title: "Swap", onclick: () => go(b, a) }, icon("swap"))),
      h("datalist", { id: "refs" }, [...repository.branches, ...repository.tags].slice(0, 1000).map((each) => h("option", { value: each.name })))),
    results,
    line(`${pythonRepository()}.diff(${pythonAt(a)}, ${pythonAt(b)})`));
  draw(results, await api.diff(a, b, view.signal), view);
}

function field(label, ref) {
  return h("label", { class: "picker" }, h("span", {}, label), h("input", { list: "refs", value: isId(ref) ? short(ref) : ref, class: isId(ref) ? "mono" : "", spellcheck: "false", "aria-label": label }));
}

function draw(into, found, view) {
  const ends = { a: found.before?.id, b: found.after.id };
  if (!found.nodes.length) return replace(into, notice("Nothing differs."));
  const counts = CHANGES.map((change) => [change, found.nodes.filter((each) => each.change === change).length]).filter(([, many]) => many);
  const shownNodes = found.nodes.slice(0, NODES_SHOWN);
  return replace(into,
    h("p", { class: "counts" },
      counts.map(([change, many]) => h("span", {}, h("span", { class: `badge ${change}` }, change), " ", count(many))),
      h("span", { class: "quiet" }, `${short(ends.a)} → ${short(ends.b)}`)),
    h("div", { class: "card diffs" }, shownNodes.map((node, i) => nodeRow(node, ends, view, found.nodes.length === 1 || (i === 0 && node.kind === "array")))),
    found.truncated || shownNodes.length < found.nodes.length ? notice("More differs than is shown: the line of Python below tells all of it.") : null);
}

function nodeRow(node, ends, view, isOpen) {
  const body = h("div", { class: "diff-body" });
  const details = h("details", { class: "diff" },
    h("summary", {},
      h("span", { class: `badge ${node.change}` }, node.change),
      icon(node.kind === "array" ? "array" : "group"),
      h("span", { class: "cut strong" }, node.path || "/"),
      node.moved_from !== undefined && node.moved_from !== null ? h("span", { class: "quiet cut" }, `from ${node.moved_from || "/"}`) : null,
      h("small", { class: "quiet end" }, summary(node))),
    body);
  details.addEventListener("toggle", () => drawBody(body, node, ends, view), { once: true });
  details.open = isOpen;
  return details;
}

/** Attributes alone may have changed. */
const hasOtherValues = ({ change, chunks, fields }) =>
  change !== "changed" || chunks.added + chunks.changed + chunks.removed > 0 || fields.some((each) => ["shape", "fill_value"].includes(dotted(each)));

function summary(node) {
  const chunks = node.chunks ?? {};
  return [
    chunks.added ? `${count(chunks.added)} chunks added` : null,
    chunks.changed ? `${count(chunks.changed)} changed` : null,
    chunks.removed ? `${count(chunks.removed)} removed` : null,
    node.attributes?.length ? plural(node.attributes.length, "attribute") : null,
    node.fields?.length ? node.fields.map(dotted).join(", ") : null,
    node.bytes_added ? `+${size(node.bytes_added)}` : null,
    node.bytes_dropped ? `−${size(node.bytes_dropped)}` : null,
  ].filter(Boolean).join(" · ");
}

function drawBody(body, node, ends, view) {
  const values = (changes) => table(["Name", "Before", "After"], changes.map((each) => [
    h("span", { class: "mono" }, dotted(each)),
    h("pre", { class: "gone" }, json(each.before)),
    h("pre", { class: "come" }, json(each.after)),
  ]));
  const pictures = h("div", { class: "pictures" });
  replace(body,
    node.fields?.length ? [h("h3", {}, "Description"), values(node.fields)] : null,
    node.attributes?.length ? [h("h3", {}, "Attributes"), values(node.attributes)] : null,
    node.regions?.length ? [h("h3", {}, "Regions"), regionsOf(node)] : null,
    node.keys?.length ? [h("h3", {}, "Other keys"), h("p", { class: "mono wrap" }, node.keys.join(", "))] : null,
    node.kind === "array" ? pictures : null,
    h("p", { class: "actions" },
      node.change === "removed" ? null : h("a", { class: "button small", href: link.tree(ends.b, node.path) }, "Open after"),
      node.change === "added" || !ends.a ? null : h("a", { class: "button small", href: link.tree(ends.a, node.moved_from ?? node.path) }, "Open before")),
    node.kind === "array" ? line(`${pythonRepository()}.diff(${ends.a ? quoted(ends.a) : "None"}, ${quoted(ends.b)}).values(${quoted(node.path)})`) : null);
  if (node.kind === "array" && node.change !== "moved" && hasOtherValues(node))
    drawPictures(pictures, node, ends, view).catch((error) => { if (error.name !== "AbortError") replace(pictures, failure(error)); });
}

const dotted = ({ name }) => (Array.isArray(name) ? name.join(".") : name);

function regionsOf(node) {
  const text = (region) => `[${region.map(([start, stop]) => (stop === start + 1 ? start : `${start}:${stop}`)).join(", ")}]`;
  return h("p", { class: "regions" }, node.regions.map((each) => h("code", {}, text(each))),
    node.more ? h("span", { class: "quiet" }, `and ${count(node.more)} more`) : null);
}

async function drawPictures(into, node, ends, view) {
  replace(into, notice("Reading before and after …"));
  const [before, after] = await Promise.all([
    node.change === "added" ? null : api.node(ends.a, node.path, view.signal), node.change === "removed" ? null : api.node(ends.b, node.path, view.signal),
  ]);
  const sides = [before, after].filter(Boolean);
  if (sides.some((each) => each.shape.length !== sides[0].shape.length))
    return replace(into, notice("They have other dimensions: there is nothing to subtract."));
  const longest = sides[0].shape.map((_, i) => Math.max(...sides.map((each) => each.shape[i])));
  // Of the last two dimensions the whole, at the place of the first region that differs.
  const selection = longest.map((length, i) =>
    i < longest.length - 2 ? Math.min(node.regions[0]?.[i][0] ?? 0, length - 1) : [0, Math.min(length, WIDE)]);
  const readSide = async (ref, array) => {
    const own = array && clipped(selection, array.shape);
    return own ? read(ref, array, own, { signal: view.signal }) : null;
  };
  const [old, now] = await Promise.all([readSide(ends.a, before), readSide(ends.b, after)]);
  const found = [old, now].filter(Boolean);
  if (!found.every((each) => each.isNumeric)) {
    const textOf = (value) => JSON.stringify(value) ?? String(value);
    const texts = [old, now].map((side) => (side ? Array.from(side.values.slice(0, 20), textOf).join("\n") : "–"));
    return replace(into, table(["Before", "After"], [texts.map((text) => h("pre", {}, text))]));
  }
  if (!found.length) return replace(into);
  const min = Math.min(...found.map((each) => each.statistics.min ?? Infinity));
  const max = Math.max(...found.map((each) => each.statistics.max ?? -Infinity));
  const difference = old && now ? subtract(old, now) : null;
  const commit = after ? ends.b : ends.a;
  const firstPage = (path) => api.tree(commit, { path, limit: BESIDE }, view.signal);
  const newest = after ?? before;
  const known = await coordinates({ commit, node: newest, signal: view.signal, firstPage }).catch(() => []); // else positions are told
  const axes = known.map((axis, i) => (newest.shape[i] === longest[i] ? axis : null));
  const placed = (each, i) => {
    const [first, last] = [each].flat();
    if (!axes[i]) return [each].flat().join(":");
    return last === undefined ? axes[i].label(first) : `${axes[i].label(first)} to ${axes[i].label(last - 1)}`;
  };
  const where = selection.map(placed).join(", ");
  const caption = h("p", { class: "quiet" }, `At [${where}]`, found.some((each) => each.isOverview) ? ", of some of the values." : ".");
  if (found[0].shape.length === 2)
    replace(into, caption, h("div", { class: "triple" },
      old ? figure("Before", old, MAP_NAMES[0], min, max) : noFigure("Before", "not there"), now ? figure("After", now, MAP_NAMES[0], min, max) : noFigure("After", "not there"), difference ? differenceFigure(difference) : noFigure("Difference", old && now ? "read in other steps: zoom in on each" : "nothing to subtract")));
  else if (found[0].shape.length === 1) {
    const [first] = selection.find(Array.isArray);
    const common = { width: Math.max(260, into.clientWidth - 4), first, step: found[0].step[0], label: axes[selection.findIndex(Array.isArray)]?.label };
    const curves = (label, series, options) =>
      h("div", { class: "curves", role: "img", "aria-label": label }, lines(series, { ...common, ...options })[0]);
    const both = [old && { values: old.values, kind: "before" }, now && { values: now.values, kind: "now" }];
    const keys = ["before", "after"].map((each) => h("span", { class: `key ${each}` }, each));
    const change = difference && { height: 140, min: 0, max: 0, ...statistics(difference.values) };
    replace(into, caption, h("div", { class: "legend-row" }, keys),
      curves("Before, dashed, and after", both.filter(Boolean), { height: 220, min, max }),
      difference && [h("p", { class: "quiet" }, "Difference"),
        curves("Difference", [{ values: difference.values, kind: "change" }], change)]);
  } else
    replace(into, h("p", { class: "scalar" }, old ? shown(old.values[0]) : "–", " → ", now ? shown(now.values[0]) : "–"));
}

/** A selection within a shape, or null where it lies outside. */
function clipped(selection, shape) {
  const found = selection.map((each, i) => (Array.isArray(each) ? [each[0], Math.min(each[1], shape[i])] : each));
  return found.every((each, i) => (Array.isArray(each) ? each[0] < each[1] : each < shape[i])) ? found : null;
}

/** After less before, where both are. */
function subtract(old, now) {
  const shape = old.shape.map((each, i) => Math.min(each, now.shape[i]));
  if (String(old.step) !== String(now.step)) return null;
  const width = shape.at(-1) ?? 1;
  const out = new Float64Array(shape.reduce((a, b) => a * b, 1));
  for (let i = 0; i < out.length; i++) {
    const row = Math.floor(i / width);
    const column = i % width;
    const was = old.values[row * (old.shape.at(-1) ?? 1) + column];
    const is = now.values[row * (now.shape.at(-1) ?? 1) + column];
    out[i] = Number.isNaN(was) && Number.isNaN(is) ? 0 : is - was;
  }
  return { values: out, shape, step: old.step };
}

const noFigure = (label, why) => h("figure", {}, h("div", { class: "nothing" }, why), h("figcaption", {}, label));

function figure(label, found, map, min, max) {
  const canvas = h("canvas", { class: found.shape[1] < 320 ? "coarse" : "", role: "img", "aria-label": `${label}: ${lengths(found.shape)} values` });
  drawImage(canvas, found, { map, min, max });
  canvas.style.aspectRatio = String(Math.min(3, Math.max(0.4, found.shape[1] / found.shape[0])));
  return h("figure", {}, canvas, colorBar(map), ends({ min, max }), h("figcaption", {}, label));
}

function differenceFigure(difference) {
  const { min = 0, max = 0, nan } = statistics(difference.values);
  const most = Math.max(Math.abs(min), Math.abs(max)) || 1;
  let differing = nan;
  for (const each of difference.values) if (each) differing += 1;
  return figure(`Difference: ${plural(differing, "value")}`, difference, DIVERGING, -most, most);
}
