// All text from the run goes through textContent; nothing is ever parsed as markup.
"use strict";
const $ = (id) => document.getElementById(id);
const LARGEST = 10 * 2 ** 20, TOGETHER = 20, PAGE = 60;
let run = null; // the last overview
let shown = { id: null, offset: 0, request: 0, chosen: new Map() };

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const percent = (value) => `${Math.floor(100 * value)} %`;
const number = (value) => value.toLocaleString("en");
const images = (count) => `${number(count)} ${run.takes_images ? "image" : "row"}${count === 1 ? "" : "s"}`;
// A class may be called "..", which an address would take for a step up; the server ignores the space.
const path = (id) => `/classes/${encodeURIComponent(/^\.+$/.test(id) ? ` ${id}` : id)}`;
const link = (one) => `#class=${encodeURIComponent(one.id)}`;

async function ask(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new Error("The server cannot be reached. Is `rowssl serve` still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(typeof content.detail === "string" ? content.detail : `The server refused (${answer.status}).`);
  return content;
}
const send = (method, address, body) =>
  ask(address, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

let fading = 0;
function say(text, bad = false) {
  const place = $("said");
  place.textContent = text;
  place.className = bad ? "bad" : "";
  place.hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => { place.hidden = true; }, bad ? 9000 : 4000);
}

function picture(row, name) {
  if (!run.pictures) return element("span", { className: "pic none", textContent: name });
  const shows = element("img", { className: "pic", alt: name, loading: "lazy", src: `/thumb/${row}?of=${run.model}` });
  shows.addEventListener("error", () => shows.replaceWith(element("span", { className: "pic none", textContent: name })));
  return shows;
}
const chip = (kind) => element("span", { className: `chip ${kind}`, textContent: kind });
const named = (one) => element("a", { href: link(one), className: one.kind, textContent: one.name });

function show(overview) {
  run = overview;
  const novel = run.classes.filter((one) => one.kind === "novel").length;
  document.title = `${run.run} · rowssl`;
  $("title").textContent = run.run;
  $("summary").textContent =
    `${images(run.rows)} in ${run.classes.length} classes: ${run.classes.length - novel} known, ${novel} novel`;
  $("undo").disabled = !run.last_edit;
  $("undo").title = run.last_edit ? `Take back: ${run.last_edit}` : "There is no edit to take back";
  $("drop").hidden = !run.takes_images;
  $("embeddings").hidden = run.takes_images;
  $("embeddings").textContent =
    `This run is on embeddings, so there is no image to drop: POST /predict with {"embedding": [${run.embedding_size} numbers]}.`;
  $("problem").hidden = !run.problem;
  $("problem").textContent = `The training images cannot be shown: ${run.problem}.`;
  const largest = Math.max(1, ...run.classes.map((one) => one.size));
  $("classes").replaceChildren(...run.classes.map((one) => card(one, largest)));
  filter();
}

function card(one, largest) {
  const bar = element("i", { className: `bar ${one.kind}` });
  bar.style.width = `${Math.max(1, (100 * one.size) / largest)}%`;
  const strip = element("span", { className: "strip" });
  if (run.pictures) strip.append(...one.typical.map((row) => picture(row, "")));
  const made = element("li", {}, element("a", { className: "card", href: link(one) },
    element("span", { className: "card-title" }, element("b", { textContent: one.name }), chip(one.kind)),
    element("span", { className: "track" }, bar),
    element("small", { textContent: `${images(one.size)}${one.labelled ? `, ${number(one.labelled)} labelled` : ""}` }),
    run.pictures ? strip : null));
  made.dataset.text = `${one.name}\n${one.id}`.toLowerCase();
  made.dataset.id = one.id;
  return made;
}

function filter() {
  const wanted = $("filter").value.trim().toLowerCase();
  let found = 0;
  for (const one of $("classes").children) {
    one.hidden = !one.dataset.text.includes(wanted);
    found += !one.hidden;
  }
  $("nothing").hidden = found > 0 || !wanted;
}

// Asking about images ------------------------------------------------------------------------------------------------
async function predict(files) {
  if (!run || !run.takes_images) return say("This run is on embeddings: it takes no image.", true);
  if (files.length > TOGETHER) say(`The first ${TOGETHER} of ${files.length} images are answered.`, true);
  for (const file of [...files].slice(0, TOGETHER)) {
    const seen = element("img", { className: "asked", alt: "", src: URL.createObjectURL(file) });
    seen.addEventListener("error", () => { seen.hidden = true; });
    const told = element("div", { className: "told" }, element("p", { className: "note", textContent: "Looking …" }));
    $("answers").prepend(element("article", { className: "answer" }, seen, told));
    try {
      if (file.size > LARGEST) throw new Error("The upload is above the limit of 10 MiB.");
      const body = new FormData();
      body.append("image", file);
      const answer = await ask("/predict", { method: "POST", body });
      told.replaceChildren(...tell(answer, file.name));
    } catch (error) {
      told.replaceChildren(element("small", { textContent: file.name }), element("p", { className: "wrong", textContent: error.message }));
    }
  }
}

function tell(answer, file) {
  const second = answer.second ? element("span", {}, "second choice ", named(answer.second)) : null;
  const near = answer.nearest.map((one) => element("li", {}, picture(one.row, one.file),
    element("span", { className: "cosine" }, named(one.label), ` ${one.cosine.toFixed(2)}`)));
  return [
    element("small", { textContent: file }),
    element("p", { className: "class-title" }, element("b", { className: "said-class" }, named(answer)), chip(answer.kind),
      answer.far ? element("span", { className: "chip far", textContent: "far from everything" }) : null),
    element("p", { className: "facts" }, element("span", {}, element("b", { textContent: percent(answer.confidence) }), " confidence"), second),
    answer.far ? element("p", { className: "note",
      textContent: "It is unlike anything the model was trained on: do not take the class at its word." }) : null,
    element("p", { className: "note", textContent: "Nearest training images, with their classes and cosines" }),
    element("ul", { className: "near" }, ...near),
  ].filter((part) => part !== null);
}

// One class ------------------------------------------------------------------------------------------------------------
async function open(id) {
  shown = { id, offset: 0, request: shown.request + 1, chosen: new Map() };
  const mine = shown;
  const one = await ask(`${path(id)}?limit=${PAGE}&order=${$("order").value}`);
  if (mine !== shown) return; // another class was opened meanwhile
  shown.id = one.id;
  $("overview").hidden = true;
  $("one").hidden = false;
  $("one-name").textContent = one.name;
  $("one-kind").textContent = one.kind;
  $("one-kind").className = `chip ${one.kind}`;
  $("one-facts").textContent = [images(one.size), `${number(one.labelled)} labelled`, one.confidence === null ? "" : `mean confidence ${percent(one.confidence)}`,
    one.name === one.id ? "" : `id ${one.id}`].filter(Boolean).join(" · ");
  $("new-name").value = one.name;
  for (const list of [$("other"), $("target")])
    list.replaceChildren(element("option", { value: "", textContent: "choose a class" }),
      ...run.classes.filter((other) => other.id !== one.id).map((other) => element("option", { value: other.id, textContent: other.name })));
  $("split").hidden = one.size < 2;
  $("members").replaceChildren();
  add(one);
}

function add(one) {
  for (const member of one.members) {
    const button = element("button", { type: "button", className: "member", title: member.file }, picture(member.row, member.file),
      element("span", { textContent: run.pictures ? member.file : "" }),
      element("small", { textContent: member.label_issue ? `labelled, but looks like ${member.label_issue.name}` : member.labelled ? "labelled" : percent(member.confidence) }));
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(member, button));
    $("members").append(element("li", {}, button));
  }
  shown.offset += one.members.length;
  $("more").hidden = shown.offset >= one.size || !one.members.length;
  choosing();
}

function choose(member, button) {
  const chosen = shown.chosen.delete(member.file) ? false : Boolean(shown.chosen.set(member.file, button));
  button.setAttribute("aria-pressed", String(chosen));
  choosing();
}

function choosing() {
  $("move").hidden = shown.chosen.size === 0;
  $("chosen").textContent = `${shown.chosen.size} chosen, to`;
}

async function edit(done, work, next) {
  const buttons = [...document.querySelectorAll("button")].filter((button) => !button.disabled);
  for (const button of buttons) button.disabled = true;
  try {
    const after = await work();
    for (const button of buttons) button.disabled = false;
    show(after);
    if (after.problems.length) say(after.problems.join(" "), true);
    else say(done(after));
    if (next === undefined) await route();
    else if (location.hash === next) await route();
    else location.hash = next;
  } catch (error) {
    for (const button of buttons) button.disabled = false;
    say(error.message, true);
  }
}

function form(id, work) {
  $(id).addEventListener("submit", (event) => { event.preventDefault(); work(); });
}
form("rename", () => edit((after) => `${after.last_edit}`, () => send("PATCH", path(shown.id), { name: $("new-name").value })));
form("merge", () => edit((after) => after.last_edit, () => send("POST", `${path(shown.id)}/merge`, { others: [$("other").value] })));
form("split", () => edit((after) => after.last_edit, () => send("POST", `${path(shown.id)}/split`, { parts: Number($("parts").value) }), ""));
form("move", () => edit((after) => after.last_edit,
  () => send("POST", "/move", { files: [...shown.chosen.keys()], class_id: $("target").value })));
$("undo").addEventListener("click", () => {
  const last = run.last_edit;
  edit(() => `Taken back: ${last}`, () => send("POST", "/undo", {}));
});
$("none").addEventListener("click", () => {
  for (const button of shown.chosen.values()) button.setAttribute("aria-pressed", "false");
  shown.chosen.clear();
  choosing();
});
$("more").addEventListener("click", async () => {
  const mine = shown;
  try {
    const one = await ask(`${path(shown.id)}?limit=${PAGE}&offset=${shown.offset}&order=${$("order").value}`);
    if (mine === shown) add(one);
  } catch (error) {
    say(error.message, true);
  }
});
$("order").addEventListener("change", () => route());
$("parts").append(...[2, 3, 4, 5].map((count) => element("option", { value: count, textContent: `into ${count} parts` })));
$("filter").addEventListener("input", filter);

$("file").addEventListener("change", () => {
  predict($("file").files).finally(() => { $("file").value = ""; });
});
addEventListener("paste", (event) => { if (event.clipboardData.files.length) predict(event.clipboardData.files); });
addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
for (const leaving of ["dragleave", "drop"]) addEventListener(leaving, () => $("drop").classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  if (!event.dataTransfer.files.length) return;
  if (!$("one").hidden) location.hash = "";
  predict(event.dataTransfer.files);
});

let scrolled = 0;
async function route() {
  const wanted = location.hash.startsWith("#class=") ? decodeURIComponent(location.hash.slice(7)) : null;
  if (wanted === null) {
    shown = { ...shown, id: null, request: shown.request + 1 };
    $("one").hidden = true;
    $("overview").hidden = false;
    scrollTo(0, scrolled);
    return;
  }
  const arriving = $("one").hidden;
  if (arriving) scrolled = scrollY;
  try {
    await open(wanted);
    if (arriving) scrollTo(0, 0);
  } catch (error) {
    say(error.message, true);
    location.hash = "";
  }
}
addEventListener("hashchange", route);

(async () => {
  try {
    show(await ask("/classes"));
    await route();
  } catch (error) {
    $("summary").textContent = error.message;
  }
})();
