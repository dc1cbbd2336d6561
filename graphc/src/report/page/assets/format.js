// Numbers for people, as the command line writes them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(value)} B` : `${value.toFixed(1)} ${UNITS[unit]}`;
}

function seconds(value) {
  if (value >= 1) return `${value.toFixed(2)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(2)} ms`;
  if (value === 0) return "0 s";
  return value < 1e-6 ? "< 1 us" : `${(value * 1e6).toFixed(1)} us`;
}

/** Shares of the whole below this are none: what rounding leaves. */
const NO_SHARE = 1e-9;

/** A share in percent. What is there is never said to be nothing. */
function percent(share, digits = 1) {
  const least = 10 ** -digits;
  return share > NO_SHARE && share * 100 < least / 2 ? `< ${least.toFixed(digits)} %` : `${(share * 100).toFixed(digits)} %`;
}

const count = (value) => Math.round(value).toLocaleString("en-US");

/** Three digits, or all of a large number. */
const rate = (value) => (value >= 100 ? count(value) : value.toPrecision(3));

function metric(value, unit) {
  const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [by, prefix] = steps.find(([by]) => value >= by) || [1, ""];
  const scaled = value / by;
  return `${scaled >= 100 || scaled === Math.round(scaled) ? Math.round(scaled) : scaled.toPrecision(3)} ${prefix}${unit}`;
}

const times = (extents) => extents.join("x");

const some = (number, one, many = one + "s") => `${count(number)} ${number === 1 ? one : many}`;

/** Runs of ranks that are listed; of more it is said how many there are. */
const MOST_RUNS = 6;

/** One run [first, how many, distance]: 0-127; 0, 8 .. 56. */
function runText([first, n, step = 1]) {
  const last = first + (n - 1) * step;
  if (n === 1) return `${first}`;
  if (step === 1) return n === 2 ? `${first}, ${last}` : `${first}-${last}`;
  return n === 2 ? `${first}, ${last}` : `${first}, ${first + step} .. ${last}`;
}

/** Ranks as runs: 0-127, 256. */
function runs(all) {
  const shown = all.slice(0, MOST_RUNS).map(runText).join(", ");
  return all.length > MOST_RUNS ? `${shown}, .. (${count(all.reduce((sum, [, n]) => sum + n, 0))})` : shown;
}

/** "rank 3" or "ranks 0-3". */
const ranksNamed = (all) => `${all.length === 1 && all[0][1] === 1 ? "rank" : "ranks"} ${runs(all)}`;

/** The runs of several lists of runs together. */
function joinedRuns(lists) {
  const ranks = lists.flat().flatMap(([first, n, step]) => Array.from({ length: n }, (_, at) => first + at * step)).sort((a, b) => a - b);
  const all = [];
  for (const rank of ranks) {
    const last = all[all.length - 1];
    if (last && last[0] + last[1] === rank) last[1] += 1;
    else all.push([rank, 1, 1]);
  }
  return all;
}

/** "+3.2 %", or "12 times" of what is far more, and its class, of what is better where it is less. */
function change(before, after) {
  if (!(before > 0) || before === after) return ["same", ""];
  const share = after / before - 1;
  const text = share >= 9 ? `${count(share + 1)} times` : `${share > 0 ? "+" : ""}${(share * 100).toFixed(2)} %`;
  return [text, share > 0 ? "worse" : "better"];
}
