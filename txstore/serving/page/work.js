// The current work: open transactions, their participants, held locks, and how far feeds are behind.

import { api, hasServer } from "./api.js";
import { h, replace } from "./dom.js";
import { table } from "./node.js";
import { chip, facts, failure, line, link, moment, notice, pythonRepository } from "./parts.js";
import { count, plural, short, size } from "./words.js";

const EVERY = 3000; // milliseconds between two requests, while the page is visible
const NODES_SHOWN = 8;
const STATES = { attached: "may still stage", sealed: "has done what it meant to do", lost: "died before it was done" };
const KINDS = {
  table: "Processes of this machine hold locks in a table in memory.",
  ranges: "Processes hold locks on ranges of a file.",
  files: "Processes of several machines hold locks by files.",
};

export async function show(view) {
  const transactions = h("section", { "aria-labelledby": "open" });
  const locks = h("section", { "aria-labelledby": "held" });
  const feeds = h("section", { "aria-labelledby": "feeds" });
  replace(view.root,
    h("div", { class: "tools" }, h("h1", {}, "Work"), hasServer ? h("span", { class: "quiet" }, "looked at every 3 seconds") : null),
    h("div", { class: "work" },
      h("div", {}, h("h2", { id: "open" }, "Open transactions"), transactions),
      h("div", {}, h("h2", { id: "held" }, "Locks held"), locks,
        h("h2", { id: "feeds" }, "Feeds"), feeds)),
    line(`${pythonRepository()}.transactions()`));
  const look = async (into, ask, draw) => {
    try {
      const told = await ask(view.signal);
      const now = JSON.stringify(told);
      if (into.now === now) return; // what is selected or focused stays
      into.now = now;
      replace(into, draw(told));
    } catch (error) {
      if (error.name !== "AbortError") replace(into, failure(error));
    }
  };
  const all = () => Promise.all([
    look(feeds, api.feeds, drawFeeds), ...(hasServer ? [look(transactions, api.transactions, drawTransactions), look(locks, api.locks, drawLocks)] : []),
  ]);
  if (!hasServer) {
    replace(transactions, notice("Open transactions are not in the files of a repository: `txstore serve` shows them."));
    replace(locks, notice("Locks are not in the files of a repository: `txstore serve` shows them."));
    return all();
  }
  const timer = setInterval(() => document.hidden || all(), EVERY);
  view.signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  view.committed = all;
  return all();
}

function drawTransactions({ visible, transactions }) {
  if (!visible) return notice("The server's user may not see what is staged here.");
  if (!transactions.length) return notice("Nothing is staged. (What a process has not yet written down is its own affair.)");
  return transactions.map((each) =>
    h("article", { class: "card pad" },
      h("h3", {}, each.name ?? "without a name", each.branch ? [" ", chip("branch", each.branch)] : null),
      each.message ? h("p", {}, each.message) : null,
      facts([
        each.owner ? ["By", each.owner] : null,
        each.time ? ["Begun", moment(each.time)] : null,
        each.base ? ["Begun from", h("a", { class: "mono", href: link.history(each.base) }, short(each.base))] : null,
        ["Staged", `${plural(sum(each.processes, "keys"), "key")}, ${size(sum(each.processes, "bytes"))}`],
        ["Id", h("span", { class: "mono wrap" }, each.id)],
      ]),
      each.processes.length
        ? table(["Process", "State", "Keys", "Size", "Where"], each.processes.map((one) => [
            h("span", { class: "mono" }, processOf(one)), state(one), count(one.keys), size(one.bytes), nodesOf(one.nodes, "keys"),
          ]))
        : notice("No process takes part now.")));
}

const sum = (processes, what) => processes.reduce((all, each) => all + (each[what] ?? 0), 0);
const processOf = ({ host, pid, number }) => (pid === null || pid === undefined ? `process ${number ?? "?"}` : `${host ?? ""}${host ? ":" : ""}${pid}`);

function state({ alive, sealed }) {
  const name = sealed ? "sealed" : alive ? "attached" : "lost";
  return h("span", { class: `badge ${name}`, title: STATES[name] }, name);
}

function nodesOf(nodes, what) {
  const shownNodes = (nodes ?? []).slice(0, NODES_SHOWN);
  return h("div", { class: "wrap" }, shownNodes.map((each) => h("div", {}, each.path || "/", h("small", { class: "quiet" }, ` ${count(each[what])}`))),
    (nodes ?? []).length > NODES_SHOWN ? h("small", { class: "quiet" }, `and ${count(nodes.length - NODES_SHOWN)} more`) : null);
}

function drawLocks({ visible, kind, holders, committing }) {
  if (!visible) return notice("The server's user may not see who holds locks here.");
  return [
    committing ? h("div", { class: "card pad" }, facts([["Committing", committing]])) : null,
    holders.length
      ? h("div", { class: "card" }, table(["Process", "Locks", "Where"], holders.map((each) => [
          h("span", { class: "mono" }, each.pid ?? "–"), each.locks === null ? "some" : count(each.locks), nodesOf(each.nodes, "locks"),
        ])))
      : notice("No lock is held."),
    kind ? notice(KINDS[kind] ?? kind) : null,
  ];
}

function drawFeeds({ feeds }) {
  if (!feeds.length) return notice("No job takes changes from a feed.");
  return h("div", { class: "card" }, table(["Feed", "Follows", "Behind"], feeds.map((each) => [
    h("span", { class: "mono" }, each.name),
    h("div", { class: "wrap" }, chip("branch", each.branch), " ", each.paths.join(", ") || "everything"),
    each.too_late ? h("span", { class: "badge lost", title: each.too_late }, "too late")
      : each.pending ? `${plural(each.behind, "commit")}${each.shared ? ", shared by workers" : ""}` : "nothing pending",
  ])));
}
