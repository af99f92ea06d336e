// Figures of values, for the page and for the worker that has read them.

const BINS = 48; // of a histogram

export function statistics(values) {
  let [min, max] = [Infinity, -Infinity];
  let [sum, finite, nan] = [0, 0, 0];
  for (const value of values) {
    if (Number.isFinite(value)) {
      if (value < min) min = value;
      if (value > max) max = value;
      sum += value;
      finite += 1;
    } else if (Number.isNaN(value)) nan += 1;
  }
  const counts = { finite, nan, infinite: values.length - finite - nan };
  if (!finite) return counts;
  const histogram = new Array(BINS).fill(0);
  const scale = max > min ? BINS / (max - min) : 0;
  for (const value of values) if (Number.isFinite(value)) histogram[Math.min(BINS - 1, Math.floor((value - min) * scale))] += 1;
  return { ...counts, min, max, mean: sum / finite, histogram };
}
