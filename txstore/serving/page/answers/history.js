// The history of all branches, from the files of commits.

const MOST = 25; // commits in an answer: each may take a request
const SOUGHT = 200; // commits that are looked at for one answer about a path
const NONE = "0".repeat(32);
const KEPT = 2000; // commits that are remembered

export class History {
  constructor(repository) {
    this.repository = repository;
    this.known = new Map(); // commits that were seen, by id
    this.called = new Map(); // branches and tags, by id of their commits
    this.heads = null; // as of the last look: [[name, commit], ...]
    this.walks = new Map(); // walks that an answer may go on with, by the name that it has given
  }

  note(stored) {
    if (this.known.size > KEPT) this.known.delete(this.known.keys().next().value);
    this.known.set(stored.header.id, stored);
    return stored;
  }

  /** The commit that a branch, a tag or an id names. */
  async stored(ref) {
    const known = this.known.get(ref);
    if (known) return known;
    const found = await this.repository.find(ref);
    if (!found) throw Object.assign(new Error("nothing was committed yet"), { name: "NotFoundError" });
    return this.note(found);
  }

  /** The first parent: null if there is none, undefined if it is no longer kept. */
  async parent(stored) {
    if (stored.header.parent === NONE) return null;
    const known = this.known.get(stored.header.parent);
    if (known) return known;
    const { fork, branch, version } = stored.header;
    const found = await this.repository.commits.made(fork ?? branch, version - 1);
    return found?.header.id === stored.header.parent ? this.note(found) : undefined;
  }

  async about(url) {
    const { repository } = this;
    // Most servers list names. Where one does not, `main` is what is known.
    const listed = (names) => names.catch(() => null);
    const [branches, tags, main] = await Promise.all([listed(repository.branches()), listed(repository.tags()), repository.find("main")]);
    const others = (branches ?? []).filter((name) => name !== "main");
    const named = await Promise.all(others.map(async (name) => [name, await repository.find(name)]));
    this.heads = [["main", main], ...named].filter(([, stored]) => stored);
    const records = await Promise.all((tags ?? []).map(async (name) => [name, (await repository.tag(name))?.id]));
    this.called = new Map();
    const call = (id, kind, name) => {
      if (!this.called.has(id)) this.called.set(id, { branches: [], tags: [] });
      this.called.get(id)[kind].push(name);
    };
    for (const [name, stored] of this.heads) call(this.note(stored).header.id, "branches", name);
    for (const [name, id] of records) if (id) call(id, "tags", name);
    return {
      url, name: decodeURIComponent(new URL(url).pathname.replace(/\/+$/, "").split("/").at(-1)) || url, exists: this.heads.length > 0, read_only: true, origins: [],
      id: repository.id, format: 1, lists: branches !== null,
      head: Object.fromEntries(this.heads.map(([name, { header }]) => [name, header.id])),
      branches: this.heads.map(([name, { header }]) => ({ name, head: header.id, commits: header.seq })),
      tags: records.filter(([, id]) => id).map(([name, commit]) => ({ name, commit })),
    };
  }

  /** Commits, the newest first: of all branches, or from one on. An answer is short; `next` tells how to go on. */
  async commits({ from, before, path, limit = MOST }, signal) {
    const walk = this.walks.get(before) ?? new Walk(this, from ? [await this.stored(from)] : (this.heads ?? []).map(([, stored]) => stored));
    const found = [];
    for (let looked = 0; found.length < Math.min(limit, MOST) && looked < SOUGHT; looked++) {
      signal?.throwIfAborted();
      const stored = await walk.next();
      if (!stored) return { commits: found, next: null };
      this.note(stored);
      if (!path || (await this.hasWritten(stored, path))) found.push(this.told(stored));
    }
    const next = String(this.walks.size + 1);
    this.walks.set(next, walk);
    return { commits: found, next };
  }

  /** Whether a commit has set or deleted a key at or below a path. Its own run is the first. */
  async hasWritten(stored, path) {
    const [own] = stored.header.runs;
    if (!own || own.pack) return false;
    const store = this.repository.storeOf(stored);
    const run = await store.run(own);
    const encoded = new TextEncoder().encode(`${path}/`);
    return !(await run.below(encoded).next()).done || [...run.index.prefixes].some((each) => each.startsWith(`${path}/`) || `${path}/`.startsWith(each));
  }

  told(stored) {
    const { header } = stored;
    const { id, version, branch, time, author, message, properties, parent, mergedParent } = this.repository.commitOf(stored);
    const [keys_set = 0, keys_deleted = 0, prefixes_deleted = 0, bytes_set = 0, arrays = 0] = header.statistics;
    return {
      id, name: `${branch}@${version}`, branch, version, seq: header.seq, parents: [parent, mergedParent].filter(Boolean),
      time: time.toISOString(), author, message, properties,
      statistics: { keys_set, keys_deleted, prefixes_deleted, bytes_set, arrays }, stored_bytes: bytes_set,
      ...(this.called.get(id) ?? { branches: [], tags: [] }),
    };
  }

  /** The commits with these numbers in the history of one, the newest first, as far as they are found without a long walk. */
  async bySeq(stored, seqs) {
    const found = new Map();
    await Promise.all(seqs.map(async (seq) => {
      // Where nothing was merged, a version is made by one commit.
      const version = seq - (stored.header.seq - stored.header.version);
      const { branch } = stored.header;
      const each = version === stored.header.version ? stored : version >= 0 && version < stored.header.version ? await this.repository.commits.made(branch, version).catch(() => undefined) : undefined;
      if (each?.header.seq === seq) found.set(seq, each);
    }));
    const left = new Set(seqs.filter((seq) => !found.has(seq)));
    if (left.size) {
      for await (const each of this.repository.below(stored, SOUGHT)) {
        if (left.delete(each.header.seq)) found.set(each.header.seq, each);
        if (!left.size) break;
      }
    }
    return found;
  }
}

/** Commits and their ancestors, each once, the newest first. */
class Walk {
  constructor(history, begin) {
    this.history = history;
    this.seen = new Set();
    this.lines = []; // {line, head}: ancestors by the first parent, and the next of them
    this.begin = begin;
  }

  async add(stored) {
    const line = this.history.repository.below(stored);
    const { value: head } = await line.next();
    if (head) this.lines.push({ line, head });
  }

  async next() {
    const begin = this.begin.splice(0);
    for (const stored of begin) await this.add(stored);
    while (this.lines.length) {
      const newest = this.lines.reduce((one, other) => (other.head.header.time > one.head.header.time ? other : one));
      const stored = newest.head;
      if (this.seen.has(stored.header.id)) {
        this.lines.splice(this.lines.indexOf(newest), 1); // another line goes on from here
        continue;
      }
      this.seen.add(stored.header.id);
      const { value } = await newest.line.next();
      if (value) newest.head = value;
      else this.lines.splice(this.lines.indexOf(newest), 1);
      const { merged } = stored.header;
      if (merged) {
        const other = await this.history.repository.commits.made(merged.branch, merged.version);
        if (other?.header.id === merged.id) await this.add(other);
      }
      return stored;
    }
    return undefined;
  }
}
