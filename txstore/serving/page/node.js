// One group or array: its type, preview, chunks and attributes, and the ways to open it in other programs.

import { api, hasServer, zarrAddress } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { drawChunkMap } from "./chunkmap.js";
import { asker, facts, failure, line, link, notice, pythonRef, pythonRepository, repository, tabs } from "./parts.js";
import { drawPreview } from "./preview.js";
import { IMPOSSIBLE, count, json, lengths, nameOf, plural, quoted, shellWord, size } from "./words.js";

const MEMBERS = 200;

export function drawNode(panel, context) {
  const { ref, node } = context;
  const isArray = node.kind === "array";
  const python = h("div", { class: "python" });
  context.setPython = (text) => replace(python, line(text));
  const path = node.path ? `, path=${quoted(node.path)}` : "";
  const snapshot = `${pythonRepository()}.snapshot(${pythonRef(ref)})`;
  context.opening = `zarr.open_${isArray ? "array" : "group"}(${snapshot}${path}, mode="r")`;
  context.commit = node.commit; // what never changes, so that the browser may keep what it read of it
  context.setPython(context.opening);

  const checked = (draw) => (into) => (node.shape ? draw(into) : replace(into, failure(new Error(IMPOSSIBLE))));
  const pages = isArray
    ? [["preview", "Preview", checked((into) => (context.drawn = drawPreview(into, context)))], ["chunks", "Chunks", checked((into) => drawChunkMap(into, context))]]
    : [["members", "Members", (into) => (context.drawn = drawMembers(into, context))]];
  pages.push(["details", "Details", (into) => drawDetails(into, context)]);
  const chosen = context.query.get("view") ?? pages[0][0];
  context.tab = chosen;
  const [list, body] = tabs(pages, chosen, (key) => {
    context.tab = key;
    context.query = new URLSearchParams({ view: key });
    context.view.permalink(link.tree(ref, node.path, key === pages[0][0] ? "" : `view=${key}`));
    context.setPython(context.opening);
  });
  const told = summary(node);
  const names = node.path.split("/").slice(0, -1);
  const crumbs = h("div", { class: "crumbs" },
    h("nav", { "aria-label": "Path" },
      h("a", { href: link.tree(ref), "aria-label": "The root" }, "/"),
      names.map((name, i) => [h("a", { href: link.tree(ref, names.slice(0, i + 1).join("/")) }, name), h("span", { class: "quiet" }, "/")])),
    h("h1", {}, icon(isArray ? "array" : "group"), nameOf(node.path)));
  replace(panel, crumbs, told, list, body, python);
  measure().catch(context.view.tell);

  /** Fill in the slow facts last, so that the rest of the page does not wait for them. */
  async function measure() {
    await context.drawn;
    Object.assign(node, await api.measured(context.commit, node.path, context.signal));
    told.replaceWith(summary(node));
    if (context.tab === "details") drawDetails(body, context);
  }
}

function summary(node) {
  const stored = node.stored_bytes === undefined ? null : `${size(node.stored_bytes)} stored`;
  const bytes = [node.logical_bytes === null ? null : size(node.logical_bytes), stored].filter(Boolean).join(", ");
  const ofArray = () => [lengths(node.shape), dtypeOf(node), bytes, present(node)];
  const told = node.kind === "array" ? ofArray() : ["group", members(node), stored];
  return h("p", { class: "summary" }, told.filter(Boolean).map((text) => h("span", {}, text)));
}

export const members = ({ children, hasMore }) => (hasMore ? `more than ${plural(children, "member")}` : plural(children, "member"));
export const dtypeOf = (node) => (typeof node.dtype === "string" ? node.dtype : json(node.dtype));

function present(node) {
  const of = node.chunks_stored;
  return of?.total ? (of.present === of.total ? plural(of.total, "chunk") : `${count(of.present)} of ${plural(of.total, "chunk")} stored`) : null;
}

function drawDetails(into, context) {
  const { node, commit } = context;
  const address = zarrAddress(commit, node.path);
  const isArray = node.kind === "array";
  const { constraints = [], views = [], chunks_stored: { present, total } = {} } = node; // as far as it was measured
  const codecs = node.codecs?.map((each) => (typeof each === "string" ? each : (each.name ?? each.id ?? json(each))));
  const attributes = Object.entries(node.exact.attributes);
  const ratio = node.logical_bytes && node.stored_bytes ? node.logical_bytes / node.stored_bytes : null;
  replace(into,
    h("div", { class: "card pad" }, facts([
      ["Zarr format", node.zarr_format ?? "–"],
      isArray && ["Shape", lengths(node.shape)],
      isArray && ["Dimensions", node.dimension_names?.map((each) => each ?? "–").join(", ") || "–"],
      isArray && ["Chunks", lengths(node.chunks)],
      isArray && node.shards && ["Shards", lengths(node.shards)],
      isArray && ["Data type", h("span", { class: "mono" }, dtypeOf(node))],
      isArray && ["Fill value", h("span", { class: "mono" }, isNumber(node.fill_value) ? node.fill_value : json(node.exact.fill_value))],
      isArray && ["Codecs", h("span", { class: "mono", title: json(node.codecs) }, codecs.join(" → ") || "none")],
      isArray && node.logical_bytes !== null && ["Logical", size(node.logical_bytes)],
      node.stored_bytes !== undefined && ["Stored", size(node.stored_bytes), ratio ? h("small", { class: "quiet" }, ` 1 : ${ratio.toFixed(ratio < 10 ? 1 : 0)}`) : null],
      isArray && total > 0 && ["Chunks stored",
        h("meter", { min: 0, max: total, value: present, "aria-label": "Chunks stored" }),
        ` ${count(present)} of ${count(total)}`],
    ])),
    card("Attributes",
      attributes.length ? table(["Name", "Value"], attributes.map(([name, value]) => [name, h("pre", {}, typeof value === "string" ? value : json(value))])) : notice("There are none.")),
    constraints.length > 0 && card("Constraints",
      table(["Name", "What every commit has to keep"], constraints.map(({ name, ...value }) => [name, h("pre", {}, json(value))]))),
    views.length > 0 && card("Views",
      table(["Name", "Kind", "Derived", "Of", "Makes", "Now"], views.map((view) => [
        view.name, view.kind, view.when === "commit" ? "by each commit" : "later",
        view.sources.join(", "), view.outputs.join(", "), view.current ? "current" : "behind",
      ]))),
    hasServer && card("Open in",
      line(address, "Zarr"),
      isArray || node.attributes?.multiscales || node.attributes?.ome ? elsewhere(address, node) : null,
      notice("These pages are on other hosts. Nothing is sent there until you follow a link, and they must be able to reach this server.")));
}

const card = (heading, ...content) => h("div", { class: "card pad" }, h("h2", {}, heading), content);

/** Numbers that are not finite are strings in the documents of Zarr. */
const isNumber = (value) => /^-?(NaN|Infinity)$/.test(value);

function elsewhere(address, node) {
  const state = { layers: [{ name: nameOf(node.path), source: `${node.zarr_format === 2 ? "zarr2" : "zarr3"}://${address}`, type: "image" }] };
  const links = [
    ["neuroglancer", `https://neuroglancer-demo.appspot.com/#!${encodeURIComponent(JSON.stringify(state))}`],
    ["vizarr", `https://hms-dbmi.github.io/vizarr/?source=${encodeURIComponent(address)}`],
  ];
  const refused = links.map(([, href]) => new URL(href).origin).filter((origin) => ![origin, "*"].some((each) => repository.origins?.includes(each)));
  return [
    h("p", { class: "actions" }, links.map(([name, href]) =>
      h("a", { class: "button", href, target: "_blank", rel: "noopener noreferrer" }, name, icon("out")))),
    refused.length ? line(`txstore serve ${shellWord(repository.url)} ${refused.map((each) => `--allow-origin ${each}`).join(" ")}`, "So that they may read") : null,
  ];
}

export function table(heads, rows) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": heads.join(", ") }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

function drawMembers(into, { ref, commit, node, signal, firstPage }) {
  replace(into, notice("Reading …"));
  const body = h("tbody");
  const button = h("button", { class: "button", type: "button", onclick: () => more() }, "Show more");
  const heads = ["Name", "Shape", "Chunks", "Data type"].map((head) => h("th", { scope: "col" }, head));
  heads.push(h("th", { scope: "col", class: "end" }, "Size"));
  const shown = h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Members" },
    h("table", { class: "members" }, h("thead", {}, h("tr", {}, heads)), body));
  const ask = asker(signal);
  let after = null;
  const { path } = node;
  const page = (own) => (after ? api.tree(commit, { path, limit: MEMBERS, after }, own) : firstPage(path));
  const more = () => ask(into, page, ({ nodes, next }) => {
    body.append(...nodes.map((each) => memberRow(ref, each)));
    button.hidden = next === null;
    if (!after) replace(into, nodes.length ? shown : notice("Nothing lies here."), button);
    after = next;
  });
  return more();
}

function memberRow(ref, each) {
  const isArray = each.kind === "array";
  return h("tr", {},
    h("td", {}, h("a", { class: "member", href: link.tree(ref, each.path) }, icon(isArray ? "array" : "group"), h("span", { class: "cut" }, nameOf(each.path)))),
    h("td", {}, each.fault ?? (isArray ? lengths(each.shape) : members(each))),
    h("td", {}, isArray ? lengths(each.chunks) : ""),
    h("td", { class: "mono" }, isArray ? dtypeOf(each) : ""),
    h("td", { class: "end" }, isArray ? size(each.logical_bytes) : ""));
}
