// Axes of charts.

/** The width of a chart that is to be so wide: less where the window is narrower, so that text keeps its size. */
const room = (wanted) => Math.min(wanted, Math.max(300, innerWidth - 34));

/** Round numbers from 0 to `most`, about `wanted` of them. */
function ticks(most, wanted, base = 10) {
  if (!(most > 0)) return [0];
  const rough = most / wanted;
  const power = base === 2 ? 2 ** Math.floor(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  const step = (base === 2 ? [1, 2] : [1, 2, 5, 10]).map((n) => n * power).find((n) => n >= rough) || power * 10;
  const all = [];
  for (let at = 0; at <= most * 1.0001; at += step) all.push(at);
  return all;
}

/** Round numbers between two, about `wanted` of them. */
function ticksBetween(from, to, wanted) {
  const step = ticks(to - from, wanted)[1] || to - from || 1;
  const all = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) all.push(at);
  return all;
}

/** Seconds, with as many digits as neighbours a step apart need. */
function instant(value, step) {
  const [by, unit] = step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e3, "ms"] : [1e6, "us"];
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10((step * by) || 1) + 1e-9)));
  return `${(value * by).toFixed(digits)} ${unit}`;
}
