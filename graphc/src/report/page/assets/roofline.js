// Kernels under the roofs of the device: FLOPs per byte against FLOPs per second, both in logarithms.

/** The width of a text of a chart. */
const textWidth = (() => {
  const pen = document.createElement("canvas").getContext("2d");
  return (text, bold = false) => {
    pen.font = `${bold ? "600 " : ""}11px system-ui, sans-serif`;
    return pen.measureText(text).width;
  };
})();

function roofline(plan, sums) {
  const points = [...sums.kernels].map(([op, one]) => ({ op, one, n: one.sums[0], flops: one.sums[1], moved: one.sums[2], s: one.sums[3] }))
    .filter((one) => one.flops > 0 && one.moved > 0 && one.s > 0);
  if (!points.length) return el("p", { class: "note" }, "No kernel computes.");
  const { peaks, bandwidth } = plan.costs;
  const top = Math.max(...Object.values(peaks));
  const frame = { left: 62, right: 12, top: 14, bottom: 40, width: room(560), height: 330 };
  const logs = (values) => [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
  const [x0, x1] = logs([...points.map((one) => one.flops / one.moved), top / bandwidth]);
  const [y0, y1] = logs([...points.map((one) => one.flops / one.s), top * 1.2]);
  const x = (value) => frame.left + ((Math.log10(value) - x0) / (x1 - x0 || 1)) * (frame.width - frame.left - frame.right);
  const y = (value) => frame.height - frame.bottom - ((Math.log10(value) - y0) / (y1 - y0 || 1)) * (frame.height - frame.top - frame.bottom);
  const clip = (value) => Math.max(frame.top, Math.min(frame.height - frame.bottom, value));
  const image = svg("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, role: "img", "aria-label": "Roofline of kernels by op; the table beside it has the numbers" });
  for (let power = x0; power <= x1; power++) {
    image.append(svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: frame.top, y2: frame.height - frame.bottom }),
      svg("text", { x: x(10 ** power), y: frame.height - frame.bottom + 15, "text-anchor": power === x1 ? "end" : "middle" }, String(10 ** power)));
  }
  const stepY = Math.max(1, Math.ceil((y1 - y0) / 8));
  for (let power = y0; power <= y1; power += stepY) {
    image.append(svg("line", { class: "grid", x1: frame.left, x2: frame.width - frame.right, y1: y(10 ** power), y2: y(10 ** power) }),
      svg("text", { x: frame.left - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, metric(10 ** power, "")));
  }
  const taken = roofs(image, peaks, bandwidth, x, y, [10 ** x0, 10 ** x1], frame, clip);
  const most = Math.max(...points.map((one) => one.s));
  const circle = (one) => [x(one.flops / one.moved), clip(y(one.flops / one.s)), 3 + 17 * Math.sqrt(one.s / most)];
  points.map(circle).forEach(([cx, cy, r]) => taken.push([cx - r * 0.7, cy - r * 0.7, cx + r * 0.7, cy + r * 0.7]));
  const labels = [];
  points.sort((a, b) => b.s - a.s).forEach((one) => {
    const [cx, cy, r] = circle(one);
    const text = `${one.op}: ${seconds(one.s)}, ${metric(one.flops / one.s, "FLOP/s")}, ${(one.flops / one.moved).toPrecision(3)} FLOP a byte`;
    image.append(svg("circle", { cx, cy, r, "fill-opacity": 0.55, style: { fill: "var(--kernel)" }, on: { click: () => address.go(() => showLongest(plan, one.one)), mousemove: (event) => tip.show(event, text), mouseleave: tip.hide } }));
    labels.push(...label(taken, one.op, [cx, cy, r], frame));
  });
  image.append(...labels);
  image.append(svg("text", { x: (frame.left + frame.width) / 2, y: frame.height - 6, "text-anchor": "middle" }, "FLOPs per byte of memory"));
  return el("figure", null, el("figcaption", null, "Kernels by op under the device's roofs, FLOPs per second upwards; areas are seconds"), image);
}

/** The line of the memory and that of each element type's peak. */
function roofs(image, peaks, bandwidth, x, y, [least, most], frame, clip) {
  const [byHeight, taken] = [new Map(), []];
  Object.entries(peaks).forEach(([dtype, peak]) => byHeight.set(peak, [...(byHeight.get(peak) || []), dtype]));
  for (const [peak, dtypes] of byHeight) {
    const knee = Math.max(least, Math.min(most, peak / bandwidth));
    const text = `${dtypes.join(", ")} ${metric(peak, "FLOP/s")}`;
    image.append(svg("path", { class: "roof", d: `M${x(least)} ${clip(y(least * bandwidth))}L${x(knee)} ${clip(y(Math.min(peak, knee * bandwidth)))}L${x(most)} ${clip(y(peak))}` }),
      svg("text", { x: x(knee) - 8, y: clip(y(peak)) + 4, "text-anchor": "end" }, text));
    taken.push([x(knee) - 12 - textWidth(text), clip(y(peak)) - 8, x(knee), clip(y(peak)) + 6]);
  }
  return taken;
}

/** The name of a point beside it, where there is room: it covers no other name, and no point. */
function label(taken, text, [cx, cy, r], frame) {
  const width = textWidth(text, true) + 2;
  const places = [[cx - width / 2, cy - r - 4], [cx - width / 2, cy + r + 13], [cx + r + 4, cy + 4], [cx - r - 4 - width, cy + 4]];
  const free = places.find(([x, y]) => {
    const box = [x, y - 10, x + width, y + 3];
    const inside = box[0] > frame.left && box[2] < frame.width && box[1] > 0 && box[3] < frame.height - frame.bottom;
    return inside && taken.every((other) => box[2] < other[0] || other[2] < box[0] || box[3] < other[1] || other[3] < box[1]);
  });
  if (!free) return [];
  taken.push([free[0], free[1] - 10, free[0] + width, free[1] + 3]);
  return [svg("text", { class: "strong label", x: free[0], y: free[1] }, text)];
}
