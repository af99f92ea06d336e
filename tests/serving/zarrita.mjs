// Reads arrays of a Zarr hierarchy over HTTP with zarrita, and prints them as JSON: zarrita.mjs URL PATH...
// With WAIT in the environment it opens them all, says so, and reads when a line comes.
const zarr = await import(process.env.ZARRITA);
const [url, ...paths] = process.argv.slice(2);
const root = zarr.root(new zarr.FetchStore(url));
const read = {};
const opened = {};
for (const path of paths) opened[path] = await zarr.open(root.resolve(path), { kind: "array" });
if (process.env.WAIT) {
  console.log("opened");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  process.stdin.destroy();
}
for (const [path, array] of Object.entries(opened)) {
  const part = await zarr.get(array);
  const values = array.shape.length ? Array.from(part.data) : [part];
  read[path] = { shape: array.shape, values: values.map((each) => (typeof each === "bigint" ? Number(each) : each)) };
}
console.log(JSON.stringify(read));
