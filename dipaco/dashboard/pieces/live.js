// News from the server. The page begins again if it has missed something.

const AGAIN_SECONDS = 3;

async function ask(url) {
  const headers = {}, key = at("key").value;
  if (key) headers.Authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}`; // A header is bytes.
  const answer = await fetch(url, {headers});
  if (answer.ok) return answer;
  if (answer.status === 401) at("key-label").hidden = false;
  const problem = await answer.json().catch(() => null);
  throw new Error(problem?.error?.message ?? `The server answered ${answer.status}.`);
}

async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const {done, value} = await reader.read();
    if (done) return;
    const pieces = (held + value).split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) {
      const lines = Object.fromEntries(piece.split("\n").filter(line => !line.startsWith(":")).map(line => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (lines.data) yield {kind: lines.event ?? "message", id: Number(lines.id), data: lines.data};
    }
  }
}

async function follow() { // Runs for ever.
  for (;;) {
    try {
      const document = await (await ask("recording")).json();
      if (document.problem) throw new Error(document.problem);
      at("problem").textContent = "";
      begin(document);
      if (!document.sweep) await followRun(document.number);
    } catch (error) {
      at("problem").textContent = run.document ? `${error.message} What is shown is of ${clockTime(run.end)}; trying again.` : error.message;
      if (!run.document) at("headline").textContent = "";
      if (!at("key-label").hidden && !run.document) return; // Submitting a key starts this again.
    }
    await new Promise(resolve => setTimeout(resolve, 1000 * AGAIN_SECONDS));
  }
}

async function followRun(number) { // A sweep is asked for again instead.
  renewTexts();
  for await (const {kind, id, data} of eventsOf(await ask(`changes?after=${number}`))) {
    if (kind === "stale") break;
    extend(JSON.parse(data));
    run.document.number = id;
    if (run.isNewest) run.time = run.end;
    draw(true);
    renewTexts();
  }
}
