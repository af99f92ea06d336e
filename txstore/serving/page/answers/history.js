// The history of all branches, from the files of commits.

import { follows } from "../reader/commits.js";
import { NotFoundError } from "../reader/errors.js";
import { NONE } from "../reader/repository.js";
import { differing } from "./compare.js";
import { cut } from "../words.js";
import { hasKeys } from "./nodes.js";

const SOUGHT = 200; // commits that are looked at for one answer about a path
const KEPT = 20_000; // commits that are remembered
const TOLD = 20_000; // characters of what a commit says
const READ = 50; // branches, and tags, of which the commits are read for the first view: each takes requests
const NAMED = 1000; // that the page lists
const WALKS = 100; // walks that are remembered

export class History {
  constructor(repository) {
    this.repository = repository;
    this.known = new Map(); // commits that were seen, by id
    this.called = new Map(); // branches and tags, by id of their commits
    this.heads = []; // as of the last look: [[name, commit], ...]
    this.walks = new Map(); // walks that an answer may go on with, by the name that it has given
    this.given = 0;
    this.unread = []; // files of branches of which the heads were not read
  }

  note(stored) {
    if (this.known.size > KEPT) this.known.delete(this.known.keys().next().value);
    this.known.set(stored.header.id, stored);
    return stored;
  }

  /** The commit that a branch, a tag, or an id or its first digits name. */
  async stored(ref) {
    const known = this.known.get(ref);
    if (known) return known;
    const [, name, back] = /^(.+)~(\d{0,9})$/.exec(ref) ?? [];
    const above = name && (await this.stored(name)); // `main~2`: two commits before
    const branch = (await this.repository.branch(ref)) ?? (this.unread.includes(ref) ? await this.repository.recordOf(ref) : undefined);
    const found = (above && (await this.bySeq(above, above.header.seq - Number(back || 1)))) ?? (branch && (await this.repository.head(branch))) ?? (await this.repository.tagged(ref)) ?? (/^[0-9a-f]{8,32}$/.test(ref) && (await this.byDigits(ref)));
    if (!found) throw new NotFoundError(`${JSON.stringify(ref)} is no branch, tag or commit here`);
    return this.note(found);
  }

  async byDigits(digits) {
    for (const [id, stored] of this.known) if (id.startsWith(digits)) return stored;
    for await (const stored of this.walk()) if (this.note(stored).header.id.startsWith(digits)) return stored;
    return undefined;
  }

  /** The first parent: null if there is none, undefined if it is no longer kept. */
  async parent(stored) {
    const { parent, fork, branch, version } = stored.header;
    if (parent === NONE) return null;
    // Its file may be there, and those of its runs not.
    if (fork === undefined && version <= this.keptOf(branch) && !this.called.has(parent)) return undefined;
    const found = this.seenParent(stored) ?? (await this.repository.commits.made(fork ?? branch, version - 1));
    return found && follows(stored, found) ? this.note(found) : undefined;
  }

  /** The oldest version of a branch that is kept; -1: not known. */
  keptOf(branch) {
    return Math.max(-1, ...this.heads.flatMap(([, { header }]) => (header.branch === branch ? [header.oldestKept] : [])));
  }

  /** The first parent, if it was seen before. It lies in the version below: a stranger's header may name any commit, even one that names it in turn. */
  seenParent(stored) {
    const { parent, fork, branch, version } = stored.header;
    const found = this.known.get(parent);
    return found && found.header.version === version - 1 && found.header.branch === (fork ?? branch) && follows(stored, found) ? found : undefined;
  }

  /** Look for the newest commit of each branch, and for tags. Where the host lists no names, `main` is what is known. */
  async look() {
    const { repository } = this;
    const listed = (directory) => repository.list(directory, {}).then((names) => names.sort(), () => null);
    const [branches, tags, main] = await Promise.all([listed("branches"), listed("tags"), repository.find("main")]);
    // Of one that can't be read, what it names is not known, and the others are shown. The last names are mostly the newest.
    const readable = (names, read) => Promise.all((names ?? []).slice(-READ).map(async (name) => [name, await read(name).catch(() => undefined)]));
    const head = async (name) => {
      const record = await repository.recordOf(name);
      return record && [record.name, await repository.head(record)];
    };
    const [named, found] = await Promise.all([readable(branches, head), readable(tags, (name) => repository.tag(name))]);
    this.heads = [["main", main], ...named.map(([, each]) => each ?? [])].filter(([, stored]) => stored);
    this.unread = (branches ?? []).filter((file) => !named.some(([name, each]) => each && name === file)).slice(-NAMED);
    this.called = new Map();
    const call = (id, kind, name) => {
      if (!this.called.has(id)) this.called.set(id, { branches: [], tags: [] });
      this.called.get(id)[kind].push(name);
    };
    for (const [name, stored] of this.heads) call(this.note(stored).header.id, "branches", name);
    for (const [name, tag] of found) if (tag) call(tag.id, "tags", name);
    return {
      exists: this.heads.length > 0, lists: branches !== null,
      head: Object.fromEntries(this.heads.map(([name, { header }]) => [name, header.id])),
      branches: [...this.heads.map(([name, { header }]) => ({ name, head: header.id })), ...this.unread.map((name) => ({ name }))],
      tags: (tags ?? []).slice(-NAMED).map((name) => ({ name })),
    };
  }

  /** Commits, the newest first: of all branches, or from one on. With a path, those that changed something there. `next` tells how to go on. */
  async commits({ from, before, path, limit }, signal) {
    if (before && !this.walks.has(before)) throw new Error("The history is read anew: load the page again.");
    const walk = this.walks.get(before) ?? this.walk(from && (await this.stored(from)));
    this.walks.delete(before);
    const found = [];
    for (let looked = 0; found.length < limit && looked < (path ? SOUGHT : limit); looked++) {
      signal?.throwIfAborted();
      const { value: stored } = await walk.next();
      if (!stored) return { commits: found, next: null };
      this.note(stored);
      if (!path || (await this.hasChanged(stored, path))) found.push(this.told(stored));
    }
    const next = String(++this.given);
    this.walks.set(next, walk);
    if (this.walks.size > WALKS) this.walks.delete(this.walks.keys().next().value);
    return { commits: found, next };
  }

  /** Whether a commit has changed a key at or below a path. Its own run, which is the first, has all that it may have changed. */
  async hasChanged(stored, path) {
    const [own] = stored.header.runs;
    if (!own || own.pack) return false;
    const store = this.repository.storeOf(stored);
    const run = await store.run(own);
    const isNamed = [...run.index.prefixes.keys()].some((each) => each.startsWith(`${path}/`) || `${path}/`.startsWith(each));
    if (!isNamed && !(await hasKeys(run.below(new TextEncoder().encode(`${path}/`))))) return false;
    const parent = await this.parent(stored);
    if (parent === undefined) return false; // what it has changed is not known
    return !(await differing([this.repository.storeOf(parent ?? undefined), store], path).next()).done;
  }

  told(stored) {
    const { time, parent, mergedParent, author, message, properties, ...commit } = this.repository.commitOf(stored);
    const [keys_set = 0, keys_deleted = 0, prefixes_deleted = 0, bytes_set = 0, arrays = 0] = stored.header.statistics;
    return {
      ...commit, ...cut({ author, message, properties }, { size: TOLD }), parents: [parent, mergedParent].filter(Boolean), time: time.toISOString(),
      statistics: { keys_set, keys_deleted, prefixes_deleted, bytes_set, arrays }, stored_bytes: bytes_set,
      ...(this.called.get(commit.id) ?? { branches: [], tags: [] }),
    };
  }

  /** A commit and its ancestors by the first parent, the newest first. Those that were seen before are not read again. */
  async *line(stored) {
    let last = stored;
    for (let next = last; next; next = this.seenParent(last)) yield (last = next);
    if (last.header.parent === NONE) return;
    const kept = this.keptOf(last.header.branch);
    const rest = this.repository.below(last, Infinity, kept < 0 ? undefined : kept);
    await rest.next();
    yield* rest;
  }

  /** The commit with this number in the history of another one; null: it is no longer kept. */
  async bySeq(stored, seq) {
    const { header } = stored;
    // Along one line, versions and numbers are equally far apart.
    const version = seq - (header.seq - header.version);
    const name = this.repository.names.get(header.branch);
    const lineage = version >= 0 && name ? ((await this.repository.branch(name))?.lineage ?? []) : [];
    const branch = lineage.reduce((found, { id, upto }) => (version <= upto ? id : found), header.branch);
    const found = seq === header.seq ? stored : version >= 0 ? await this.repository.commits.made(branch, version) : undefined;
    if (found?.header.seq === seq) return this.note(found);
    for await (const each of this.line(stored)) if (each.header.seq <= seq) return each.header.seq === seq ? this.note(each) : null;
    return null;
  }

  /** Commits and their ancestors, each once, the newest first: of one commit, or of all branches. */
  async *walk(begin) {
    const seen = new Set();
    let lines = []; // {line, head}: ancestors by the first parent, and the next of them
    const add = async (stored) => {
      const line = this.line(stored);
      lines.push({ line, head: (await line.next()).value });
    };
    for (const stored of begin ? [begin] : this.heads.map(([, head]) => head)) await add(stored);
    while (lines.length) {
      const newest = lines.reduce((one, other) => (other.head.header.time > one.head.header.time ? other : one));
      const stored = newest.head;
      const isNew = !seen.has(stored.header.id); // else another line goes on from here
      newest.head = isNew ? (await newest.line.next()).value : undefined;
      lines = lines.filter(({ head }) => head);
      if (!isNew) continue;
      seen.add(stored.header.id);
      const { merged } = stored.header;
      const other = merged && (await this.repository.commits.made(merged.branch, merged.version));
      if (other && other.header.id === merged.id) await add(other);
      yield stored;
    }
  }
}
