// Makes elements. Text from a repository is only ever set as text: no function here takes HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "href") setLink(element, value);
    else if (name in element && typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

/** A link leads inside the page, or to http(s): never to a script. */
function setLink(element, href) {
  if (/^(#|https?:|\.?\/|at\/)/.test(href)) element.setAttribute("href", href);
}

function append(element, children) {
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Make an element: h("p", {class: "quiet"}, "text", otherElement). */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const ICONS = {
  group: "M3 7.5A1.5 1.5 0 0 1 4.5 6h4l2 2h7A1.5 1.5 0 0 1 19 9.5v7a1.5 1.5 0 0 1-1.5 1.5h-13A1.5 1.5 0 0 1 3 16.5z",
  array: "M4 4h14v14H4zM4 8.7h14M4 13.3h14M8.7 4v14M13.3 4v14",
  copy: "M8 8h10v11H8zM5 15V4h9",
  done: "M4 12l5 5L19 6",
  branch: "M7 4v16M7 9c0 4 9 1 9 6v1",
  tag: "M4 4h7l8 8-7 7-8-8zM8 8h.01",
  light: "M11 7a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 2v2M11 18v2M2 11h2M18 11h2M4.6 4.6 6 6M16 16l1.4 1.4M4.6 17.4 6 16M16 6l1.4-1.4",
  dark: "M18 13.5A7.5 7.5 0 1 1 9 4a6 6 0 0 0 9 9.5z",
  system: "M3 5h16v10H3zM8 19h6M11 15v4",
  swap: "M4 8h13l-3-3M18 14H5l3 3",
  out: "M9 5H5v12h12v-4M12 4h6v6M18 4l-8 8",
};

export function icon(name) {
  return svg("svg", { class: "i", viewBox: "0 0 22 22", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** Do what a key says: `keys` returns what each does now, by its name. */
export function onKeys(element, keys) {
  element.addEventListener("keydown", (event) => {
    const does = event.ctrlKey || event.metaKey ? null : keys()[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });
}

/** What a CSS variable is now, as a canvas wants it: variables that depend on light or dark resolve only in a property. */
export function color(variable) {
  const probe = h("span", { style: { color: `var(${variable})`, display: "none" } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** A canvas that is sharp on dense screens, of a size in CSS pixels. */
export function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}
