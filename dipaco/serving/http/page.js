// The page at /. It routes the prompt while it is typed, and shows one or two texts as they come.

import {drawLine, drawLevels, light, piece, showPaths, showScores} from "./picture.js";

const at = id => document.getElementById(id);
const ENDS = {length: "the limit", stop: "the text itself"}; // words for each finish_reason
let models = []; // entries of /v1/models, the routed one first
let paths = []; // paths of the first model
let routed = null; // the latest answer of /v1/route
let running = null; // AbortController of the texts that are coming

async function ask(url, body, signal) {
  const headers = {"Content-Type": "application/json"};
  if (at("key").value) headers.Authorization = "Bearer " + at("key").value;
  const answer = await fetch(url, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal});
  if (!answer.ok) {
    if (answer.status === 401) at("key-label").hidden = false;
    const problem = await answer.json().catch(() => null);
    throw new Error(problem?.error?.message ?? `The server answered ${answer.status}.`);
  }
  return answer;
}

function short(number) {
  for (const [size, unit] of [[1e9, " B"], [1e6, " M"], [1e3, " k"]]) if (number >= size) return (number / size).toPrecision(3) + unit;
  return String(number);
}

async function describe() {
  models = (await (await ask("v1/models")).json()).data;
  const model = models[0], card = model.dipaco;
  paths = (await (await ask("v1/paths")).json()).data;
  at("model").textContent = model.id;
  document.title = `${model.id} · dipaco`;
  at("facts").textContent = `${card.num_paths} paths of ${short(card.parameters_per_path)} parameters, ${short(card.parameters_total)} in all modules · phase ${card.phase} · context ${card.context}`;
  at("tokens").max = card.context;
  at("router").hidden = !card.is_routed;
  if (card.score_meaning) at("score-note").textContent = `By the first ${card.prefix_tokens} tokens: ${card.score_meaning}. The highest takes it.`;
  at("chips").replaceChildren(...card.examples.map(chipOf));
  at("prompt").value ||= card.examples[0] ?? "";
  drawLevels(card.levels);
  fill(at("first-choice"), card.is_routed ? ["router", "the router's choice"] : ["path 0", "path 0"]);
  fill(at("second-choice"), ["", "nothing"], ...(card.is_routed ? [["router", "the router's choice"]] : []));
  sheets();
}

function chipOf(example) {
  const chip = Object.assign(piece("button", "", example), {type: "button", dir: "auto"});
  chip.onclick = () => { at("prompt").value = example; route(); at("prompt").focus(); };
  return chip;
}

// --- choice of a path or model ----------------------------------------------------------------

function fill(select, ...first) {
  const before = select.value;
  const group = (label, options) => {
    const found = Object.assign(document.createElement("optgroup"), {label});
    found.append(...options);
    return found;
  };
  const trained = ({domains}) => {
    const [most] = Object.entries(domains ?? {});
    return most ? ` · ${most[0]} ${Math.round(100 * most[1])} %` : "";
  };
  select.replaceChildren(...first.map(([value, text]) => new Option(text, value)));
  if (models[0].dipaco.is_routed) select.append(group("Paths", paths.map(path => new Option(`path ${path.path}${trained(path)}`, `path ${path.path}`))));
  if (models.length > 1) select.append(group("Other models", models.slice(1).map(model => new Option(model.id, `model ${model.id}`))));
  if ([...select.options].some(option => option.value === before)) select.value = before;
}

// Returns the request of a choice, its path and its title. The path is null for another model, or before routing.
function meant(choice) {
  const [kind, name] = [choice.split(" ", 1)[0], choice.slice(choice.indexOf(" ") + 1)];
  if (kind === "model") return {request: {model: name}, path: null, title: name};
  if (kind === "path") return {request: {model: models[0].id, path: Number(name)}, path: Number(name), title: `path ${name}`};
  const path = routed?.path ?? null;
  return {request: {model: models[0].id}, path, title: path === null ? "the router's choice" : `path ${path}, the router's choice`};
}

const choices = () => [at("first-choice").value, at("second-choice").value].filter(choice => choice);

// Makes one sheet for each text. Their content stays while their number is the same.
function sheets() {
  const wanted = choices(), found = [...document.querySelectorAll(".text-sheet")];
  if (found.length !== wanted.length) {
    for (const sheet of found.slice(wanted.length)) sheet.remove();
    for (let number = found.length; number < wanted.length; number++) at("texts").append(at("text-sheet").content.cloneNode(true));
  }
  document.querySelectorAll(".text-sheet h2").forEach((title, number) => { if (!running) title.textContent = meant(wanted[number]).title; });
  return [...document.querySelectorAll(".text-sheet")];
}

function show() {
  const known = choices().map(choice => meant(choice).path);
  light(known.map(path => paths[path]?.modules ?? []));
  showPaths(known.map(path => paths[path] ?? null));
  sheets();
}

// --- routing -----------------------------------------------------------------------------------

let typed = 0;
async function route() {
  const mine = ++typed, prompt = at("prompt").value;
  if (!prompt) return;
  try {
    const answer = await (await ask("v1/route", {prompt})).json();
    if (mine !== typed) return; // The prompt was changed meanwhile.
    routed = answer;
    showScores(routed);
    at("guess").textContent = routed.is_guess ? guess(routed) : "";
    show();
    at("problem").textContent = "";
  } catch (error) {
    if (mine === typed) at("problem").textContent = error.message;
  }
}

function guess({routed_tokens: read}) {
  const all = models[0].dipaco.prefix_tokens;
  const seen = all === 32 ? " Where it was measured, 8 tokens went where 32 would 81 % of the time, 4 tokens 69 %." : "";
  return `A guess: the router has read ${read} of the ${all} tokens that it chooses by.${seen}`;
}

// --- texts -------------------------------------------------------------------------------------

async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const {done, value} = await reader.read();
    if (done) return;
    const pieces = (held + value).split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) if (piece !== "data: [DONE]") yield JSON.parse(piece.slice(6));
  }
}

async function write(sheet, request, prompt, signal) {
  const of = name => sheet.querySelector("." + name);
  for (const name of ["rate", "first", "count", "end"]) of(name).textContent = "–";
  of("problem").textContent = "";
  const said = piece("span", "prompt", prompt), text = document.createTextNode("");
  of("text").replaceChildren(said, text);
  of("text").classList.add("busy");
  const started = performance.now();
  let first = null, count = 0;
  try {
    const answer = await ask("v1/completions", {...request, prompt, logprobs: 0, stream: true, stream_options: {include_usage: true}}, signal);
    for await (const event of eventsOf(answer)) {
      if (event.error) throw new Error(event.error.message); // A failing stream ends with this event.
      const choice = event.choices?.[0], now = performance.now();
      if (choice) {
        first ??= now;
        text.data += choice.text;
        count += choice.logprobs?.tokens.length ?? 1;
        if (choice.finish_reason) of("end").textContent = ENDS[choice.finish_reason] ?? choice.finish_reason;
      } else if (event.usage) count = event.usage.completion_tokens;
      if (first !== null) of("first").textContent = `${Math.round(first - started)} ms`;
      of("count").textContent = count;
      if (count > 1 && choice) of("rate").textContent = Math.round(1000 * count / (now - started));
    }
  } catch (error) {
    if (error.name === "AbortError") of("end").textContent = "you";
    else {
      of("end").textContent = "error";
      of("problem").textContent = error.message;
    }
  } finally {
    of("text").classList.remove("busy");
  }
}

// Disables the choices while texts come.
function choosing(may) {
  for (const id of ["first-choice", "second-choice"]) at(id).disabled = !may;
}

async function go(event) {
  event.preventDefault();
  if (running) return running.abort();
  const wanted = choices().map(choice => meant(choice).request), texts = sheets();
  running = new AbortController();
  at("go").textContent = "Stop";
  choosing(false);
  at("problem").textContent = "";
  const settings = {
    max_tokens: Number(at("tokens").value), temperature: Number(at("temperature").value),
    seed: Math.floor(Math.random() * 2 ** 31), // The seed is equal for both texts, so that only the model differs.
  };
  route();
  try {
    await Promise.all(texts.map((sheet, number) => write(sheet, {...settings, ...wanted[number]}, at("prompt").value, running.signal)));
  } finally {
    at("go").textContent = "Continue";
    choosing(true);
    running = null;
    show();
  }
}

at("form").addEventListener("submit", go);
at("prompt").addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit(); });
let waiting;
at("prompt").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(route, 120); });
for (const id of ["first-choice", "second-choice"]) at(id).addEventListener("change", show);
addEventListener("resize", drawLine);
const begin = () => describe().then(() => { show(); return route(); }).catch(error => { at("problem").textContent = error.message; });
at("key").addEventListener("change", begin);
begin();
