/** CRC-32C (RFC 3720, appendix B.4), and BLAKE2b (RFC 7693) with 16 bytes of output. */

const tables = Array.from({ length: 8 }, () => new Uint32Array(256));
for (let byte = 0; byte < 256; byte++) {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  tables[0][byte] = value;
}
for (let table = 1; table < 8; table++) {
  for (let byte = 0; byte < 256; byte++) {
    const before = tables[table - 1][byte];
    tables[table][byte] = (before >>> 8) ^ tables[0][before & 255];
  }
}

/** Return the CRC-32C of bytes. Eight tables, so that eight bytes take one step. @param {Uint8Array} bytes @returns {number} */
export function crc32c(bytes) {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = tables;
  const length = bytes.length;
  let crc = 0xffffffff;
  let at = 0;
  for (; at + 8 <= length; at += 8) {
    crc ^= bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);
    crc = t7[crc & 255] ^ t6[(crc >>> 8) & 255] ^ t5[(crc >>> 16) & 255] ^ t4[crc >>> 24];
    crc ^= t3[bytes[at + 4]] ^ t2[bytes[at + 5]] ^ t1[bytes[at + 6]] ^ t0[bytes[at + 7]];
  }
  for (; at < length; at++) crc = (crc >>> 8) ^ t0[(crc ^ bytes[at]) & 255];
  return (crc ^ 0xffffffff) >>> 0;
}

const MASK = 0xffffffffffffffffn;
const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((row) => Array.from(row, (digit) => parseInt(digit, 16)));

/** Return the BLAKE2b-128 of bytes: the hash by which a commit names its parent's header. @param {Uint8Array} bytes @returns {Uint8Array} */
export function blake2b128(bytes) {
  const state = IV.slice();
  state[0] ^= 0x01010010n;
  const last = Math.max(0, Math.ceil(bytes.length / 128) - 1);
  for (let block = 0; block <= last; block++) {
    const padded = new Uint8Array(128);
    padded.set(bytes.subarray(block * 128, block * 128 + 128));
    compress(state, new BigUint64Array(padded.buffer), BigInt(block === last ? bytes.length : (block + 1) * 128), block === last);
  }
  return new Uint8Array(BigUint64Array.of(state[0], state[1]).buffer);
}

/** @param {bigint[]} state @param {BigUint64Array} words @param {bigint} count @param {boolean} isLast */
function compress(state, words, count, isLast) {
  const v = [...state, ...IV];
  v[12] ^= count;
  if (isLast) v[14] ^= MASK;
  /** @param {number} a @param {number} b @param {number} c @param {number} d @param {bigint} x @param {bigint} y */
  const mix = (a, b, c, d, x, y) => {
    v[a] = (v[a] + v[b] + x) & MASK;
    v[d] = rotated(v[d] ^ v[a], 32n);
    v[c] = (v[c] + v[d]) & MASK;
    v[b] = rotated(v[b] ^ v[c], 24n);
    v[a] = (v[a] + v[b] + y) & MASK;
    v[d] = rotated(v[d] ^ v[a], 16n);
    v[c] = (v[c] + v[d]) & MASK;
    v[b] = rotated(v[b] ^ v[c], 63n);
  };
  for (let round = 0; round < 12; round++) {
    const order = SIGMA[round % 10];
    for (let each = 0; each < 8; each++) {
      const column = each % 4;
      const shift = each < 4 ? 0 : 1;
      mix(
        column, 4 + ((column + shift) % 4), 8 + ((column + 2 * shift) % 4), 12 + ((column + 3 * shift) % 4),
        words[order[2 * each]], words[order[2 * each + 1]],
      );
    }
  }
  for (let each = 0; each < 8; each++) state[each] ^= v[each] ^ v[each + 8];
}

/** @param {bigint} word @param {bigint} bits */
const rotated = (word, bits) => ((word >> bits) | (word << (64n - bits))) & MASK;
