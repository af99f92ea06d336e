// The lines of the history: the lane of each commit, and the lanes that lead to its parents.

import { svg } from "./dom.js";

export const ROW = 58; // the height of a row, as style.css has it
const LANE = 16;
const LEFT = 14;
const LANES = 12; // more lie on top of one another at the edge
export const COLORS = 8;

/**
 * Lay out commits, newest first. Each gets {lane, above, below}: `above` are the lanes that come in from the row above
 * as [lane, goesOn], `below` the lanes that its parents are awaited in.
 */
export function layOut(commits) {
  const awaited = []; // of each lane the id that comes next in it, or null
  const rows = [];
  const free = () => (awaited.includes(null) ? awaited.indexOf(null) : awaited.length);
  for (const commit of commits) {
    let lane = awaited.indexOf(commit.id);
    const above = [];
    awaited.forEach((id, i) => { if (id !== null && (i < LANES || id === commit.id)) above.push([i, id !== commit.id]); });
    if (lane < 0) lane = free();
    awaited.forEach((id, i) => { if (id === commit.id) awaited[i] = null; });
    const below = [];
    commit.parents.forEach((parent, i) => {
      let at = awaited.indexOf(parent);
      if (i === 0 && (at < 0 || at > lane)) {
        // The line of first parents is straight; a lane that waits for the same commit joins it there.
        at = lane;
        awaited[lane] = parent;
      } else if (at < 0) {
        at = free();
        awaited[at] = parent;
      }
      below.push(at);
    });
    while (awaited.length && awaited[awaited.length - 1] === null) awaited.pop();
    rows.push({ lane, above, below });
  }
  return rows;
}

const x = (lane) => LEFT + Math.min(lane, LANES - 1) * LANE;

export const width = (rows) =>
  x(Math.max(0, ...rows.map((row) => Math.max(row.lane, ...row.above.map((each) => each[0]), ...row.below)))) + LEFT;

function curve(from, to, top, bottom) {
  const middle = (top + bottom) / 2;
  return from === to ? `M${from} ${top}V${bottom}` : `M${from} ${top}C${from} ${middle} ${to} ${middle} ${to} ${bottom}`;
}

/** Draw one row. */
export function draw(row, wide, isMerge) {
  const middle = ROW / 2;
  const lines = [];
  const add = (path, lane) => lines.push(svg("path", { d: path, class: `lane c${lane % COLORS}` }));
  for (const [lane, goesOn] of row.above)
    add(goesOn ? `M${x(lane)} 0V${ROW}` : curve(x(lane), x(row.lane), 0, middle), lane);
  for (const lane of row.below) add(curve(x(row.lane), x(lane), middle, ROW), lane);
  const kind = `dot c${row.lane % COLORS} ${isMerge ? "merge" : ""}`;
  const dot = svg("circle", { cx: x(row.lane), cy: middle, r: isMerge ? 4 : 5, class: kind });
  return svg("svg", { class: "graph", width: wide, height: ROW, "aria-hidden": "true" }, lines, dot);
}
