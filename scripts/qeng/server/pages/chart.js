// A line chart as SVG: some lines of our own instead of a library of 200 KB, which would be most of these pages.

import { make, brief } from "./dom.js";

const width = 480, height = 200, left = 58, bottom = 22, top = 8;
const most = 400;  // points of a line: about as many as it has pixels

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Round numbers within [low, high], about four.
function ticks(low, high) {
  const raw = (high - low) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) list.push(i * step);
  return list;
}

// Least and greatest of each stretch, so that no spike is lost.
function thin(points) {
  if (points.length <= most) return points;
  const kept = [], stretches = most / 2, start = (s) => Math.floor(s * points.length / stretches);
  for (let s = 0; s < stretches; s++) {
    const part = points.slice(start(s), start(s + 1));
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a)), high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

// series: [{ label, points: [[x, y]...] }...]; range: { x: [low, high] } where the points do not say.
// Returns a figure; draw(series) fills it anew.
export function chart(title, unit, range = {}) {
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const legend = make("ul", { class: "legend" });
  const figure = make("figure", {}, make("figcaption", {}, unit ? `${title} (${unit})` : title), legend, picture);

  function draw(series) {
    const shown = series.map((each) => thin(each.points.filter(([, y]) => Number.isFinite(y))));
    const all = shown.flat(), xs = range.x ?? all.map((p) => p[0]), ys = all.map((p) => p[1]);
    const named = series.length > 1 ? series : [];
    legend.replaceChildren(...named.map((s, i) => make("li", { class: `s${i % 6}` }, s.label)));
    if (!all.length) return picture.replaceChildren(svg("text", { x: left, y: height / 2 }, "no figures yet"));
    const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1e-9);
    const zero = range.zero || Math.min(...ys) >= 0 && Math.min(...ys) < Math.max(...ys) / 3;
    let y0 = zero ? 0 : Math.min(...ys), y1 = Math.max(...ys);
    if (y1 === y0) [y0, y1] = y0 ? [y0 - Math.abs(y0) / 10, y1 + Math.abs(y1) / 10] : [0, 1];
    const at = ([x, y]) => [left + (x - x0) / (x1 - x0) * (width - left - 8),
      height - bottom - (y - y0) / (y1 - y0) * (height - bottom - top)].map((v) => v.toFixed(1));
    const parts = [];
    const digits = (low, high) => 2 + Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low)));
    for (const y of ticks(y0, y1)) {
      const [, at_y] = at([x0, y]);
      parts.push(svg("line", { class: "grid", x1: left, x2: width - 8, y1: at_y, y2: at_y }),
        svg("text", { x: left - 6, y: Number(at_y) + 4, "text-anchor": "end" }, brief(y, digits(y0, y1))));
    }
    for (const x of ticks(x0, x1)) {
      if (x1 - x0 < 1) break;
      parts.push(svg("text", { x: at([x, y0])[0], y: height - 5, "text-anchor": "middle" }, brief(x, digits(x0, x1))));
    }
    shown.forEach((points, i) => {
      const line = points.length > 1 ? points : points.flatMap((p) => [p, [p[0] + (x1 - x0) / 100, p[1]]]);
      parts.push(svg("polyline", { class: `s${i % 6}`, points: line.map((p) => at(p).join(",")).join(" ") }));
    });
    picture.replaceChildren(...parts);
    const last = series.map((s) => `${s.label} ${brief(s.points.at(-1)?.[1])}`).join(", ");
    picture.setAttribute("aria-label", `${title}; last: ${last}`);
  }
  draw([]);
  return { figure, draw };
}
