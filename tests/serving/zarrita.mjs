// Reads arrays of a Zarr hierarchy over HTTP with zarrita, and prints them as JSON: zarrita.mjs URL PATH...
const zarr = await import(process.env.ZARRITA);
const [url, ...paths] = process.argv.slice(2);
const root = zarr.root(new zarr.FetchStore(url));
const read = {};
for (const path of paths) {
  const array = await zarr.open(root.resolve(path), { kind: "array" });
  const part = await zarr.get(array);
  const values = array.shape.length ? Array.from(part.data) : [part];
  read[path] = { shape: array.shape, values: values.map((each) => (typeof each === "bigint" ? Number(each) : each)) };
}
console.log(JSON.stringify(read));
