// The data: a tree of groups and arrays, read as far as it is opened, and the node that is chosen.

import { api } from "./api.js";
import { h, icon, onKeys, replace } from "./dom.js";
import { drawNode } from "./node.js";
import { asker, link, refPicker, repository } from "./parts.js";
import { Cache } from "./reader/cache.js";
import { count, lengths, nameOf } from "./words.js";

const FIRST = 50; // members that are read for the first view, and at once afterwards: each may take a request
const PAGE = 200;
const FIRST_PAGES = 1000; // that are kept

export async function show(view, parts, query) {
  const ref = parts[0] ?? "main";
  let chosen = parts.slice(1).join("/");
  const signal = view.signal;
  view.setRef(ref);
  const { id: commit } = await api.commitOf(ref, signal); // all that is drawn is of this one; a branch may move meanwhile
  const hasMoved = () => repository.branches.some(({ name, head }) => name === ref && head && head !== commit);

  const tree = h("div", { class: "tree", role: "tree", "aria-label": "Groups and arrays" });
  const panel = h("section", { class: "node", "aria-live": "off" });
  const picker = refPicker(ref, (name) => { location.hash = link.tree(name, chosen); });
  replace(view.root, h("div", { class: "two data" }, h("aside", { class: "card side" }, picker, tree), panel));

  /** A node of the tree; `members` is null as long as they were not asked for. */
  const nodeOf = (info, depth) => ({ ...info, info, members: null, next: null, open: !depth, depth });
  const root = nodeOf({ path: "", kind: "group" }, 0);
  const byPath = new Map([["", root]]);

  /** The first members of a group, which the tree and the table beside it show: asked for once. */
  const firstPages = new Cache(FIRST_PAGES);
  const firstPage = (path) => firstPages.get(path, 1, () => api.tree(commit, { path, limit: FIRST }, signal));

  async function load(node) {
    if (node.members !== null && node.next === null) return;
    const isFirst = node.members === null;
    const answer = await (isFirst ? firstPage(node.path) : api.tree(commit, { path: node.path, limit: PAGE, after: node.next }, signal));
    if (isFirst && node.members !== null) return; // another call has loaded them meanwhile
    node.members ??= [];
    for (const info of answer.nodes) {
      const member = nodeOf(info, node.depth + 1);
      node.members.push(member);
      byPath.set(info.path, member);
    }
    node.next = answer.next;
  }

  function* visible(node = root) {
    yield node;
    if (!node.open || !node.members) return;
    for (const member of node.members) yield* visible(member);
    if (node.next !== null) yield { path: node.path, more: node, depth: node.depth + 1 };
  }

  let focused = null; // the row that Tab leads to
  function paint(takeFocus = false) {
    const rows = [...visible()];
    focused = rows.find(isFocused) ?? rows.find((each) => !each.more && each.path === chosen) ?? rows[0];
    const elements = rows.map(rowOf);
    tree.replaceChildren(...elements);
    if (takeFocus) elements[rows.indexOf(focused)].focus();
  }
  const isFocused = ({ path, more }) => path === focused?.path && Boolean(more) === Boolean(focused.more);

  function rowOf(node) {
    const { depth } = node;
    const tabindex = node === focused ? 0 : -1;
    const common = { role: "treeitem", "aria-level": depth + 1, tabindex, style: { "--depth": String(depth) } };
    if (node.more)
      return h("div", { ...common, class: "leaf more", "aria-selected": "false", onclick: () => more(node) },
        `Show more … (${count(node.more.members.length)} shown)`);
    const isGroup = node.kind === "group";
    const isEmpty = isGroup && (node.info.children === 0 || node.members?.length === 0);
    return h("div", {
      ...common, class: `leaf ${node.kind}`, "aria-selected": String(node.path === chosen),
      "aria-expanded": isGroup && !isEmpty ? String(node.open) : null, title: node.path || "/",
      onclick: (event) => (event.target.closest(".twist") && isGroup ? toggle(node) : choose(node)) },
      h("span", { class: `twist ${isGroup && !isEmpty ? "" : "none"}`, "aria-hidden": "true" }, isGroup && !isEmpty ? "›" : ""),
      icon(node.kind === "array" ? "array" : "group"),
      h("span", { class: "cut" }, node === root ? "/" : nameOf(node.path)),
      h("small", {}, node.kind === "array" ? lengths(node.info.shape) : node.info.children ? `${count(node.info.children)}${node.info.hasMore ? "+" : ""}` : ""));
  }

  const quietly = (promise) => promise.catch(view.tell);

  async function toggle(node, open = !node.open) {
    node.open = open;
    focused = node;
    if (open && node.members === null) await quietly(load(node));
    paint(true);
  }

  async function more(row) {
    const before = row.more.members.length;
    await quietly(load(row.more));
    focused = row.more.members[before] ?? row.more;
    paint(true);
  }

  function choose(node) {
    view.permalink(link.tree(ref, node.path));
    if (hasMoved()) return void dispatchEvent(new Event("hashchange"));
    chosen = node.path;
    focused = node;
    paint(true);
    if (node.kind === "group" && !node.open && node !== root) toggle(node);
    showNode(new URLSearchParams());
  }

  const ask = asker(signal);
  const showNode = (parameters) => ask(panel, (own) => api.node(commit, chosen, own), (node, own) =>
    drawNode(panel, { ref, node, query: parameters, signal: own, view, firstPage }));

  onKeys(tree, () => {
    const rows = [...visible()];
    const at = rows.findIndex(isFocused);
    const node = rows[at];
    const go = (i) => {
      focused = rows[Math.min(Math.max(0, i), rows.length - 1)];
      paint(true);
    };
    const enter = () => (node.more ? more(node) : choose(node));
    const parent = () => rows.findLastIndex((each, i) => i < at && each.depth < node.depth);
    return {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(rows.length - 1),
      ArrowRight: () => (node.kind !== "group" ? null : node.open ? go(at + 1) : toggle(node, true)),
      ArrowLeft: () => (node.kind === "group" && node.open && node !== root ? toggle(node, false) : go(Math.max(0, parent()))),
      Enter: enter, " ": enter,
    };
  });

  /** Open what leads to the chosen node. */
  const opened = async () => {
    await load(root);
    let node = root;
    const names = chosen ? chosen.split("/") : [];
    for (let i = 0; i < names.length; i++) {
      const path = names.slice(0, i + 1).join("/");
      while (!byPath.has(path) && node.next !== null) await load(node);
      node = byPath.get(path);
      if (!node) break;
      if (i < names.length - 1 || node.kind === "group") {
        node.open = true;
        await load(node);
      }
    }
    focused = byPath.get(chosen) ?? root;
    paint();
    tree.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  };
  await Promise.all([quietly(opened()), showNode(query)]);
  // A link within the same commit moves the choice; it does not draw the tree anew.
  view.moved = (to, parameters) => {
    if (to[0] !== ref || hasMoved()) return false;
    chosen = to.slice(1).join("/");
    quietly(opened());
    showNode(parameters);
    return true;
  };
}
