(() => {
"use strict";
const one = (selector) => document.querySelector(selector), every = (selector) => [...document.querySelectorAll(selector)];
for (const element of every(".js")) element.hidden = false;

// The class table: which classes, in which order, opened or closed.
const lines = every("details.class");
const filter = one("#filter"), order = one("#order"), openAll = one("#open-all");
const choose = () => lines.forEach((line) => { line.hidden = filter.value !== "all" && !line.classList.contains(filter.value); });
filter?.addEventListener("change", choose);
order?.addEventListener("change", () => {
  const key = order.value, name = (a, b) => a.dataset.name.localeCompare(b.dataset.name, undefined, {numeric: true});
  const sorted = [...lines].sort((a, b) => (key === "name" ? 0 : b.dataset[key] - a.dataset[key]) || name(a, b));
  lines[0].parentElement.append(...sorted);
});
openAll?.addEventListener("click", () => {
  const open = openAll.getAttribute("aria-pressed") === "false";
  lines.forEach((line) => { line.open = open; });
  openAll.setAttribute("aria-pressed", open);
  openAll.textContent = open ? "Close all" : "Open all";
});
// A link to a class opens it, even when the filter hides it.
const reveal = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (!target || target.tagName !== "DETAILS") return;
  if (target.hidden) { filter.value = "all"; choose(); }
  target.open = true;
  target.scrollIntoView();
};
addEventListener("hashchange", reveal);
document.addEventListener("click", (event) => { if (event.target.closest('a[href="' + location.hash + '"]')) reveal(); });
reveal();

// The map.
const canvas = one("#map-canvas");
if (!canvas) return;
const data = JSON.parse(one("#data").textContent), palette = data.palette, ramp = data.ramp;
const tip = one("#tip"), legend = one("#map-legend"), pictures = one("#pictures"), paint = canvas.getContext("2d");
const rows = data.x.length, widest = largest(data.x), tallest = largest(data.y);
const full = new Set(data.full), rank = new Map(data.order.map((position, i) => [position, i]));
const measure = () => ({w: canvas.clientWidth, h: canvas.clientHeight});
let view = {zoom: 1, x: 0, y: 0}, size = measure(), colours = [], mode = "class", only = -1, pinned = -1, queued = false;
const sheets = [];

function largest(values) { return values.reduce((a, b) => Math.max(a, b), 1); }
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function classColour(position) {
  const i = rank.get(position);
  if (i === undefined) return data.none;
  return i < palette.length ? palette[i] : `hsl(${(i * 137.5) % 360} ${[45, 60][i % 2]}% ${[48, 60, 54][i % 3]}%)`;
}
function rampColour(value) {
  if (value === null) return data.none;
  const at = Math.min(.9999, Math.max(0, value / 100)) * (ramp.length - 1), i = Math.floor(at);
  const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
  const mix = (k) => Math.round(part(ramp[i], k) + (at - i) * (part(ramp[i + 1], k) - part(ramp[i], k)));
  return `rgb(${mix(0)},${mix(1)},${mix(2)})`;
}
function recolour() {
  const kind = {true: token("--known"), false: token("--novel")};
  const of = {class: (i) => classColour(data.class[i]), confidence: (i) => rampColour(data.confidence[i]),
    known: (i) => kind[data.classes[data.class[i]]?.known] ?? data.none, tailedness: (i) => rampColour(data.tailedness[i])}[mode];
  colours = Array.from({length: rows}, (_, i) => of(i));
  legend.replaceChildren();
  const add = (tag, text, colour, ring) => {
    const item = document.createElement(tag), dot = document.createElement("i");
    if (colour) dot.style.background = colour;
    if (ring) dot.className = "ring";
    item.append(dot, text);
    legend.append(item);
    return item;
  };
  if (mode === "class") data.order.forEach((position) => {
    const button = add("button", data.classes[position].name, classColour(position));
    button.type = "button";
    button.setAttribute("aria-pressed", only === position);
    button.addEventListener("click", () => {
      only = only === position ? -1 : position;
      [...legend.children].forEach((b, i) => b.setAttribute("aria-pressed", data.order[i] === only));
      hide();
      redraw();
    });
  });
  else if (mode === "known") { add("span", "known", kind.true); add("span", "novel", kind.false); }
  else {
    const bar = document.createElement("div"), ends = mode === "confidence" ? ["0 %", "100 %"] : data.ends;
    bar.className = "ramp";
    bar.style.background = `linear-gradient(90deg, ${ramp.join()})`;
    legend.append(`${mode} ${ends[0]}`, bar, ends[1]);
  }
  if (mode === "known" && data.labelled.includes(1)) add("span", "labelled by a person", "", true);
  if (mode !== "class") only = -1;
  redraw();
}
const place = (i) => {
  const margin = Math.min(48, .08 * size.w), fit = Math.min((size.w - margin) / widest, (size.h - margin) / tallest) * view.zoom;
  return [size.w / 2 + (data.x[i] - widest / 2) * fit + view.x, size.h / 2 - (data.y[i] - tallest / 2) * fit + view.y];
};
function sheet(number) {
  if (!sheets[number]) {
    const probe = document.createElement("span");
    probe.className = "s" + number;
    canvas.parentElement.append(probe);
    sheets[number] = new Image();
    sheets[number].onload = redraw;
    sheets[number].src = getComputedStyle(probe).backgroundImage.slice(5, -2);
    probe.remove();
  }
  return sheets[number].complete && sheets[number].naturalWidth ? sheets[number] : null;
}
function draw() {
  queued = false;
  const ratio = devicePixelRatio || 1, ink = token("--ink"), taken = new Set();
  size = measure();
  canvas.width = Math.round(size.w * ratio);
  canvas.height = Math.round(size.h * ratio);
  paint.scale(ratio, ratio);
  const room = Math.sqrt(size.w * size.h / rows), grow = Math.sqrt(view.zoom); // points shrink as the map fills
  const radius = Math.min(8, Math.min(4, Math.max(1.6, .095 * room)) * grow), side = Math.min(64, 22 * grow);
  const thumbs = [];
  for (let i = 0; i < rows; i++) {
    const [x, y] = place(i);
    if (x < -32 || y < -32 || x > size.w + 32 || y > size.h + 32) continue;
    const faded = only >= 0 && data.class[i] !== only;
    if (pictures?.checked && !faded && data.tile[i] >= 0) {
      const cell = Math.floor(x / side) * 4096 + Math.floor(y / side); // one picture per cell, so that none hides another
      if (!taken.has(cell)) { taken.add(cell); thumbs.push([i, x, y]); continue; }
    }
    paint.globalAlpha = faded ? .1 : pictures?.checked ? .35 : .85;
    paint.fillStyle = colours[i];
    paint.beginPath();
    paint.arc(x, y, radius, 0, 7);
    paint.fill();
    if (data.labelled[i] && mode === "known" && !faded) { paint.strokeStyle = ink; paint.lineWidth = 1.2; paint.stroke(); }
  }
  paint.globalAlpha = 1;
  for (const [i] of thumbs) {
    const per = data.grid * data.grid, image = sheet(Math.floor(data.tile[i] / per)), spot = data.tile[i] % per;
    let [x, y] = place(i);
    x = (Math.floor(x / side) + .5) * side; y = (Math.floor(y / side) + .5) * side;
    const half = side / 2 - 1.5, from = image ? image.naturalWidth / data.grid : 0;
    paint.fillStyle = colours[i];
    paint.fillRect(x - half - 1, y - half - 1, 2 * half + 2, 2 * half + 2);
    if (image) paint.drawImage(image, spot % data.grid * from, Math.floor(spot / data.grid) * from, from, from, x - half + 1, y - half + 1, 2 * half - 2, 2 * half - 2);
  }
  if (pinned >= 0) {
    const [x, y] = place(pinned);
    paint.strokeStyle = ink;
    paint.lineWidth = 2;
    paint.beginPath();
    paint.arc(x, y, radius + 4, 0, 7);
    paint.stroke();
  }
}
function redraw() { if (!queued) { queued = true; requestAnimationFrame(draw); } }
function nearest(x, y) {
  let best = -1, least = 24 * 24;
  for (let i = 0; i < rows; i++) {
    if (only >= 0 && data.class[i] !== only) continue;
    const [a, b] = place(i), distance = (a - x) ** 2 + (b - y) ** 2;
    if (distance < least) { least = distance; best = i; }
  }
  return best;
}
function hide() { tip.hidden = true; pinned = -1; tip.classList.remove("pinned"); }
function show(i) {
  const picture = document.createElement("span"), link = document.createElement("a"), note = document.createElement("small");
  const card = data.classes[data.class[i]], per = data.grid * data.grid, tile = data.tile.length ? data.tile[i] : -1;
  const row = data.row.length ? data.row[i] : i;
  if (full.has(row)) picture.className = "pic t" + row;
  else if (tile >= 0) {
    const spot = tile % per, last = data.grid - 1;
    picture.className = "pic tile s" + Math.floor(tile / per);
    picture.style.backgroundPosition = `${100 * (spot % data.grid) / last}% ${100 * Math.floor(spot / data.grid) / last}%`;
  }
  if (card) { link.textContent = card.name; link.href = "#class-" + data.class[i]; link.className = card.known ? "known" : "novel"; }
  note.textContent = [data.labelled[i] ? "labelled" : card?.known ? "known" : "novel",
    data.labelled[i] || data.confidence[i] === null ? "" : data.confidence[i] + " % sure"].filter(Boolean).join(" · ");
  tip.replaceChildren(...(picture.className ? [picture] : []), link, data.name[i], note);
  tip.hidden = false;
  const [x, y] = place(i), w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(size.w - w - 4, x + 16 + w > size.w ? x - w - 16 : x + 16)) + "px";
  tip.style.top = Math.max(4, Math.min(size.h - h - 4, y - h / 2)) + "px";
}
function zoom(factor, x = size.w / 2, y = size.h / 2) {
  const next = factor ? Math.min(60, Math.max(1, view.zoom * factor)) : 1, by = next / view.zoom;
  view = next === 1 ? {zoom: 1, x: 0, y: 0}
    : {zoom: next, x: (x - size.w / 2) * (1 - by) + view.x * by, y: (y - size.h / 2) * (1 - by) + view.y * by};
  canvas.style.touchAction = next > 1 ? "none" : "pan-y"; // a finger scrolls the page until the map is enlarged
  hide();
  redraw();
}
const fingers = new Map();
let moved = 0;
const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, at(event)); moved = 0; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointermove", (event) => {
  const now = at(event), before = fingers.get(event.pointerId);
  if (!before) {
    if (pinned < 0) { const i = nearest(...now); if (i < 0) tip.hidden = true; else show(i); }
    return;
  }
  moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
  if (fingers.size === 2) {
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
    const gap = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
    zoom(gap(now) / gap(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  } else if (moved > 4 && (view.zoom > 1 || event.pointerType === "mouse")) {
    view.x += now[0] - before[0];
    view.y += now[1] - before[1];
    hide();
    redraw();
  }
  fingers.set(event.pointerId, now);
});
canvas.addEventListener("pointerup", (event) => {
  const i = moved < 6 && fingers.size === 1 ? nearest(...at(event)) : -1;
  if (moved < 6) hide();
  if (i >= 0) { show(i); pinned = i; tip.classList.add("pinned"); }
  fingers.delete(event.pointerId);
  redraw();
});
canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
canvas.addEventListener("pointerleave", () => { if (pinned < 0) tip.hidden = true; });
canvas.addEventListener("dblclick", (event) => zoom(2, ...at(event)));
canvas.addEventListener("wheel", (event) => { // plain scrolling stays with the page
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 200), ...at(event));
}, {passive: false});
canvas.addEventListener("keydown", (event) => {
  const step = {ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40]}[event.key];
  if (step) { view.x += step[0]; view.y += step[1]; hide(); redraw(); }
  else if (event.key === "+" || event.key === "=") zoom(1.6);
  else if (event.key === "-") zoom(.625);
  else if (event.key === "Escape") { hide(); redraw(); }
  else return;
  event.preventDefault();
});
for (const button of every("[data-zoom]")) button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
for (const radio of every("[name=colour]")) radio.addEventListener("change", () => { mode = radio.value; recolour(); });
pictures?.addEventListener("change", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
new ResizeObserver(redraw).observe(canvas);
recolour();
})();
