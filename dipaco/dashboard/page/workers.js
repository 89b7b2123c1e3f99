// Workers: a waterfall of who did which task when, what went wrong, and what it cost.

const KINDS = ["train", "outer", "pretrain", "route", "score", "evaluate", "prepare", "report"];
const kindColour = kind => kind === "train" ? colour("--c0") : kind === "outer" ? colour("--c1") : series(2 + Math.max(0, KINDS.indexOf(kind) - 2));
const LEFT = 118, TOP = 20;
const fall = {from: 0, until: null, rows: [], rowHeight: 18, height: 0}; // until null: the newest moment
const MARKS = {died: "✕", silent: "◌", left: "▸", joined: "◂", lost: "✕", error: "!", crash: "✕", postponed: "↺"};

function span() {
  const until = fall.until ?? run.end;
  return [fall.until === null ? fall.from : fall.from, Math.max(until, fall.from + 1e-3)];
}

function drawWorkers() {
  const {events, document: {names, status}} = run, [from, until] = span();
  fall.rows = names.workers.map((name, worker) => ({name, worker})).filter(({name}) => name !== "");
  for (const [, , , , , worker] of run.document.claims) if (!names.workers.includes(worker) && !fall.rows.some(({name}) => name === worker)) fall.rows.push({name: worker, worker: -1});
  const many = fall.rows.length;
  fall.rowHeight = many > 120 ? 4 : many > 40 ? 8 : 18;
  const left = at("waterfall").clientWidth < 560 ? 74 : LEFT;
  fall.left = left;
  const {context, width, height} = canvasIn(at("waterfall"), TOP + Math.max(1, many) * fall.rowHeight + 8);
  const x = time => left + (time - from) / (until - from) * (width - left - 6), gap = fall.rowHeight > 6 ? 3 : 1;
  context.fillStyle = colour("--soft");
  for (const tick of timeTicks(from, until, Math.max(2, width / 130))) {
    context.globalAlpha = .25; context.fillRect(x(tick), TOP - 4, 1, height); context.globalAlpha = 1;
    context.fillText(duration(tick), x(tick) + 3, 12);
  }
  const colours = names.kinds.map(kindColour), bad = colour("--bad"), soft = colour("--soft"), marks = [];
  fall.rows.forEach(({name, worker}, row) => {
    const y = TOP + row * fall.rowHeight;
    if (fall.rowHeight > 10) {
      context.fillStyle = soft;
      context.fillText(fitted(context, name, left - 8), 0, y + 13);
    }
    let last = -1;
    for (const i of worker < 0 ? [] : run.byWorker[worker]) {
      const begun = events.begun[i], ended = events.ended[i];
      if (ended < from || begun > until) continue;
      const outcome = names.outcomes[events.outcomes[i]], start = Math.max(left, x(begun)), stop = Math.min(width - 4, x(ended));
      const hasTask = names.kinds[events.kinds[i]] !== "";
      const isBad = FAULTS.has(outcome);
      if (!isBad && hasTask && stop - last < .4) continue; // thinner than a pixel: it is there already
      context.globalAlpha = begun > run.time ? .16 : UNFINISHED.has(outcome) && !isBad ? .45 : 1;
      if (hasTask) {
        context.fillStyle = isBad ? bad : colours[events.kinds[i]];
        context.fillRect(start, y + 1, Math.max(1, stop - start - .5), fall.rowHeight - gap);
        last = stop;
        if (run.again.has(i) && fall.rowHeight > 10) marks.push([start + 3, y, "↻", colour("--sheet")]);
      }
      if (MARKS[outcome] && (isBad || !hasTask)) marks.push([stop, y, MARKS[outcome], isBad ? bad : soft, context.globalAlpha]);
    }
  });
  for (const [kind, , , , , worker, begun] of run.document.claims) {
    const row = fall.rows.findIndex(({name}) => name === worker);
    if (row < 0 || (begun ?? 0) > until) continue;
    context.globalAlpha = run.isNewest ? .7 : .16;
    context.fillStyle = kindColour(kind);
    const start = Math.max(left, x(begun ?? from));
    context.fillRect(start, TOP + row * fall.rowHeight + 1, Math.max(2, x(run.end) - start), fall.rowHeight - gap);
  }
  context.textAlign = "center";
  for (const [place, y, mark, ink, alpha] of marks) {
    context.globalAlpha = alpha ?? 1;
    context.fillStyle = ink;
    if (fall.rowHeight > 10) context.fillText(mark, Math.min(width - 6, Math.max(left + 4, place)), y + 13);
    else context.fillRect(Math.min(width - 4, place - 1), y, 3, fall.rowHeight);
  }
  context.textAlign = "left";
  context.globalAlpha = 1;
  if (run.time >= from && run.time <= until) { context.fillStyle = colour("--hot"); context.fillRect(x(run.time) - .75, TOP - 6, 1.5, height); }
  const used = [...new Set([...names.kinds, ...run.document.claims.map(([kind]) => kind)])].filter(Boolean);
  at("kinds").replaceChildren(...used.map(kind => make("span", {}, make("i", {style: `background:${kindColour(kind)}`}), kind)),
    make("span", {}, make("i", {style: `background:${bad}`}), "went wrong"), make("span", {textContent: "pale: given back, saved or superseded · ↻ done again · ✕ died or lost · ◌ silent · ◂ came · ▸ left"}));
  drawFigures(status);
  drawFaults();
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
  for (const i of run.faults) if (run.events.ended[i] <= run.time) { count++; wasted += run.events.ended[i] - run.events.begun[i]; }
  figures.push(figure(String(count), "things went wrong"), figure(duration(wasted), "lost by them"));
  at("work-figures").replaceChildren(...figures);
  at("workers-when").textContent = status.why.state === "working" && run.isNewest ? status.why.sentence : "";
  const table = at("worker-table"), head = ["worker", "state", "machine", "doing", "participation", "tasks", "lost", "last words"];
  table.replaceChildren(make("tr", {}, ...head.map(name => make("th", {textContent: name, scope: "col"}))), ...Object.entries(status.workers).slice(0, 500).map(([name, is]) => make("tr", {}, ...[
    name, is.state, `${is.host}, ${is.machine}`, is.task ?? "", percent(is.participation), is.committed_tasks, is.lost_tasks, is.last_words].map(value => make("td", {className: "long", textContent: value})))));
  drawVolunteers(status.swarms ?? []);
}

function drawFaults() {
  const shown = run.faults.filter(i => run.events.ended[i] <= run.time).reverse();
  at("faults-of").hidden = !shown.length;
  at("faults-title").textContent = `What went wrong: ${shown.length.toLocaleString("en")}`;
  at("faults-of").open ||= shown.length > 0 && at("faults-of").dataset.was === undefined;
  if (shown.length) at("faults-of").dataset.was = "open";
  const head = ["when", "worker", "what", "task", "cost", "reason"];
  at("faults").replaceChildren(make("tr", {}, ...head.map(name => make("th", {textContent: name, scope: "col"}))), ...shown.slice(0, 400).map(i => {
    const event = eventAt(i), cost = event.ended - event.begun;
    return make("tr", {data: {outcome: event.outcome}}, make("td", {}, make("button", {type: "button", textContent: duration(event.ended), title: clockTime(event.ended), onclick: () => goTo(event.ended, false)})),
      ...[event.worker, event.outcome, event.task ? `${event.task}, attempt ${event.attempt}` : "", cost > 0 ? duration(cost) : "", event.reason].map(text => make("td", {className: "long", textContent: text})));
  }));
}

function drawVolunteers(swarms) {
  at("volunteers").replaceChildren(...swarms.flatMap(swarm => {
    const peers = Object.entries(swarm.peers ?? {}), most = Math.max(...peers.map(([, peer]) => peer.samples), 1);
    const list = make("ul", {className: "bars"});
    for (const [name, peer] of peers.sort((a, b) => b[1].samples - a[1].samples)) list.append(make("li", {}, make("span", {textContent: name, title: peer.kind}), make("i", {style: `width:${100 * peer.samples / most}%`}), make("span", {textContent: peer.samples.toLocaleString("en")})));
    return [make("h3", {textContent: `Volunteers of ${swarm.arm} path ${swarm.path}: samples each, step ${swarm.step}`}), list];
  }));
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
