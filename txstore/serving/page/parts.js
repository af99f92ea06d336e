// Elements that several views use.

import { h, icon, onKeys, replace } from "./dom.js";
import { ago, isId, plural, quoted, short, size, when } from "./words.js";

/** What is known of the repository, for all views: `main.js` fills it, and again when a commit comes. */
export const repository = { url: "", name: "", branches: [], tags: [] };

export const mainBranch = () => repository.branches.find((each) => each.name === "main") ?? repository.branches[0];

export const link = {
  history: (id) => (id ? `#/history/${id}` : "#/history"),
  tree: (ref, path = "", query = "") =>
    `#/tree/${encodeURIComponent(ref)}/${path.split("/").map(encodeURIComponent).join("/")}${query && `?${query}`}`,
  diff: (a, b) => `#/diff/${encodeURIComponent(a)}/${encodeURIComponent(b)}`,
  usage: (ref) => `#/usage/${encodeURIComponent(ref)}`,
};

/** Where Python begins: the repository, as it was given to the server. */
export const pythonRepository = () => `txstore.Repository(${quoted(repository.url)})`;

/** The arguments of `snapshot` and `blame` that name a commit. */
export function pythonRef(ref) {
  if (isId(ref)) return quoted(ref);
  if (repository.tags.some((each) => each.name === ref)) return `tag=${quoted(ref)}`;
  return ref === "main" ? "" : `branch=${quoted(ref)}`;
}

/** The same where only a value will do. */
export function pythonAt(ref) {
  const branch = repository.branches.find((each) => each.name === ref);
  return branch?.head && !repository.tags.some((each) => each.name === ref) ? quoted(branch.head) : quoted(ref);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a clipboard (plain http from another host), the user can copy the selected text.
    const field = h("textarea", { class: "offscreen" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  replace(button, icon("done"));
  setTimeout(() => replace(button, icon("copy")), 1400);
}

/** A line to be copied: of Python, or an address. */
export function line(text, label = "Python") {
  const button = h("button", { class: "icon", type: "button", "aria-label": `Copy: ${label}`, title: "Copy" }, icon("copy"));
  button.addEventListener("click", () => copy(text, button));
  return h("div", { class: "line" }, h("span", { class: "line-label" }, label), h("code", { tabindex: 0, role: "group", "aria-label": label }, text), button);
}

export const chip = (kind, name) => h("span", { class: `chip ${kind}` }, icon(kind), h("span", {}, name));
export const chips = (commit) =>
  [commit.branches.map((name) => chip("branch", name)), commit.tags.map((name) => chip("tag", name))];
export const moment = (time) => h("time", { datetime: time, title: when(time) }, ago(time));

/** Name and value pairs. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
export const notice = (text, ...more) => h("p", { class: "quiet notice" }, text, more);
export const failure = (error) =>
  h("div", { class: "failure", role: "alert" }, h("strong", {}, error.name === "NotFoundError" ? "Not here. " : "That did not work. "), error.message);

/** What begins a turn, and ends the one before: it returns a signal that is aborted then, or when the given one is. */
export function turns(signal) {
  let last = new AbortController();
  signal.addEventListener("abort", () => last.abort(), { once: true });
  return () => {
    last.abort();
    if (!signal.aborted) last = new AbortController();
    return last.signal;
  };
}

/** What asks, and draws the answer, or says in an element why there is none; of several, only the last one counts. */
export function asker(signal) {
  const begin = turns(signal);
  return async (into, ask, draw) => {
    const own = begin();
    try {
      const answer = await ask(own);
      if (!own.aborted) draw(answer, own);
    } catch (error) {
      if (!own.aborted) replace(into, failure(error));
    }
  };
}

/** What a commit wrote: "3 keys of 1 array, 2 MiB". */
export function written({ statistics: { keys_set: set, arrays, keys_deleted, prefixes_deleted, bytes_set: bytes } }) {
  const deleted = keys_deleted + prefixes_deleted;
  const keys = set && `${plural(set, "key")} in ${plural(arrays, "array")}`;
  return [keys, deleted && `${plural(deleted, "key")} deleted`, bytes && size(bytes)].filter(Boolean).join(", ");
}

/** A select of branches and tags; of a commit, too, if that is what is shown. */
export function refPicker(ref, onChange) {
  const options = (kind, names) =>
    names.length ? h("optgroup", { label: kind }, names.slice(0, 1000).map((name) => h("option", { value: name, selected: name === ref }, name))) : null;
  const known = [...repository.branches, ...repository.tags].some((each) => each.name === ref);
  return h("label", { class: "picker" }, h("span", {}, "At"),
    h("select", { onchange: (event) => onChange(event.target.value) },
      known ? null : h("optgroup", { label: "Commit" }, h("option", { value: ref, selected: true }, short(ref))),
      options("Branches", repository.branches.map((each) => each.name)),
      options("Tags", repository.tags.map((each) => each.name))));
}

/** Tabs. `pages` are [key, label, draw]; draw(panel) fills the panel when it is first shown. */
export function tabs(pages, chosen, onChoose) {
  const panel = h("div", { role: "tabpanel", class: "panel", id: "panel" });
  const buttons = pages.map(([key, label]) =>
    h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => choose(key, true) }, label));
  const list = h("div", { role: "tablist", class: "tabs", "aria-label": "What to show" }, buttons);
  function choose(key, told) {
    const at = Math.max(0, pages.findIndex((each) => each[0] === key));
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", i === at);
      button.tabIndex = i === at ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", buttons[at].id);
    panel.replaceChildren();
    if (told) onChoose(pages[at][0]);
    pages[at][2](panel);
  }
  const go = (step) => {
    const next = (buttons.findIndex((each) => each.tabIndex === 0) + step + pages.length) % pages.length;
    choose(pages[next][0], true);
    buttons[next].focus();
  };
  onKeys(list, () => ({ ArrowRight: () => go(1), ArrowLeft: () => go(-1) }));
  choose(chosen, false);
  return [list, panel];
}
