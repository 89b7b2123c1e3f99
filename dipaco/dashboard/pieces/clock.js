// The clock chooses the moment of the run that is shown.

const SPEEDS = [["10", "in 10 s"], ["30", "in 30 s"], ["120", "in 2 min"], ["1x", "as it was"]];
const clock = {playing: null};

function goTo(time, isNewest) {
  run.time = Math.max(0, Math.min(run.end, time));
  run.isNewest = isNewest ?? run.time >= run.end;
  draw();
}

function drawClock() {
  at("time").max = run.end;
  at("time").value = run.time;
  at("time").setAttribute("aria-valuetext", `${duration(run.time)} of ${duration(run.end)}`);
  at("moment").textContent = `${duration(run.time)} of ${duration(run.end)}${innerWidth > 760 ? ` · ${clockTime(run.time)}` : ""}`;
  at("now").setAttribute("aria-pressed", String(run.isNewest));
  at("now").textContent = run.isLive && !run.document.status.finished ? "now" : "end";
}

function drawTicks() { // the amount of work over time, faults in red
  const {context, width, height} = canvasIn(at("track"), 30), bins = Math.floor(width / 3), counts = new Float64Array(bins), bad = new Set();
  const bin = time => Math.min(bins - 1, Math.floor(time / run.end * bins)), done = run.document.names.outcomes.indexOf("done");
  for (let i = 0; i < run.count; i++) if (run.events.outcomes[i] === done) counts[bin(run.events.ended[i])]++;
  for (const i of run.faults) bad.add(bin(run.events.ended[i]));
  const most = Math.max(...counts, 1);
  counts.forEach((count, i) => {
    context.fillStyle = bad.has(i) ? colour("--bad") : colour("--line");
    const tall = bad.has(i) ? height - 6 : count ? 3 + (height - 12) * Math.sqrt(count / most) : 0;
    context.fillRect(i * 3, height - tall - 3, 2, tall);
  });
}

function play() {
  if (clock.playing) return stop();
  if (run.time >= run.end) run.time = 0;
  at("play").textContent = "❚❚";
  at("play").setAttribute("aria-label", "Pause");
  let before = performance.now();
  const step = now => {
    const speed = at("speed").value, factor = speed === "1x" ? 1 : run.end / Number(speed);
    run.time += factor * (now - before) / 1000;
    before = now;
    if (run.time >= run.end) { stop(); return goTo(run.end, true); }
    goTo(run.time, false);
    clock.playing = requestAnimationFrame(step);
  };
  clock.playing = requestAnimationFrame(step);
}

function stop() {
  cancelAnimationFrame(clock.playing);
  clock.playing = null;
  at("play").textContent = "▶";
  at("play").setAttribute("aria-label", "Play");
}

function listenToClock() {
  at("speed").append(...SPEEDS.map(([value, label]) => make("option", {value, textContent: label})));
  at("play").onclick = play;
  at("now").onclick = () => { stop(); goTo(run.end, true); };
  at("time").addEventListener("input", () => { stop(); goTo(Number(at("time").value), undefined); });
  addEventListener("keydown", event => {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " && !event.target.closest("button, summary")) { event.preventDefault(); play(); }
    if (event.key === "End") { stop(); goTo(run.end, true); }
    if (event.key === "Home") { stop(); goTo(0, false); }
  });
}
