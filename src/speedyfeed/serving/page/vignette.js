// A picture for every story, drawn from its topic and its embedding: the topic chooses the colour and two motifs, the
// eight numbers of the sketch one of them and its shapes. Similar stories have similar pictures; nothing is downloaded.

import { numberOf, shape } from "./elements.js";

const [WIDTH, HEIGHT] = [160, 100];

export function vignette(news) {
  const sketch = news.sketch ?? [];
  // Most numbers are small: the middle of their range is spread.
  const at = (number, low, high) => low + (high - low) * (0.5 + 0.5 * Math.tanh(2.2 * (sketch[number % 8] ?? 0)));
  const motif = MOTIFS[(numberOf(news.category) + MOTIFS.length + (sketch[7] > 0 ? 3 : 0)) % MOTIFS.length];
  const mirror = sketch[4] > 0 ? `translate(${WIDTH}) scale(-1 1)` : "";
  return shape("svg", {
    class: "vignette", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "xMidYMid slice", "aria-hidden": "true",
    topic: news.category,
  }, shape("rect", { class: "v0", width: WIDTH, height: HEIGHT }), shape("g", { transform: mirror }, ...motif(at)));
}

const circle = (cx, cy, r, kind) => shape("circle", { cx, cy, r, class: kind });
const path = (d, kind) => shape("path", { d, class: kind });
const range = (count) => [...Array(count).keys()];

function discs(at) {
  const [x, y] = [at(0, 45, 115), at(1, 35, 65)];
  return [
    circle(x, y, at(2, 30, 48), "v1"), circle(x + at(3, -50, 50), y + at(4, -28, 28), at(5, 14, 30), "v2"),
    circle(x + at(6, -62, 62), y + at(7, -30, 30), at(0, 7, 16), "v3"), circle(x - at(5, -40, 40), at(2, 15, 85), at(3, 3, 7), "v4"),
  ];
}

function hills(at) {
  const ridge = (base, swing, turn, kind) => {
    const [a, b] = [at(turn, -swing, swing), at(turn + 1, -swing, swing)];
    return path(`M0 ${base + a} C40 ${base - swing - a} 60 ${base + b} 90 ${base - b} S140 ${base + swing + a} 160 ${base - a} V100 H0 Z`, kind);
  };
  return [circle(at(0, 28, 132), at(1, 18, 42), at(2, 9, 17), "v4"), ridge(52, 16, 3, "v1"), ridge(68, 13, 5, "v2"), ridge(84, 9, 7, "v3")];
}

function columns(at) {
  const kinds = ["v1", "v2", "v3"];
  return range(10).map((number) => {
    const height = 0.5 * at(number, 12, 88) + 0.5 * at(number + 3, 12, 88);
    return shape("rect", { x: 8 + 14.6 * number, y: 100 - height, width: 11, height, class: number === Math.round(at(2, 0, 9)) ? "v4" : kinds[number % 3] });
  });
}

function waves(at) {
  return range(6).map((number) => {
    const [y, swing] = [8 + 16 * number, at(number, 2, 12)];
    const line = `M-5 ${y} q20 ${-swing} 42 0 t42 0 t42 0 t42 0`;
    return shape("path", { d: line, class: `line ${["l1", "l2", "l3"][number % 3]}`, "stroke-width": at(number + 2, 3, 11) });
  });
}

function peaks(at) {
  const peak = (x, top, half, kind) => path(`M${x - half} 100 L${x} ${top} L${x + half} 100 Z`, kind);
  return [
    circle(at(0, 24, 136), at(1, 18, 40), at(7, 6, 13), "v4"), peak(at(2, 30, 70), at(3, 22, 50), at(4, 40, 62), "v1"),
    peak(at(5, 80, 130), at(6, 28, 58), at(7, 34, 54), "v2"), peak(at(4, 50, 105), at(2, 52, 76), at(1, 26, 42), "v3"),
  ];
}

function dots(at) {
  return range(40).map((number) => {
    const [column, row] = [number % 8, Math.floor(number / 8)];
    const size = 0.55 * at(column, 1.5, 10) + 0.45 * at(row + 3, 1.5, 10);
    return circle(10 + 20 * column, 10 + 20 * row, size, size > 7 ? "v4" : size > 5 ? "v3" : "v2");
  });
}

function fans(at) {
  return range(15).map((number) => {
    const [column, row] = [number % 5, Math.floor(number / 5)];
    const [x, y] = [32 * column, 33.4 * row];
    const corner = Math.floor(4 * (at(column, 0, 1) + at(row + 5, 0, 1)) + number) % 4;
    const [right, down] = [corner % 2, corner > 1 ? 1 : 0];
    const [cx, cy] = [x + 32 * right, y + 33.4 * down];
    const [ex, ey] = [x + 32 * (1 - right), y + 33.4 * (1 - down)];
    return path(`M${cx} ${cy} L${ex} ${cy} A32 33.4 0 0 ${right === down ? 1 : 0} ${cx} ${ey} Z`, ["v1", "v2", "v3", "v2", "v4"][(number + Math.round(at(row, 0, 4))) % 5]);
  });
}

function rays(at) {
  const [x, y] = [at(0, 40, 120), at(1, 60, 104)];
  const turn = at(2, 0, 0.5);
  const point = (angle) => `${x + 190 * Math.cos(angle)} ${y - 190 * Math.sin(angle)}`;
  const wedges = range(9).map((number) => {
    const from = turn + number * 0.7;
    return path(`M${x} ${y} L${point(from)} L${point(from + at(number, 0.12, 0.5))} Z`, ["v1", "v2", "v3"][number % 3]);
  });
  return [...wedges, circle(x, y, at(3, 12, 24), "v4")];
}

const MOTIFS = [discs, hills, columns, waves, peaks, dots, fans, rays];
