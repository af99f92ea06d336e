// What goes on now: open transactions, who stages into them, and the locks that are held.

import { api } from "./api.js";
import { h, replace } from "./dom.js";
import { table } from "./node.js";
import { chip, facts, failure, line, moment, notice, pythonRepository } from "./parts.js";
import { count, json, plural, size } from "./words.js";

const EVERY = 3000; // milliseconds between two looks, while the page is seen

export async function show(view) {
  const transactions = h("section", { "aria-labelledby": "open" });
  const locks = h("section", { "aria-labelledby": "held" });
  replace(
    view.root,
    h("div", { class: "tools" }, h("h1", {}, "Work"), h("span", { class: "quiet" }, "looked at every 3 seconds")),
    h("div", { class: "work" },
      h("div", {}, h("h2", { id: "open" }, "Open transactions"), transactions),
      h("div", {}, h("h2", { id: "held" }, "Locks held"), locks)),
    line(`${pythonRepository()}.transactions()`),
  );
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
  const all = () => Promise.all([look(transactions, api.transactions, drawTransactions), look(locks, api.locks, drawLocks)]);
  const timer = setInterval(() => document.hidden || all(), EVERY);
  view.signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  view.onCommit(all);
  await all();
}

function drawTransactions({ transactions }) {
  if (!transactions.length) return notice("No transaction with a name is open.");
  return transactions.map((each) =>
    h("article", { class: "card pad" },
      h("h3", {}, each.name || each.id, " ", chip("branch", each.branch)),
      each.message ? h("p", {}, each.message) : null,
      facts([["By", each.owner || "–"], ["Begun", moment(each.time)], ["Staged", staged(each)]]),
      each.participants?.length ? table(["Process", "State", "Keys", "Size"], each.participants.map((one) => [
        h("span", { class: "mono" }, `${one.host}:${one.pid}`),
        h("span", { class: `badge ${one.state}` }, one.state),
        count(keysOf(each, one)),
        size(one.bytes),
      ])) : notice("No process takes part now.")));
}

function staged({ participants = [], staged_by: by = {} }) {
  const keys = Object.values(by).reduce((sum, each) => sum + (Array.isArray(each) ? each.length : Number(each)), 0);
  return `${plural(keys, "key")}, ${size(participants.reduce((sum, each) => sum + (each.bytes ?? 0), 0))}`;
}

function keysOf({ staged_by: by = {} }, { host, pid }) {
  const label = Object.keys(by).find((each) => each.includes(String(pid)) && each.includes(host));
  const found = by[label];
  return Array.isArray(found) ? found.length : found;
}

function drawLocks({ locks, truncated }) {
  if (!locks.length) return notice("No lock is held.");
  return [
    h("div", { class: "card" }, table(["Key", "Mode", "Held by", "Since"], locks.map((each) => [
      h("span", { class: "mono wrap" }, each.key ?? json(each.keys)),
      each.mode ?? "–",
      typeof each.holder === "string" ? each.holder : each.holder ? holder(each.holder) : "–",
      each.since ? moment(each.since) : "–",
    ]))),
    truncated ? notice("Some of them; there are more.") : null,
  ];
}

const holder = ({ host, pid, owner, label }) => label ?? [owner, host && pid ? `${host}:${pid}` : (host ?? pid)].filter(Boolean).join(" · ");
