// The recording, and the run's state at any moment. Nothing here touches the page.

const at = id => document.getElementById(id);
const ARRAYS = {f4: Float32Array, i4: Int32Array, u4: Uint32Array, i2: Int16Array, u2: Uint16Array, u1: Uint8Array};
const FAULTS = new Set(["error", "crash", "lost", "postponed", "died", "silent", "rollback"]);
const PALE = new Set(["given back", "saved", "superseded"]);
const MODULAR = "modular";

function unpack({type, shape, data}) {
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(data); // This is faster, if the browser has it.
  else {
    const raw = atob(data);
    bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  }
  return Object.assign(new ARRAYS[type](bytes.buffer), {shape});
}

const run = {
  document: null, // the recording, with all later differences
  arms: {}, // name -> columns
  events: {}, // name -> column, the first event first
  count: 0, // number of events
  time: 0, // the moment that is shown, in seconds
  end: 0, // the newest moment
  isLive: false, // a server sends news
  isNewest: true, // the newest moment is shown, and the next will be
  texts: undefined, // undefined = not asked for, null = there are none
  textsVersion: undefined, // version of the last request
  hasShownTexts: false,
  areTextsAway: false, // the last request failed
};

function load(document) {
  run.document = document;
  run.arms = {};
  for (const [name, arm] of Object.entries(document.arms)) {
    run.arms[name] = {...arm};
    for (const [key, value] of Object.entries(arm)) if (value?.data !== undefined) run.arms[name][key] = unpack(value);
  }
  run.events = {};
  for (const [name, column] of Object.entries(document.events)) run.events[name] = column.type === "f4" ? unpack(column) : Int32Array.from(unpack(column));
  run.count = run.events.ended.length;
  run.isCounted = false; // The grid is shown first.
  findEnd();
}

function findEnd() { run.end = Math.max(run.document.now, run.count ? run.events.ended[run.count - 1] : 0, 1e-3); }

function extend(difference) {
  const document = run.document;
  for (const key of ["now", "origin", "claims", "status", "alarms", "curves", "report", "losses", "completions"])
    if (difference[key] !== undefined) document[key] = difference[key];
  for (const [kind, names] of Object.entries(difference.names)) document.names[kind].push(...names);
  for (const [name, column] of Object.entries(difference.events)) {
    const added = unpack(column), old = run.events[name].subarray(0, run.count);
    if (run.count + added.length > run.events[name].length) {
      const larger = new old.constructor(2 * (run.count + added.length)); // Doubling makes copies rare.
      larger.set(old);
      run.events[name] = larger;
    }
    run.events[name].set(added, run.count);
  }
  run.count += unpack(difference.events.ended).length;
  const modular = run.arms[MODULAR], number = value => value === null ? NaN : value;
  for (const [phase, module, time, norm, cosine, norms] of difference.steps) {
    const place = phase * modular.modules.length + module, width = modular.path_norms.shape[2];
    for (const [column, value] of [["step_times", time], ["norms", norm], ["cosines", cosine]])
      modular[column][place] = number(value);
    norms.slice(0, width).forEach((value, i) => modular.path_norms[place * width + i] = number(value));
  }
  for (const [name, cells] of Object.entries(difference.phases)) {
    const arm = run.arms[name];
    for (const [phase, path, ...values] of cells)
      ["train_times", "losses", "seconds", "tokens", "bytes_down", "bytes_up", "inner_norms", "largest_norms"].forEach((column, i) => arm[column][phase * arm.num_paths + path] = number(values[i]));
  }
  arrived();
}

function arrived() { // Computes everything that does not depend on the moment.
  const {events, document: {names}} = run;
  run.isCounted = true;
  findEnd();
  run.isFault = names.outcomes.map(name => FAULTS.has(name));
  run.isPale = names.outcomes.map(name => PALE.has(name));
  run.version = (run.version ?? 0) + 1; // version of drawings from the events alone
  run.byWorker = names.workers.map(() => []);
  run.faults = [];
  run.evaluated = {}; // "arm phase" -> time
  run.routed = []; // [time, phase]
  const done = names.outcomes.indexOf("done"), rollback = names.outcomes.indexOf("rollback"), evaluate = names.kinds.indexOf("evaluate"), route = names.kinds.indexOf("route");
  const times = new Map(); // task -> number of times it was done
  run.again = new Set();
  for (let i = 0; i < run.count; i++) {
    run.byWorker[events.workers[i]].push(i);
    if (run.isFault[events.outcomes[i]]) run.faults.push(i);
    if (events.outcomes[i] === rollback) wentBack(names.reasons[events.reasons[i]]);
    if (events.outcomes[i] !== done) continue;
    if (events.kinds[i] === evaluate) run.evaluated[`${names.arms[events.arms[i]]} ${events.phase[i]}`] ??= events.ended[i];
    if (events.kinds[i] === route) run.routed.push([events.ended[i], events.phase[i]]);
    const task = ((events.kinds[i] * 97 + events.arms[i]) * 100003 + events.subjects[i]) * 100003 + events.phase[i];
    if (times.has(task)) run.again.add(i);
    times.set(task, 1);
  }
}

function wentBack(reason) { // Voids routings and evaluations after a phase.
  const [arm, phase] = reason.split(" to phase ");
  run.routed = run.routed.filter(([, of]) => of <= Number(phase));
  for (let later = Number(phase) + 1; later <= run.arms[arm]?.phases; later++) delete run.evaluated[`${arm} ${later}`];
}

function reached(times, width, column, time) { // number of finished phases in a column, whose times ascend
  let low = 0, high = times.length / width;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle * width + column] <= time) low = middle + 1; else high = middle;
  }
  return low;
}

function moduleAt(module, time) { // phase, and the outer step that led there
  const arm = run.arms[MODULAR], width = arm.modules.length, phase = reached(arm.step_times, width, module, time);
  const place = (phase - 1) * width + module;
  return {phase, norm: phase ? arm.norms[place] : NaN, cosine: phase ? arm.cosines[place] : NaN};
}

function pathAt(name, path, time) { // phases gone through, and the loss at the end of the last
  const arm = run.arms[name], phases = reached(arm.train_times, arm.num_paths, path, time);
  let loss = NaN; // A skipped path has no loss in that phase.
  for (let phase = phases - 1; phase >= 0 && !Number.isFinite(loss); phase--) loss = arm.losses[phase * arm.num_paths + path];
  return {phases, loss};
}

function tokensOf(path, phases) {
  const arm = run.arms[MODULAR];
  let tokens = 0;
  for (let phase = 0; phase < phases; phase++) tokens += arm.tokens[phase * arm.num_paths + path];
  return tokens;
}

function totalsAt(time) { // sums over all arms: tokens, bytes down and up, seconds of training
  const total = {tokens: 0, down: 0, up: 0, seconds: 0};
  for (const arm of Object.values(run.arms))
    for (let i = 0; i < arm.train_times.length; i++) if (arm.train_times[i] <= time) {
      total.tokens += arm.tokens[i]; total.down += arm.bytes_down[i]; total.up += arm.bytes_up[i]; total.seconds += arm.seconds[i];
    }
  return total;
}

function taskName(kind, arm, subject, phase) {
  const what = ["train", "label", "check", "score"].includes(kind) ? "path " : kind === "outer" ? "module " : "";
  return [kind, arm, arm && subject !== "" ? what + subject : "", arm || phase > 0 ? `phase ${phase}` : ""].filter(Boolean).join(" ");
}

function eventAt(i) {
  const {events, document: {names}} = run;
  const kind = names.kinds[events.kinds[i]];
  return {
    kind, arm: names.arms[events.arms[i]], subject: names.subjects[events.subjects[i]], phase: events.phase[i], attempt: events.attempt[i],
    worker: names.workers[events.workers[i]], outcome: names.outcomes[events.outcomes[i]], reason: names.reasons[events.reasons[i]],
    begun: events.begun[i], ended: events.ended[i],
    task: kind ? taskName(kind, names.arms[events.arms[i]], names.subjects[events.subjects[i]], events.phase[i]) : "",
  };
}

function* busyAt(time) { // tasks in progress: [kind, arm, subject, worker]
  const {events, document: {names, claims}} = run;
  for (let i = 0; i < run.count; i++)
    if (events.begun[i] <= time && events.ended[i] > time && events.kinds[i] >= 0 && names.kinds[events.kinds[i]])
      yield [names.kinds[events.kinds[i]], names.arms[events.arms[i]], names.subjects[events.subjects[i]], names.workers[events.workers[i]]];
  for (const [kind, arm, subject, , , worker, begun] of claims) if ((begun ?? 0) <= time) yield [kind, arm, subject, worker];
}

function routingAt(time) { // the phase of the newest routing, or null
  let phase = null;
  for (const [when, of] of run.routed ?? []) if (when <= time) phase = of;
  if (phase === null && !run.routed?.length && run.document.status.stages.route) phase = 0; // The routing is older than the history.
  return phase;
}
