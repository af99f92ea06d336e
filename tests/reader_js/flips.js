/**
 * Flips bits of repositories, and reads them: each answer has to be the right one, or an error of the reader.
 *
 *     flips.js NUMBER SEED DIRECTORY...
 */

import { readFileSync, readdirSync } from "node:fs";

import { TxStoreError } from "../../txstore/reader_js/errors.js";
import { open } from "../../txstore/reader_js/repository.js";

const [number, seed, ...directories] = process.argv.slice(2);
const LIMIT = 5000; // milliseconds that a repository may take

/** Numbers that look random, the same for the same seed: mulberry32. */
let state = Number(seed);
const random = (below) => {
  state = (state + 0x6d2b79f5) | 0;
  let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
  mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
  return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
};

function filesOf(directory) {
  const found = new Map();
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    const path = `${entry.parentPath ?? entry.path}/${entry.name}`.slice(directory.length + 1);
    if (entry.isFile() && !/^(locks|\.staging)\//.test(path)) found.set(path, new Uint8Array(readFileSync(`${directory}/${path}`)));
  }
  return found;
}

/** Files in memory. @implements {import("../../txstore/reader_js/source.js").Source} */
class Files {
  constructor(files) {
    this.url = "memory";
    this.files = files;
  }
  small = async (path) => this.files.get(path);
  range = async (path, begin, end) => this.files.get(path)?.subarray(begin, end);
  tail = async (path, length) => {
    const bytes = this.files.get(path);
    return bytes && { bytes: bytes.subarray(Math.max(0, bytes.length - length)), size: bytes.length };
  };
  list = async (path) => {
    const names = [...this.files.keys()].filter((each) => each.startsWith(`${path}/`)).map((each) => each.slice(path.length + 1).split("/")[0]);
    return names.length ? [...new Set(names)] : undefined;
  };
}

const guarded = (action) => action().catch((error) => {
  if (error instanceof TxStoreError) return undefined; // refused
  throw error;
});

/** What a reader finds: undefined where it is refused. */
async function read(files) {
  const found = new Map();
  const note = async (name, action) => found.set(name, await guarded(action));
  const repo = await guarded(() => open(new Files(files), {}, {}));
  if (!repo) return found;
  await note("branches", async () => (await repo.branches()).join());
  await note("log", async () => JSON.stringify(await repo.log()));
  for (const at of ["main", "Dev", "v1", 0]) {
    const store = await guarded(() => repo.at(at));
    if (!store) continue;
    await note(`${at} keys`, async () => {
      const keys = [];
      for await (const key of store.keys()) keys.push(key);
      return keys.join();
    });
    for (const key of (found.get(`${at} keys`) ?? "").split(",").filter(Boolean)) {
      await note(`${at} ${key}`, async () => Buffer.from(await store.get(key)).toString("base64"));
    }
  }
  return found;
}

let [answered, refused] = [0, 0];
for (const directory of directories) {
  const files = filesOf(directory);
  const right = await read(files);
  const names = [...files.keys()];
  for (let each = 0; each < Number(number) / directories.length; each++) {
    const path = names[random(names.length)];
    const before = files.get(path);
    if (!before.length) continue;
    const damaged = before.slice();
    const places = [];
    for (let flips = 1 + random(3); flips > 0; flips--) {
      const bit = random(damaged.length * 8);
      places.push(bit);
      damaged[bit >> 3] ^= 1 << (bit & 7);
    }
    files.set(path, damaged);
    const began = performance.now();
    const found = await read(files).catch((error) => {
      throw new Error(`${directory}/${path}, bits ${places}: ${error.stack}`);
    });
    if (performance.now() - began > LIMIT) throw new Error(`${directory}/${path}, bits ${places}: it took ${performance.now() - began} ms`);
    for (const [what, answer] of found) {
      if (answer === undefined) refused++;
      else if (answer === right.get(what)) answered++;
      else throw new Error(`${directory}/${path}, bits ${places}: ${what} is ${answer.slice(0, 200)}, not ${right.get(what)?.slice(0, 200)}`);
    }
    files.set(path, before);
  }
}
console.log(JSON.stringify({ answered, refused }));
