// Makes elements. Text from a repository is only ever set as text: no function here takes HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
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
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
}

/** Make an element: h("p", {class: "quiet"}, "text", otherElement). */
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** An icon that `index.html` has. */
export const icon = (name) => svg("svg", { class: "i", "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));

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
