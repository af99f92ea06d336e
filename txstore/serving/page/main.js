// The shell: chooses the view, follows the repository, handles colours and keys.

import { api, files, follow } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { failure, link, mainBranch, notice, repository } from "./parts.js";
import { title } from "./words.js";

const VIEWS = { // their names, where they lead, and what draws them
  history: ["History", () => link.history(), () => import("./history.js")],
  tree: ["Data", () => link.tree(lookedAt), () => import("./tree.js")],
  diff: ["Compare", () => "#/diff", () => import("./diff.js")],
  work: ["Work", () => "#/work", () => import("./work.js")],
  usage: ["Usage", () => link.usage(lookedAt), () => import("./usage.js")],
};
const TOAST_SECONDS = 6;

const main = document.getElementById("main");
let current = null; // the view that is shown; `moved`, `committed` and `themed` are what it does then
let lookedAt = "main"; // the commit, tag or branch that was looked at last

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").map((each) => {
    try {
      return decodeURIComponent(each);
    } catch {
      return each; // a stray per cent sign, typed by hand
    }
  });
  return { name: Object.hasOwn(VIEWS, parts[0]) ? parts[0] : "history", parts: parts.slice(1).filter((each) => each !== ""), query: new URLSearchParams(query) };
}

async function route() {
  const { name, parts, query } = parse();
  if (current?.name === name && current.moved?.(parts, query)) return;
  current?.abort.abort();
  const abort = new AbortController();
  const root = h("div", { class: `view view-${name}` });
  const view = {
    name, root, abort, signal: abort.signal,
    /** Write the current view into the address, without drawing it again. */
    permalink: (hash) => history.replaceState(null, "", hash),
    tell: (error) => { if (error.name !== "AbortError") toast(error.message, "bad"); },
    setRef: (ref) => {
      lookedAt = ref;
      drawNavigation(name);
    },
  };
  current = view;
  drawNavigation(name);
  main.classList.add("waiting");
  try {
    if (!repository.exists && name !== "work") {
      main.replaceChildren(root);
      replace(root, h("h1", {}, "Nothing was written yet"), notice("What is committed first appears here by itself."));
      view.committed = route;
      return;
    }
    const module = await VIEWS[name][2]();
    if (abort.signal.aborted) return;
    main.replaceChildren(root);
    main.scrollTop = 0;
    await module.show(view, parts, query);
  } catch (error) {
    if (error.name === "AbortError" || abort.signal.aborted) return;
    main.replaceChildren(root);
    replace(root, h("h1", { class: "offscreen" }, "Error"), failure(error));
    if (!error.isTold) console.error(error);
  } finally {
    main.classList.remove("waiting");
  }
}

function drawNavigation(name) {
  replace(document.getElementById("nav"), Object.entries(VIEWS).map(([key, [label, href]]) =>
    h("a", { href: href(), "aria-current": key === name ? "page" : null }, label)));
}

async function refresh() {
  Object.assign(repository, await api.repository());
  document.getElementById("name").textContent = repository.name || repository.url;
  document.title = `${repository.name || repository.url} · TxStore`;
}

const STATES = {
  files: [
    "from files",
    "Read from the files of the repository, without a server: load the page again to see new commits.",
  ],
  lost: ["offline", "The server does not answer; the page tries again."],
};

function told(kind, event) {
  const live = document.getElementById("live");
  [live.textContent, live.title] = STATES[kind] ?? ["live", "New commits appear by themselves."];
  live.classList.toggle("on", !STATES[kind]);
  if (kind === "commit") arrived(true);
  // The heads come first again: they show the commits that were made while the page was not connected.
  if (kind === "heads" && Object.entries(event).some(([name, id]) => repository.head?.[name] !== id)) arrived(false);
}

let isWaiting = false;
let isNews = false;
let turn = Promise.resolve(); // one look after the other: else an older one could end last
function arrived(isCommit) {
  isNews ||= isCommit;
  if (isWaiting) return; // of many commits a second, the page shows some
  isWaiting = true;
  setTimeout(() => { turn = turn.then(lookAgain); }, 300);
}

async function lookAgain() {
  isWaiting = false;
  try {
    await refresh();
    await current?.committed?.();
    if (!isNews) return;
    isNews = false;
    const { commits } = await api.commits({ limit: 1 });
    if (commits[0]) toast(`${commits[0].branch}: ${title(commits[0].message)}`, "new", link.history(commits[0].id));
  } catch {
    told("lost");
  }
}

function toast(text, kind, href) {
  const shown = h(href ? "a" : "div", { class: `toast ${kind}`, href }, text);
  const all = document.getElementById("toasts");
  all.append(shown);
  while (all.children.length > 3) all.firstChild.remove();
  setTimeout(() => shown.remove(), TOAST_SECONDS * 1000);
}

const THEMES = { "": ["system", "as the system"], light: ["light", "light"], dark: ["dark", "dark"] };

function drawTheme() {
  const [name, words] = THEMES[document.documentElement.dataset.theme ?? ""];
  const button = document.getElementById("theme");
  replace(button, icon(name));
  button.setAttribute("aria-label", `Colours: ${words}`);
  button.title = `Colours: ${words}`;
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("txstore.theme", next);
  } catch {
    // forbidden: it holds until the page is left
  }
  drawTheme();
  current?.themed?.();
}

const help = () => document.getElementById("keys").showModal();

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog")) return;
  const view = document.querySelectorAll("#nav a")[Number(event.key) - 1];
  if (view && /^[1-5]$/.test(event.key)) location.assign(view.href);
  else if (event.key === "?") help();
});

document.getElementById("help").addEventListener("click", help);
document.getElementById("theme").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current?.themed?.());
addEventListener("hashchange", route);
drawTheme();
drawNavigation("history");
document.getElementById("host").textContent = new URL(files).host;
VIEWS[parse().name][2]().catch(() => null); // it comes meanwhile; `route` says if it doesn't
try {
  await refresh();
  lookedAt = mainBranch()?.name ?? lookedAt;
  await route();
  follow(told);
} catch (error) {
  replace(main, failure(error));
}
