// Starts the page, and draws everything.

function begin(document) {
  if (document.sweep) return showSweep(document);
  const isFirst = !run.document;
  load(document);
  at("content").hidden = at("clock").hidden = false;
  at("name").textContent = document.name;
  window.document.title = `${document.name} · dipaco dashboard`;
  run.time = run.isNewest ? run.end : Math.min(run.time, run.end);
  if (fall.from >= run.end) Object.assign(fall, {from: 0, until: null});
  drawHead();
  buildGrid();
  drawGrid();
  if (isFirst) for (const listen of [listenToWorkers, listenToCurves, listenToTexts, listenToClock]) listen();
  requestAnimationFrame(() => setTimeout(() => draw(true))); // Draws the rest once the grid is on the screen.
}

function draw(isNew = false) {
  if (!run.isCounted) { arrived(); isNew = true; }
  if (isNew) { drawHead(); drawTicks(); }
  drawClock();
  drawGrid();
  drawWorkers();
  drawCurves();
  drawTexts();
}

function drawHead() {
  const {status, alarms, seed} = run.document, progress = status.progress;
  const share = status.finished ? 100 : Math.min(99, Math.floor(100 * progress.steps / Math.max(1, progress.total_steps)));
  at("headline").textContent = `seed ${seed} · ${share} % of ${progress.total_steps.toLocaleString("en")} steps · ${status.why.sentence}`;
  fill(at("alarms"), ...(alarms.length ? alarms.map(({level, sentence}) => make("div", {className: `alarm ${level}`, role: level === "error" ? "alert" : "status"}, make("b", {textContent: level === "error" ? "Error" : "Look"}), make("span", {textContent: sentence}))) : [make("div", {className: "alarm good"}, make("b", {textContent: "✓"}), "Nothing needs a person.")]));
  at("foot").textContent = `Results: ${status.bits}. ${run.isLive ? "This page follows the run." : `As it was ${clockTime(run.end)}; this file is all there is.`} Times are those of the run's ${run.document.origin === null ? "machine" : "ledger"}.`;
}

let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { if (run.document) { placeLines(); draw(true); } }, 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (run.document) draw(true); });
at("key-label").addEventListener("submit", event => {
  event.preventDefault();
  at("key-label").hidden = true;
  at("problem").textContent = "";
  if (!run.document) follow();
});

const held = at("recording");
if (held) {
  const document = JSON.parse(held.textContent);
  if (document.problem) { at("headline").textContent = ""; at("problem").textContent = document.problem; } else begin(document);
} else {
  run.isLive = true;
  follow();
}
