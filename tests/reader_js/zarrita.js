/** Prints arrays of a repository as zarrita reads them through the reader: zarrita.js URL PATH... */

import { openRepository } from "../../txstore/reader_js/node.js";

const zarr = await import(process.env.ZARRITA);
const [url, ...paths] = process.argv.slice(2);
const store = await (await openRepository(url)).at("main");
const found = {};
for (const path of paths) {
  const array = await zarr.open(zarr.root(store).resolve(path), { kind: "array" });
  found[path] = Array.from((await zarr.get(array)).data, String);
}
console.log(JSON.stringify(found));
