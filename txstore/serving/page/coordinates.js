// Coordinates: the one-dimensional array beside an array, or above it, that is named like one of its dimensions (CF).

import { api } from "./api.js";
import { read } from "./arrays.js";
import { nameOf, shown } from "./words.js";

const LONGEST = 1 << 16; // of a dimension whose coordinates are read
const LONGEST_UNITS = 100; // characters: of more, the pattern below may take for ever

const MILLISECONDS = { nanosecond: 1e-6, microsecond: 1e-3, millisecond: 1, second: 1e3, sec: 1e3, s: 1e3, minute: 6e4, min: 6e4, hour: 36e5, hr: 36e5, h: 36e5, day: 864e5, d: 864e5 };
const SINCE = /^\s*([a-z]+?)s?\s+since\s+(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T\s]+(\d{1,2})(?::(\d{1,2})(?::(\d{1,2}(?:\.\d*)?))?)?)?\s*(?:Z|UTC|GMT|([+-])(\d{1,2}):?(\d{2})?)?\s*$/i;
const NORTH = /^degrees?_?n(orth)?$/i;
const EAST = /^degrees?_?e(ast)?$/i;
const GREGORIAN = /^(standard|gregorian|proleptic_gregorian)$/i;
const REFORM = Date.UTC(1582, 9, 15); // before it, "standard" means Julian dates

/** For each dimension of an array null, or {label(i), isLatitude, ascends}: what its places are called. */
export async function coordinates({ commit, node, signal, firstPage }) {
  const groups = node.path.split("/").slice(0, -1);
  const found = node.shape.map(() => null);
  for (let depth = groups.length; depth >= 0; depth--) {
    const missing = found.flatMap((each, i) => (!each && node.dimension_names?.[i] && node.shape[i] > 0 && node.shape[i] <= LONGEST ? [i] : []));
    if (!missing.length) break;
    const { nodes } = await firstPage(groups.slice(0, depth).join("/"));
    await Promise.all(missing.map(async (i) => {
      const name = node.dimension_names[i];
      const beside = nodes.find((each) => each.kind === "array" && nameOf(each.path) === name && each.shape?.length === 1 && each.shape[0] === node.shape[i]);
      if (beside) found[i] = await axis(commit, beside.path, name, signal);
    }));
  }
  return found;
}

async function axis(commit, path, name, signal) {
  const node = await api.node(commit, path, signal);
  const { values, isNumeric } = await read(commit, node, [[0, node.shape[0]]], { signal });
  if (values.length !== node.shape[0]) return null; // not all were read
  if (!isNumeric) return { label: (i) => String(values[i]), isLatitude: false, ascends: true };
  const { scale_factor: scale = 1, add_offset: offset = 0, units, calendar = "standard", standard_name: standard } = node.attributes ?? {};
  const isPacked = Number.isFinite(scale) && Number.isFinite(offset);
  const at = (i) => (isPacked ? values[i] * scale + offset : values[i]);
  const unit = typeof units === "string" && units.length <= LONGEST_UNITS ? units : "";
  const isLatitude = standard === "latitude" || NORTH.test(unit) || /^lat(itude)?$/i.test(name);
  const label = dates(unit, calendar) ?? (NORTH.test(unit) ? toward("N", "S") : EAST.test(unit) ? toward("E", "W") : (value) => (unit ? `${shown(value)} ${unit}` : shown(value)));
  return { label: (i) => label(at(i)), isLatitude, ascends: at(0) < at(node.shape[0] - 1) };
}

const toward = (positive, negative) => (value) => `${shown(Math.abs(value))}°${value > 0 ? positive : value < 0 ? negative : ""}`;

/** What writes times such as "days since 2000-01-01"; null for other units, and calendars that are not ours. */
export function dates(units, calendar = "standard") {
  const [, unit, year, month, day, hour = 0, minute = 0, second = 0, sign, zoneHours = 0, zoneMinutes = 0] = SINCE.exec(units) ?? [];
  const length = MILLISECONDS[unit?.toLowerCase()];
  if (!length || !GREGORIAN.test(calendar)) return null;
  const start = new Date(Date.UTC(2000, 0, 1, hour, minute, 0, 0));
  start.setUTCFullYear(year, month - 1, day);
  if (start.getUTCMonth() !== month - 1) return null; // there is no such day
  const zone = (sign === "-" ? -1 : 1) * (Number(zoneHours) * 60 + Number(zoneMinutes)) * 6e4;
  const begins = start.getTime() + Number(second) * 1e3 - zone;
  if (begins < REFORM && !/^proleptic/i.test(calendar)) return null;
  return (value) => {
    const time = new Date(Math.round(begins + value * length));
    if (Number.isNaN(time.getTime()) || (time < REFORM && !/^proleptic/i.test(calendar))) return `${shown(value)} ${units}`;
    return time.toISOString().replace("T", " ").replace(/(:00)?\.000Z$/, "").replace(/Z$/, "").replace(/ 00:00$/, "");
  };
}
