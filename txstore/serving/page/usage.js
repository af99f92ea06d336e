// The stored bytes of each array.

import { api } from "./api.js";
import { h, replace } from "./dom.js";
import { line, link, notice, pythonRepository, refPicker, repository } from "./parts.js";
import { count, quoted, size } from "./words.js";

const SMALL = 0.005; // of all
const PARTS = 7; // of the bar that have a colour of their own

export async function show(view, parts) {
  const ref = parts[0] ?? "main";
  view.setRef(ref);
  const body = h("div", {}, notice("Measuring …"));
  replace(view.root,
    h("div", { class: "tools" }, h("h1", {}, "Usage"), refPicker(ref, (name) => { location.hash = link.usage(name); })),
    body,
    repository.branches.some((each) => each.name === ref) ? line(`${pythonRepository()}.usage(${ref === "main" ? "" : `branch=${quoted(ref)}`}).arrays`) : null);
  const { arrays, total, many } = await api.usage(ref, view.signal); // the largest first
  const most = arrays[0]?.bytes || 1;
  const largest = arrays.slice(0, PARTS).filter((each) => each.bytes > SMALL * total).map((each, i) => [each.path || "/", each.bytes, `use-${i}`]);
  const others = total - largest.reduce((sum, each) => sum + each[1], 0);
  if (others > 0) largest.push(["all others", others, "use-others"]);
  replace(body,
    h("div", { class: "card pad" },
      h("p", { class: "big" }, size(total), h("small", { class: "quiet" }, ` stored at this commit: ${count(total)} bytes`)),
      h("div", { class: "stack", "aria-hidden": "true" }, largest.map(([, bytes, kind]) => h("span", { class: kind, style: { "flex-grow": String(bytes / total) } }))),
      h("ul", { class: "legend across" }, largest.map(([name, bytes, kind]) =>
        h("li", {}, h("span", { class: `swatch ${kind}` }), h("span", { class: "cut" }, name), h("span", { class: "quiet" }, `${((100 * bytes) / (total || 1)).toFixed(bytes / total < 0.1 ? 1 : 0)} %`))))),
    arrays.length
      ? h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "By array" }, h("table", { class: "members" },
          h("thead", {}, h("tr", {}, ["Array or group", "Stored", "", "Keys"].map((head) => h(head ? "th" : "td", { scope: head && "col", class: /Stored|Keys/.test(head) ? "end" : null }, head)))),
          h("tbody", {}, arrays.map(({ path, ...each }) => h("tr", {},
            h("td", {}, h("a", { class: "member", href: link.tree(ref, path) }, h("span", { class: "cut" }, path || "/"))),
            h("td", { class: "end" }, size(each.bytes)),
            h("td", { class: "bar-cell" }, h("span", { class: "bar-part", style: { width: `${(100 * each.bytes) / most}%` } })),
            h("td", { class: "end" }, count(each.keys)))))))
      : notice("The newest commit holds nothing."),
    many > arrays.length ? notice(`The ${count(arrays.length)} largest of ${count(many)}.`) : null);
}
