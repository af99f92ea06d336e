// The history: all commits, newest first, as a graph; and the details of the chosen commit.

import { api } from "./api.js";
import { h, onKeys, replace } from "./dom.js";
import { ROW, draw, layOut, width } from "./graph.js";
import { asker, chips, facts, failure, line, link, moment, notice } from "./parts.js";
import { pythonRepository, repository, written } from "./parts.js";
import { json, plural, quoted, short, size, title, when } from "./words.js";

const FIRST = 25; // commits that are read for the first view, and at once afterwards: each may take a request
const PAGE = 100;
const AHEAD = 30; // rows that are drawn beyond what is seen
const NODES_SHOWN = 100;
const SOUGHT = 5000; // commits that are read to find one that a link leads to
const NARROW = 820; // as in style.css

export async function show(view, parts, query) {
  const filter = { from: query.get("from") ?? "", path: query.get("path") ?? "" };
  const state = { commits: [], rows: [], next: null, loading: null, chosen: parts[0] ?? null, wide: 40, ended: false };
  const signal = view.signal;

  const space = h("div", { class: "log-space" });
  const list = h("div", { class: "log", role: "listbox", tabindex: 0, "aria-label": "Commits, newest first" }, space);
  const detail = h("section", { class: "detail card", "aria-label": "The chosen commit" });
  const total = h("span", { class: "quiet" });
  const path = h("input", { type: "search", placeholder: "a path: only what changed it", "aria-label": "Only commits that changed this path", value: filter.path, spellcheck: "false" });
  const goTo = (changes) => {
    const given = Object.entries({ ...filter, ...changes }).filter(([, value]) => value);
    location.hash = `#/history${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  };
  path.addEventListener("change", () => goTo({ path: path.value.replace(/^\/+|\/+$/g, "") }));
  const { from, path: below } = filter;
  const python = [from && from !== "main" && quoted(from), below && `path=${quoted(below)}`];
  replace(view.root,
    h("div", { class: "tools" },
      h("h1", {}, "History"),
      h("label", { class: "picker" }, h("span", {}, "Branch"),
        h("select", { onchange: (event) => goTo({ from: event.target.value }) },
          h("option", { value: "" }, "all branches"),
          repository.branches.map(({ name }) => h("option", { value: name, selected: name === filter.from }, name)))),
      path, total),
    repository.lists === false ? notice("The host of these files lists no names, so only the branch main is shown. Data and Compare take the names of others.") : null,
    h("div", { class: "two" }, h("div", { class: "card log-card" }, list), detail),
    line(`${pythonRepository()}.log(${python.filter(Boolean).join(", ")})`));

  function arrange() {
    state.rows = layOut(state.commits);
    state.wide = width(state.rows);
    space.style.height = `${state.commits.length * ROW + (state.ended ? 0 : ROW)}px`;
    const read = plural(state.commits.length, "commit");
    total.textContent = state.ended ? read : `${read} read, more below`;
    paint();
  }

  const more = () => (state.ended ? null : (state.loading ??= readMore()));

  async function readMore() {
    const asked = api.commits({ ...filter, before: state.next, limit: state.next ? PAGE : FIRST }, signal);
    const { commits, next } = await asked.catch((error) => view.tell(error) ?? { commits: [], next: null });
    state.commits.push(...commits);
    Object.assign(state, { next, ended: !next, loading: null }); // with a path, an answer may be empty and not the last
    arrange();
  }

  function rowOf(commit, i) {
    return h("div", {
      class: "row", role: "option", id: `row-${i}`, "aria-selected": String(commit.id === state.chosen),
      "aria-posinset": i + 1, "aria-setsize": state.ended ? state.commits.length : -1,
      style: { transform: `translateY(${i * ROW}px)` }, onclick: () => {
        choose(i);
        if (innerWidth <= NARROW) detail.scrollIntoView({ block: "start" });
      } },
      draw(state.rows[i], state.wide, commit.parents.length > 1),
      h("div", { class: "row-text" },
        h("div", { class: "row-top" }, h("span", { class: "row-title" }, title(commit.message)), chips(commit)),
        h("div", { class: "row-under" }, h("span", { class: "mono" }, short(commit.id)), h("span", { class: "cut" }, commit.author), moment(commit.time))),
      h("div", { class: "row-size" }, commit.stored_bytes ? size(commit.stored_bytes) : "–", h("small", {}, plural(commit.statistics.keys_set, "key"))));
  }

  function paint() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - AHEAD);
    const last = Math.min(state.commits.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + AHEAD);
    const shown = state.commits.slice(first, last).map((commit, i) => rowOf(commit, first + i));
    if (!state.ended) shown.push(h("div", { class: "row quiet pad", style: { transform: `translateY(${state.commits.length * ROW}px)` } }, "More …"));
    space.replaceChildren(...shown);
    const at = state.commits.findIndex((each) => each.id === state.chosen);
    if (at >= first && at < last) list.setAttribute("aria-activedescendant", `row-${at}`);
    else list.removeAttribute("aria-activedescendant");
    if (last + AHEAD >= state.commits.length) more();
  }

  let drawing = 0;
  list.addEventListener("scroll", () => {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      paint();
    });
  });
  new ResizeObserver(paint).observe(list);

  function bringIntoView(i) {
    const top = i * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  }

  function choose(i) {
    const commit = state.commits[i];
    if (!commit) return;
    state.chosen = commit.id;
    view.permalink(`#/history/${commit.id}${location.hash.includes("?") ? location.hash.slice(location.hash.indexOf("?")) : ""}`);
    bringIntoView(i);
    paint();
    showDetail(commit);
  }

  onKeys(list, () => {
    const at = state.commits.findIndex((each) => each.id === state.chosen);
    const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const go = (to) => () => choose(Math.min(Math.max(0, to), state.commits.length - 1));
    const toOldest = async () => {
      while (!state.ended && !signal.aborted) await more();
      choose(state.commits.length - 1);
    };
    const toData = () => { location.hash = link.tree(state.chosen ?? "main"); };
    return {
      ArrowDown: go(at + 1), ArrowUp: go(at - 1), PageDown: go(at + page), PageUp: go(at - page),
      Home: go(0), End: toOldest, Enter: toData,
    };
  });

  /** Choose a commit that may be far below. */
  async function chooseById(id) {
    const commit = await api.commitOf(id, signal);
    state.chosen = commit.id;
    showDetail(commit);
    const find = () => state.commits.findIndex((each) => each.id === commit.id);
    while (find() < 0 && !state.ended && state.commits.length < SOUGHT && !signal.aborted) await more();
    if (find() >= 0) bringIntoView(find());
    paint();
  }

  const ask = asker(signal);
  function showDetail(commit) {
    const nodes = h("div", { class: "what-changed" }, notice("Looking at what it changed …"));
    replace(detail, aboutCommit(commit), nodes);
    ask(nodes, (own) => api.commit(commit.id, own), (answer) => replace(nodes, changedNodes(commit, answer)));
  }

  view.committed = async () => {
    if (filter.path) return;
    // The walk reads no commit again that it has seen; names may have moved to others.
    const answer = await api.commits({ ...filter, limit: state.commits.length + FIRST }, signal).catch(view.tell);
    if (!answer) return;
    const fresh = answer.commits.findIndex((each) => each.id === state.commits[0]?.id);
    Object.assign(state, { commits: answer.commits, next: answer.next, ended: !answer.next });
    if (list.scrollTop > 0 && fresh > 0) list.scrollTop += fresh * ROW; // what is looked at stays where it is
    arrange();
  };

  do await more();
  while (!state.commits.length && !state.ended && !signal.aborted);
  const nothing = filter.path ? "No commit has changed anything there." : "Nothing was ever committed here.";
  if (!state.commits.length) return void replace(detail, notice(nothing));
  if (state.chosen) await chooseById(state.chosen).catch((error) => signal.aborted || replace(detail, failure(error)));
  else {
    state.chosen = state.commits[0].id;
    paint();
    showDetail(state.commits[0]);
  }
  // A link to another commit moves the choice; the list stays.
  view.moved = ([id], parameters) => {
    if (!id || Object.entries(filter).some(([name, value]) => (parameters.get(name) ?? "") !== value)) return false;
    chooseById(id).catch(view.tell);
    return true;
  };
}

function aboutCommit(commit) {
  const { message, parents, properties } = commit;
  const rest = message.split("\n").slice(1).join("\n").trim();
  return [
    h("h2", {}, title(message)),
    rest ? h("p", { class: "message" }, rest) : null,
    h("p", { class: "chips" }, chips(commit)),
    h("p", { class: "actions" },
      h("a", { class: "button", href: link.tree(commit.id) }, "Browse the data"),
      parents.length ? h("a", { class: "button", href: link.diff(parents[0], commit.id) }, "Compare with before") : null),
    facts([
      ["Author", commit.author || "–"],
      ["Time", h("time", { datetime: commit.time }, when(commit.time))],
      ["Commit", h("span", { class: "mono wrap" }, commit.id)],
      ["Wrote", written(commit) || "nothing"],
      ["On", `${commit.branch}@${commit.version}`],
      parents.length ? [parents.length > 1 ? "Parents" : "Parent", parents.map((id) => h("a", { class: "mono block", href: link.history(id) }, short(id)))] : null,
      Object.keys(properties).length > 0 && ["Properties", h("pre", {}, json(properties))],
    ]),
    line(`${pythonRepository()}.commit(${quoted(commit.id)})`),
  ];
}

function changedNodes(commit, { changed: nodes, truncated }) {
  const [parent] = commit.parents;
  if (!nodes) return notice("What it changed is not known: its parent is not kept.");
  if (!nodes.length) return notice("It changed no array and no group.");
  return [
    h("h3", {}, `${plural(nodes.length, "array or group", "arrays and groups")} changed`),
    h("ul", { class: "nodes" }, nodes.slice(0, NODES_SHOWN).map(({ change, path, chunks }) => {
      const href = change !== "removed" && link.tree(commit.id, path);
      const touched = Object.values(chunks ?? {}).reduce((all, each) => all + each, 0);
      return h("li", {},
        h("span", { class: `badge ${change}` }, change),
        h(href ? "a" : "span", { class: "cut", href }, path || "/"),
        h("small", { class: "quiet" }, touched > 0 && plural(touched, "chunk")));
    })),
    nodes.length > NODES_SHOWN || truncated ? notice("… and more: ", parent ? h("a", { href: link.diff(parent, commit.id) }, "all of it") : null) : null,
  ];
}


