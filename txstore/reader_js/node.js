/** Opens repositories in directories, in Node; URLs go to `index.js`. */

import { open as openFile, readdir, stat } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { crc32c } from "./checksums.js";
import { CorruptionError } from "./errors.js";
import { openRepository as openUrl } from "./index.js";
import { open } from "./repository.js";
import { FORMAT, MAX_SMALL, MAX_TAGS } from "./source.js";

export * from "./errors.js";

/** @import { Source } from "./source.js" */

/** @implements {Source} */
class DirectorySource {
  /** @param {string} directory */
  constructor(directory) {
    this.url = directory;
    /** @type {Map<string, string>} of which version each file is */
    this.tags = new Map();
  }

  /** @param {string} path */
  async small(path) {
    const found = await this.read(path, () => [0, MAX_SMALL]);
    if (found && found.size > MAX_SMALL) throw new CorruptionError(`${path}: it has ${found.size} bytes, and at most ${MAX_SMALL} are possible`);
    return found?.bytes;
  }

  /** @param {string} path @param {number} begin @param {number} end */
  async range(path, begin, end) {
    return (await this.read(path, () => [begin, end]))?.bytes;
  }

  /** @param {string} path @param {number} length */
  tail(path, length) {
    return this.read(path, (size) => [Math.max(0, size - length), size]);
  }

  /** @param {string} path */
  list(path) {
    return readdir(`${this.url}/${path}`).catch(unlessMissing).then((names) => names ?? []);
  }

  /** @param {string} path @param {(size: number) => [number, number]} which */
  async read(path, which) {
    const opened = await openFile(`${this.url}/${path}`).catch(unlessMissing);
    if (!opened) return undefined;
    try {
      const { size, ino, ctimeMs } = await opened.stat();
      const [begin, end] = which(size);
      const bytes = new Uint8Array(Math.max(0, Math.min(end, size) - begin));
      const { bytesRead } = await opened.read(bytes, 0, bytes.length, begin);
      if (this.tags.size >= MAX_TAGS) this.tags.clear();
      this.tags.set(path, `${ino} ${ctimeMs}`);
      return { bytes: bytes.subarray(0, bytesRead), size };
    } finally {
      await opened.close();
    }
  }

  /** The number of an inode and the time of its change: no copy has both. */
  async place() {
    const { ino, ctimeNs } = await stat(`${this.url}/${FORMAT}`, { bigint: true });
    const place = crc32c(new Uint8Array(BigUint64Array.of(ino, ctimeNs).buffer)) & ~1;
    return (place >>> 0) || 2;
  }
}

/** @param {NodeJS.ErrnoException} error */
function unlessMissing(error) {
  if (error.code !== "ENOENT" && error.code !== "ENOTDIR") throw error;
}

/** Open a repository: a directory by its path or `file:` URL, or any other URL. @param {string | URL} place @param {Parameters<typeof openUrl>[1]} [options] */
export function openRepository(place, options = {}) {
  const text = String(place);
  if (/^https?:/.test(text)) return openUrl(text, options);
  const directory = text.startsWith("file:") ? fileURLToPath(text) : text;
  return open(new DirectorySource(directory), options, {});
}
