// Formats numbers, times, names and lines of Python.

export const IMPOSSIBLE = "Its document has impossible lengths.";
const MOST_TEXT = 10_000; // characters of one text
const MOST_ENTRIES = 1000; // of one list or object
const MOST_NESTED = 32;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const number = new Intl.NumberFormat("en");
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });
const full = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long" });
const clock = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });

export const count = (value) => (value === null || value === undefined ? "–" : number.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let unit = 0;
  let value = Number(bytes);
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} ${UNITS[unit]}`;
}

export function ago(time) {
  const then = new Date(time);
  const seconds = (Date.now() - then) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 20 * 86400) return clock.format(then);
  return day.format(then);
}

export const when = (time) => full.format(new Date(time));
export const short = (id) => (id ? id.slice(0, 10) : "–");
export const isId = (ref) => /^[0-9a-f]{8,32}$/.test(ref);
export const lengths = (shape) => (shape?.length ? shape.map(count).join(" × ") : shape ? "scalar" : "–");
export const title = (message) => message?.split("\n", 1)[0] || "(no message)";
export const nameOf = (path) => (path ? path.slice(path.lastIndexOf("/") + 1) : "/");

/** A number as people read it: six digits that count. */
export function shown(value) {
  if (typeof value === "bigint" || typeof value === "string" || typeof value === "boolean") return String(value).replace(/^\0/, "");
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return count(value);
  const size = Math.abs(value);
  return size >= 1e7 || size < 1e-4 ? value.toExponential(4) : String(Number(value.toPrecision(6)));
}

/** Text as a literal of Python. */
export function quoted(text) {
  const escaped = String(text).replace(/[\\"]/g, "\\$&");
  const printable = escaped.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff]/gu, (each) =>
    `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return `"${printable}"`;
}

/** Text as a word of a shell: a directory may have any name. */
export const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// A text that does not end is a token, too: else each quote in it would be tried as a beginning.
const TOKENS = /"[^"\\]*(?:\\[^][^"\\]*)*"?|-?(?:NaN|Infinity|\d[\d.eE+-]*)/g;

/** Read JSON as Zarr has it: numbers that are not finite, as Python writes them, become texts. */
export const parse = (text) =>
  JSON.parse(/NaN|Infinity/.test(text) ? text.replace(TOKENS, (each) => (/^-?[NI]/.test(each) ? `"${each}"` : each)) : text);

/** As `parse`, to be compared and shown: numbers that JavaScript would round, or write otherwise, become texts with a mark before them. */
export const parseExactly = (text) =>
  JSON.parse(text.replace(TOKENS, (each) => (/^-?[NI]/.test(each) ? `"${each}"` : each.startsWith('"') || String(Number(each)) === each ? each : `"\\u0000${each}"`)));

/** As much of a stranger's value as a page shows: some `left.size` characters of it. What is left out is said in its place. */
export function cut(value, left = { size: 10 * MOST_TEXT }, depth = 0) {
  left.size -= 20; // a line
  if (typeof value === "string") {
    const part = value.slice(0, Math.max(0, Math.min(MOST_TEXT, left.size)));
    left.size -= part.length;
    return part === value ? value : `${part}… (${plural(value.length, "character")})`;
  }
  if (value === null || typeof value !== "object") return value;
  const found = [];
  const names = Object.keys(value);
  for (const name of depth < MOST_NESTED ? names : []) {
    if (left.size <= 0 || found.length >= MOST_ENTRIES) break;
    found.push([cut(name, left), cut(value[name], left, depth + 1)]);
  }
  if (found.length < names.length) found.push(["…", `… ${count(names.length - found.length)} more`]);
  return Array.isArray(value) ? found.map(([, each]) => each) : Object.fromEntries(found);
}

/** What a value of attributes looks like, on as many lines as it needs. */
export function json(value) {
  if (value === undefined) return "–";
  const lines = JSON.stringify(value, null, 2).replace(/"\\u0000(-?[\d.eE+-]*)"/g, "$1");
  const line = lines.replace(/\n\s*/g, " ");
  return line.length <= 72 ? line.replace(/^\[ /, "[").replace(/ \]$/, "]") : lines;
}
