// Workers: a waterfall of tasks by worker and time, faults, and cost.

// One colour for each kind of task. Red (5) is kept for faults.
const INKS = {train: 0, outer: 1, pretrain: 2, route: 3, score: 4, evaluate: 6, prepare: 7, label: 8, check: 9, sample: 10, reroute: 11, report: 12};
const kindColour = kind => colour(`--c${INKS[kind]}`);
const LEFT = 118, TOP = 20;
const fall = {from: 0, until: null, rows: [], rowHeight: 18, left: LEFT}; // `until` null = the newest moment
const MARKS = {died: "✕", silent: "◌", left: "▸", joined: "◂", lost: "✕", error: "!", crash: "✕", postponed: "↺"};

function span() { // the time that is shown
  return [fall.from, Math.max(fall.until ?? run.end, fall.from + 1e-3)];
}

function drawWorkers() {
  const {names, claims, status} = run.document, [from, until] = span(), holder = at("waterfall");
  fall.rows = names.workers.map((name, worker) => ({name, worker})).filter(({name}) => name !== "");
  for (const [, , , , , worker] of claims) if (!fall.rows.some(({name}) => name === worker)) fall.rows.push({name: worker, worker: -1});
  const many = Math.max(1, fall.rows.length);
  fall.rowHeight = many > 120 ? 4 : many > 40 ? 8 : 18;
  fall.left = holder.clientWidth < 560 ? 74 : LEFT;
  const {canvas, context, width, height} = canvasIn(holder, TOP + many * fall.rowHeight + 8);
  fall.x = time => fall.left + (time - from) / (until - from) * (width - fall.left - 6);
  const key = [run.version, from, until, canvas.width, canvas.height, colour("--sheet")].join();
  if (fall.key !== key) { // The picture shows all events, so that no moment changes it.
    drawBars(context, width, height, from, until);
    fall.picture ??= make("canvas");
    Object.assign(fall.picture, {width: canvas.width, height: canvas.height});
    fall.picture.getContext("2d").drawImage(canvas, 0, 0);
    fall.key = key;
  } else context.drawImage(fall.picture, 0, 0, width, height);
  const now = Math.max(fall.left, Math.min(width, fall.x(run.time)));
  context.globalAlpha = .8;
  context.fillStyle = colour("--sheet");
  if (!run.isNewest) context.fillRect(now, TOP, width - now, height);
  context.globalAlpha = .75;
  for (const [kind, , , , , worker, begun] of claims) {
    const row = fall.rows.findIndex(({name}) => name === worker), start = Math.max(fall.left, fall.x(begun ?? from));
    if (row < 0 || (begun ?? 0) > Math.min(until, run.time)) continue;
    context.fillStyle = kindColour(kind);
    context.fillRect(start, TOP + row * fall.rowHeight + 1, Math.max(2, Math.min(now, fall.x(run.end)) - start), fall.rowHeight - (fall.rowHeight > 6 ? 3 : 1));
  }
  context.globalAlpha = 1;
  context.fillStyle = colour("--hot");
  if (run.time >= from && run.time <= until) context.fillRect(now - .75, TOP - 6, 1.5, height);
  const used = [...new Set([...names.kinds, ...claims.map(([kind]) => kind)])].filter(Boolean);
  fill(at("kinds"), ...used.map(kind => make("span", {}, make("i", {style: `background:${kindColour(kind)}`}), kind)),
    make("span", {}, make("i", {style: `background:${colour("--bad")}`}), "went wrong"), make("span", {textContent: "pale: given back, saved or superseded · ↻ done again · ✕ died or lost · ◌ silent · ◂ came · ▸ left"}));
  drawFigures(status);
  drawFaults();
}

function drawBars(context, width, height, from, until) {
  const {events, document: {names}} = run, {x, left, rowHeight} = fall, gap = rowHeight > 6 ? 3 : 1, soft = colour("--soft"), bad = colour("--bad");
  context.fillStyle = soft;
  for (const tick of timeTicks(from, until, Math.max(2, width / 130))) {
    context.globalAlpha = .25; context.fillRect(x(tick), TOP - 4, 1, height); context.globalAlpha = 1;
    context.fillText(tickTime(tick), x(tick) + 3, 12);
  }
  const colours = names.kinds.map(kindColour), isTask = names.kinds.map(Boolean), signs = names.outcomes.map(name => MARKS[name]), marks = [];
  fall.rows.forEach(({name, worker}, row) => {
    const y = TOP + row * rowHeight;
    let last = -1;
    context.fillStyle = soft;
    if (rowHeight > 10) context.fillText(fitted(context, name, left - 8), 0, y + 13);
    for (const i of worker < 0 ? [] : run.byWorker[worker]) {
      const begun = events.begun[i], ended = events.ended[i], outcome = events.outcomes[i], isBad = run.isFault[outcome], hasTask = isTask[events.kinds[i]];
      if (ended < from || begun > until) continue;
      const start = Math.max(left, x(begun)), stop = Math.min(width - 4, x(ended));
      if (!isBad && hasTask && stop - last < .4) continue; // The bar is thinner than a pixel, and drawn already.
      context.globalAlpha = run.isPale[outcome] ? .45 : 1;
      if (hasTask) {
        context.fillStyle = isBad ? bad : colours[events.kinds[i]];
        context.fillRect(start, y + 1, Math.max(1, stop - start - .5), rowHeight - gap);
        last = stop;
        if (run.again.has(i) && rowHeight > 10) marks.push([start + 6, y, "↻", colour("--sheet")]);
      }
      if (signs[outcome] && (isBad || !hasTask)) marks.push([stop, y, signs[outcome], isBad ? bad : soft]);
    }
  });
  context.textAlign = "center";
  context.globalAlpha = 1;
  for (const [place, y, mark, ink] of marks) {
    context.fillStyle = ink;
    if (rowHeight > 10) context.fillText(mark, Math.min(width - 6, Math.max(left + 4, place)), y + 13);
    else context.fillRect(Math.min(width - 4, place - 1), y, 3, rowHeight);
  }
  context.textAlign = "left";
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 4 && context.measureText("…" + text.slice(-end)).width > width) end--;
  return "…" + text.slice(-end);
}

function drawFigures(status) {
  const total = totalsAt(run.time), busy = [...busyAt(run.time)], workers = Object.values(status.workers);
  const figures = [
    figure(run.isNewest ? String(workers.filter(({state}) => state === "here").length) : String(new Set(busy.map(([, , , worker]) => worker)).size), run.isNewest ? "workers here" : "workers at work"),
    figure(String(busy.length), "tasks being done"),
    figure(short(run.isNewest ? status.goodput.tokens : total.tokens), "tokens trained"),
  ];
  if (run.isNewest) figures.push(figure(percent(status.goodput.participation), "participation"), figure(short(status.goodput.tokens_per_worker_second), "tokens per worker second"));
  let wasted = 0, count = 0;
  for (const i of run.faults) if (run.isNewest || run.events.ended[i] <= run.time) { count++; wasted += run.events.ended[i] - run.events.begun[i]; }
  figures.push(figure(String(count), "things went wrong"), figure(duration(wasted), "lost by them"));
  fill(at("work-figures"), ...figures);
  at("workers-when").textContent = status.why.state === "working" && run.isNewest ? status.why.sentence : "";
  const table = at("worker-table"), head = ["worker", "state", "machine", "doing", "participation", "tasks", "lost", "last words"];
  fill(table, make("tr", {}, ...head.map(name => make("th", {textContent: name, scope: "col"}))), ...Object.entries(status.workers).slice(0, 500).map(([name, is]) => make("tr", {}, ...[
    name, is.state, `${is.host}, ${is.machine}`, is.task ?? "", percent(is.participation), is.committed_tasks, is.lost_tasks, is.last_words].map(value => make("td", {className: "long", textContent: value})))));
  drawVolunteers(status.volunteers ?? []);
}

function drawFaults() {
  const shown = run.faults.filter(i => run.isNewest || run.events.ended[i] <= run.time).reverse(); // Clocks may be ahead.
  at("faults-of").hidden = !shown.length;
  at("faults-title").textContent = `What went wrong: ${shown.length.toLocaleString("en")}`;
  at("faults-of").open ||= shown.length > 0 && at("faults-of").dataset.was === undefined;
  if (shown.length) at("faults-of").dataset.was = "open";
  const head = ["when", "worker", "what", "task", "cost", "reason"];
  fill(at("faults"), make("tr", {}, ...head.map(name => make("th", {textContent: name, scope: "col"}))), ...shown.slice(0, 400).map(i => {
    const event = eventAt(i), cost = event.ended - event.begun;
    return make("tr", {data: {outcome: event.outcome, key: i}}, make("td", {}, make("button", {type: "button", textContent: duration(event.ended), title: clockTime(event.ended), onclick: () => goTo(event.ended, false)})),
      ...[event.worker, event.outcome, event.task ? `${event.task}, attempt ${event.attempt}` : "", event.task ? duration(Math.max(cost, 0)) : "", event.reason].map(text => make("td", {className: "long", textContent: text})));
  }));
}

function drawVolunteers(volunteers) {
  const most = Math.max(...volunteers.map(one => one.samples), 1), list = make("ol", {className: "bars"});
  for (const one of volunteers.slice(0, 500)) list.append(make("li", {data: {volunteer: one.name}}, make("span", {textContent: `${one.place}. ${one.name}`, title: `${percent(one.share)}, ${one.steps.toLocaleString("en")} steps of path ${one.paths.join(", ")}${one.is_here ? ", here" : ""}`}), make("i", {style: `width:${100 * one.samples / most}%`}), make("span", {textContent: `${one.samples.toLocaleString("en")}`})));
  fill(at("volunteers"), ...(volunteers.length ? [make("h3", {textContent: "Volunteers, by samples in all sessions"}), list] : []));
}

function workersTip(event) {
  const box = at("waterfall").getBoundingClientRect(), [from, until] = span();
  const row = Math.floor((event.clientY - box.y - TOP) / fall.rowHeight), time = from + (event.clientX - box.x - fall.left) / (box.width - fall.left - 6) * (until - from);
  const of = fall.rows[row];
  if (!of || time < from) return tip(event, "");
  const near = 4 * (until - from) / box.width;
  let best = null, distance = near;
  for (const i of of.worker < 0 ? [] : run.byWorker[of.worker]) {
    const away = Math.max(run.events.begun[i] - time, time - run.events.ended[i], 0);
    if (away < distance || away === distance && run.isFault[run.events.outcomes[i]]) { best = i; distance = away; }
  }
  if (best === null) {
    const claim = run.document.claims.find(([, , , , , worker, begun]) => worker === of.name && begun <= time);
    return tip(event, claim ? `${of.name}\n${taskName(...claim.slice(0, 4))}, attempt ${claim[4]}: being done` : of.name);
  }
  const is = eventAt(best);
  tip(event, [is.worker, is.task && `${is.task}, attempt ${is.attempt}`, `${is.outcome}${run.again.has(best) ? ", again" : ""}${is.reason ? `: ${is.reason.slice(0, 300)}` : ""}`, `${duration(is.begun)} to ${duration(is.ended)}, ${duration(is.ended - is.begun)}`, clockTime(is.ended)].filter(Boolean).join("\n"));
}

function zoom(factor, middle) {
  const [from, until] = span(), at = middle ?? (run.time >= from && run.time <= until ? run.time : (from + until) / 2);
  const width = Math.min(run.end, Math.max((until - from) * factor, run.end / 1e6, .01)), low = Math.max(0, Math.min(run.end - width, at - (at - from) / (until - from) * width));
  if (width >= run.end * .999) { fall.from = 0; fall.until = null; } else { fall.from = low; fall.until = low + width; }
  drawWorkers();
}

function pan(share) {
  const [from, until] = span(), width = until - from, low = Math.max(0, Math.min(run.end - width, from + share * width));
  fall.from = low; fall.until = low + width >= run.end ? null : low + width;
  drawWorkers();
}

function listenToWorkers() {
  at("zoom-in").onclick = () => zoom(.5);
  at("zoom-out").onclick = () => zoom(2);
  at("zoom-all").onclick = () => { fall.from = 0; fall.until = null; drawWorkers(); };
  const box = at("waterfall");
  box.addEventListener("mousemove", workersTip);
  box.addEventListener("mouseleave", event => tip(event, ""));
  box.addEventListener("click", event => {
    const frame = box.getBoundingClientRect(), [from, until] = span(), share = (event.clientX - frame.x - fall.left) / (frame.width - fall.left - 6);
    if (share >= 0) goTo(from + share * (until - from), false);
  });
  box.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const frame = box.getBoundingClientRect(), [from, until] = span();
    zoom(event.deltaY > 0 ? 1.25 : .8, from + (event.clientX - frame.x - fall.left) / (frame.width - fall.left - 6) * (until - from));
  }, {passive: false});
  box.addEventListener("keydown", event => {
    const act = {ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2), "+": () => zoom(.5), "-": () => zoom(2)}[event.key];
    if (act) { event.preventDefault(); act(); }
  });
}
