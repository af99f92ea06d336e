/** Keeps what was read last, up to so many bytes. Whoever asks for what is being read waits for that. */

/** @template T */
export class Cache {
  /** @param {number} capacity in bytes */
  constructor(capacity) {
    this.capacity = capacity;
    this.size = 0;
    /** @type {Map<string, { value: Promise<T>, size: number }>} the one that was used last is the last */
    this.kept = new Map();
  }

  /** @param {string} key @param {number} size in bytes, about @param {() => Promise<T>} read @returns {Promise<T>} */
  get(key, size, read) {
    const known = this.kept.get(key);
    const found = known ?? { value: read(), size };
    this.kept.delete(key);
    this.kept.set(key, found);
    if (!known) {
      this.size += size;
      found.value.catch(() => this.drop(key, found));
    }
    for (const [oldest, each] of this.kept) {
      if (this.size <= this.capacity || each === found) break;
      this.drop(oldest, each);
    }
    return found.value;
  }

  /** @param {string} key @param {{ value: Promise<T>, size: number }} which */
  drop(key, which) {
    if (this.kept.get(key) === which) {
      this.kept.delete(key);
      this.size -= which.size;
    }
  }
}
