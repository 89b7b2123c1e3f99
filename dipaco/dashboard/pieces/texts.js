// Routing of text: domains by path, and the history of one document.

const MOST_COLUMNS = 24, MOST_HITS = 20, AWAY_SECONDS = 30;
const stageOf = phase => run.document.status.stages[phase ? `route@${phase}` : "route"];

function drawTexts() {
  const phase = routingAt(run.time), stage = phase === null ? null : stageOf(phase), table = at("domains");
  at("where-when").textContent = stage ? `${phase ? `as routed again at phase ${phase}` : "as first routed"}: documents of each domain that train each path` : "Nothing has been routed yet.";
  table.hidden = !stage;
  if (stage) {
    const totals = new Map();
    stage.domains.forEach(of => { for (const [name, count] of Object.entries(of)) totals.set(name, (totals.get(name) ?? 0) + count); });
    const names = [...totals].sort((a, b) => b[1] - a[1]).map(([name]) => name);
    const wide = stage.domains.length <= MOST_COLUMNS;
    const head = wide ? stage.domains.map((_, path) => make("th", {className: "path", scope: "col"}, pathButton(path))) : [make("th", {textContent: "paths with most of it", scope: "col"})];
    fill(table, make("tr", {}, make("th", {textContent: "domain", scope: "col"}), ...head, make("th", {className: "number", textContent: "documents", scope: "col"})), ...names.map(name => {
      const cells = wide ? stage.domains.map((of, path) => heat(name, path, of[name] ?? 0, totals.get(name))) : [make("td", {className: "long"}, ...stage.domains.map((of, path) => [path, of[name] ?? 0]).sort((a, b) => b[1] - a[1]).slice(0, 6).filter(([, count]) => count).flatMap(([path, count]) => [pathButton(path), ` ${percent(count / totals.get(name))}  `]))];
      return make("tr", {data: {domain: name}}, make("th", {textContent: name, scope: "row"}), ...cells, make("td", {className: "number", textContent: totals.get(name).toLocaleString("en")}));
    }), make("tr", {}, make("th", {textContent: "all", scope: "row"}), ...(wide ? stage.documents.map(count => make("td", {className: "heat", textContent: count.toLocaleString("en")})) : [make("td", {textContent: `${Math.min(...stage.documents).toLocaleString("en")} to ${Math.max(...stage.documents).toLocaleString("en")} a path`})]), make("td", {className: "number", textContent: stage.documents.reduce((a, b) => a + b, 0).toLocaleString("en")})));
  }
  drawCompletions();
}

function heat(name, path, count, total) {
  const share = total ? count / total : 0;
  return make("td", {className: "heat", textContent: count ? percent(share) : "", title: `${count.toLocaleString("en")} of ${total.toLocaleString("en")} documents of ${name} train path ${path}`, data: {count, path}, style: `background:color-mix(in srgb, var(--hot) ${Math.round(70 * share)}%, transparent)`, onclick: () => choosePath(path)});
}

function drawCompletions() { // facts of the task `sample`, if there are some
  const all = (run.document.completions ?? []).filter(({seconds}) => (seconds ?? 0) <= run.time);
  at("completions").hidden = !all.length;
  fill(at("completion-list"), ...all.slice(-60).reverse().map(({phase, path, prompt, text}) => make("div", {className: "completion"}, make("span", {className: "soft", textContent: `phase ${phase}, path ${path}: `}), make("bdi", {}, make("span", {className: "soft", textContent: prompt}), text))));
}

function textsVersion() { // Changes with every routing, evaluation and rollback, and with the run that is shown.
  const {origin, status: {stages, rollbacks}, curves} = run.document;
  return JSON.stringify([origin, rollbacks.length, Object.keys(stages).filter(name => name.startsWith("route")), Object.values(curves).map(points => points.length)]);
}

async function getTexts() { // Fetches texts again when there are more, or if there were none.
  const held = at("texts"), version = textsVersion();
  if (run.texts && (held || run.textsVersion === version)) return;
  run.textsVersion = version;
  let texts = null;
  try {
    texts = held ? JSON.parse(held.textContent) : await (await ask("texts")).json();
  } catch (error) {
    if (run.textsVersion !== version) return;
    at("no-texts").textContent = error.message;
    run.textsVersion = undefined; // The texts are asked for again.
    run.areTextsAway = true;
    setTimeout(() => { run.areTextsAway = false; renewTexts(); }, 1000 * AWAY_SECONDS);
    return;
  }
  if (run.textsVersion !== version) return; // A later request is on its way.
  at("no-texts").textContent = "";
  if (texts) {
    for (const [key, value] of Object.entries(texts)) if (value?.data !== undefined) texts[key] = unpack(value);
    texts.routings = texts.routings.map(({phase, paths}) => ({phase, paths: unpack(paths)}));
    texts.scores = texts.scores.map(({phase, documents, losses}) => ({phase, documents: unpack(documents), losses: unpack(losses)}));
    texts.beginnings.documents = unpack(texts.beginnings.documents);
  }
  run.texts = texts;
}

function renewTexts() { // Fetches texts again if the page has shown some.
  if (run.hasShownTexts && !run.areTextsAway && run.textsVersion !== textsVersion()) getTexts();
}

function fateOf(number) { // the history of one document
  const of = run.texts, count = of.tokens.length;
  if (!(number >= 0 && number < count)) return null;
  const place = of.beginnings.documents.indexOf(number);
  return {
    document: number, domain: of.domains[of.domain[number]], split: of.splits[of.split[number]], tokens: of.tokens[number], text: place < 0 ? "" : of.beginnings.texts[place] + " …",
    routings: of.routings.map(({phase, paths}) => ({phase, paths: Array.from({length: paths.shape[0]}, (_, k) => paths[k * count + number]).filter(path => path >= 0)})),
    losses: of.scores.flatMap(({phase, documents, losses}) => { const i = documents.indexOf(number); return i < 0 ? [] : [{phase, loss: losses[i]}]; }),
  };
}

function showFate(fate) {
  const isTrained = fate.split === "train", last = fate.routings.at(-1)?.paths ?? [];
  const pairs = [
    ["domain", fate.domain], ["split", isTrained ? "train: a path is trained on it" : ["tune", "test"].includes(fate.split) ? `${fate.split}: only predicted` : `${fate.split}: the router is fitted to it`], ["tokens", fate.tokens.toLocaleString("en")],
    ["path", make("span", {}, ...fate.routings.flatMap(({phase, paths}) => [fate.routings.length > 1 ? `from phase ${phase}: ` : "", ...(paths.length ? paths.map(pathButton) : ["none"]), " "]))],
  ];
  if (fate.losses.length) pairs.push(["loss, nats per token", fate.losses.map(({phase, loss}) => `${loss.toFixed(3)} at phase ${phase}`).join(", ")]);
  const box = make("div", {className: "document", data: {document: fate.document}}, make("h3", {textContent: `Document ${fate.document.toLocaleString("en")}`}), facts(pairs), fate.text ? make("blockquote", {dir: "auto", textContent: fate.text}) : null);
  at("found").replaceChildren(box);
  if (last.length) choosePath(last[0]);
}

function showDocument(number) {
  const fate = run.texts && fateOf(number);
  if (fate) showFate(fate);
  else at("found").textContent = run.texts ? `There is no document ${number}; they are numbered from 0 to ${run.texts.tokens.length - 1}.` : "This page has no texts.";
}

async function seek(event) {
  event.preventDefault();
  const words = at("words").value.trim();
  if (!words) return;
  at("found").textContent = "Looking …";
  await getTexts();
  if (/^\d+$/.test(words)) return showDocument(Number(words));
  const of = run.texts?.beginnings, note = `Looked at how ${(of?.texts.length ?? 0).toLocaleString("en")} of ${(run.texts?.tokens.length ?? 0).toLocaleString("en")} documents begin.`;
  const hits = (of?.texts ?? []).flatMap((text, i) => text.toLowerCase().includes(words.toLowerCase()) ? [{document: of.documents[i], text}] : []);
  const list = make("div", {className: "hits"}, make("p", {className: "soft", textContent: `${hits.length ? "" : "Nothing found. "}${note}`}), ...hits.slice(0, MOST_HITS).map(hit => make("button", {type: "button", dir: "auto", textContent: `${hit.document}: ${hit.text}`, onclick: () => showDocument(hit.document)})));
  at("found").replaceChildren(list);
}

function listenToTexts() {
  at("seek").addEventListener("submit", seek);
  if (at("texts")) getTexts();
  else new IntersectionObserver((entries, observer) => { if (entries.some(({isIntersecting}) => isIntersecting)) { observer.disconnect(); run.hasShownTexts = true; getTexts(); } }).observe(at("where"));
}
