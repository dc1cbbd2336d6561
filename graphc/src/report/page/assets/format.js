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

const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)} %`;

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

/** Ranks as runs [first, how many, distance]: 0-127, 256. */
const runs = (all) => all.map(([first, n]) => (n === 1 ? `${first}` : `${first}-${first + n - 1}`)).join(", ");

/** Runs of ranks in order, those that touch as one. */
function joined(all) {
  const sorted = all.map(([first, n]) => [first, n]).sort((a, b) => a[0] - b[0]);
  return sorted.reduce((done, [first, n]) => {
    const last = done[done.length - 1];
    if (last && last[0] + last[1] === first) last[1] += n;
    else done.push([first, n]);
    return done;
  }, []);
}

/** "ranks 0-3, 8"; of many runs the first ones, and how many ranks there are. */
function ranksOfRuns(all, most = 5) {
  const number = all.reduce((sum, [, n]) => sum + n, 0);
  const more = all.length > most ? `, … (${count(number)})` : "";
  return `${number > 1 ? "ranks" : "rank"} ${runs(all.slice(0, most))}${more}`;
}

/** "3.2 % slower" and its class, of what is better where it is less. */
function change(before, after) {
  if (!(before > 0) || before === after) return ["same", ""];
  const share = after / before - 1;
  return [`${share > 0 ? "+" : ""}${(share * 100).toFixed(2)} %`, share > 0 ? "worse" : "better"];
}
