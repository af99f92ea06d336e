// Loaded into Azurite before it starts. Every ten minutes it looks for what nobody refers to any more, in a time that
// grows with the square of what it finds, and answers nobody meanwhile: after ten minutes of tests, for longer than its
// clients wait. Every few seconds there is little to find.
const { dirname, join } = require("node:path");
const { realpathSync } = require("node:fs");

const main = realpathSync(process.argv[1]);
require(join(dirname(main), "utils", "constants")).DEFAULT_GC_INTERVAL_MS = 5000;
