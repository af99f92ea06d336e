/**
 * Reads TxStore repositories from anything that answers GET with ranges.
 *
 *     const repo = await openRepository("https://example.org/data.tx");
 *     const store = await repo.at("main"); // a store for zarrita
 */

import { open } from "./repository.js";
import { HttpSource } from "./source.js";

export * from "./errors.js";

/** @typedef {import("./repository.js").Repository} Repository */
/** @typedef {import("./repository.js").Commit} Commit */
/** @typedef {import("./store.js").Store} Store */

/**
 * Open the repository at a URL.
 * @param {string | URL} url
 * @param {import("./source.js").HttpOptions & import("./repository.js").Options & { signal?: AbortSignal }} [options]
 * @returns {Promise<Repository>}
 */
export function openRepository(url, options = {}) {
  return open(new HttpSource(String(url), options), options, options.signal ? { signal: options.signal } : {});
}
