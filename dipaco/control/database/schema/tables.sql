-- The tables of one run's ledger, for both databases: `contract.schema_script` names the few
-- differences. The rules are kept here, by constraints and triggers, not by the programs that write.
-- Receipts are three columns: the object's name in the store, its digest, its size in bytes.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE tasks (
  id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind      TEXT NOT NULL CHECK (kind IN
              ('prepare', 'pretrain', 'route', 'train', 'outer', 'label', 'check', 'score',
               'evaluate', 'sample', 'reroute', 'report')),
  arm       TEXT NOT NULL DEFAULT '',
  subject   TEXT NOT NULL DEFAULT '',
  phase     BIGINT NOT NULL DEFAULT 0,
  priority  BIGINT NOT NULL,
  state     TEXT NOT NULL DEFAULT 'ready' CHECK (state IN
              ('waiting', 'ready', 'claimed', 'delayed', 'failed', 'done', 'aside')),
  attempt   BIGINT NOT NULL DEFAULT 0,  -- fencing token: grows with every claim
  redo      BIGINT NOT NULL DEFAULT 0,  -- how often it was opened again
  UNIQUE (kind, arm, subject, phase)
);
-- Finished tasks are many and never claimed: they stay out of the index that claims read.
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';
CREATE INDEX tasks_delayed ON tasks (id) WHERE state = 'delayed';
CREATE INDEX tasks_failed ON tasks (id) WHERE state = 'failed';
CREATE INDEX tasks_unfinished ON tasks (priority, id) WHERE state NOT IN ('done', 'aside');

-- Done is done, unless what it made is known to be lost, and that is counted; or it is set aside.
CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks
WHEN old.state = 'done' AND new.state NOT IN ('done', 'aside') AND new.redo <= old.redo BEGIN
  SELECT raise(ABORT, 'a finished task cannot be opened again');
END;

-- One row for each claim that lives. A late task may have two: the first to commit counts.
CREATE TABLE claims (
  task_id        BIGINT NOT NULL REFERENCES tasks (id),
  attempt        BIGINT NOT NULL,  -- fencing token
  worker         TEXT NOT NULL,
  lease_seconds  DOUBLE PRECISION NOT NULL,  -- without a renewal, after which it may be ended
  renewals       BIGINT NOT NULL DEFAULT 0,  -- who ends leases looks whether this grows
  held_seconds   DOUBLE PRECISION NOT NULL DEFAULT 0,  -- at the last renewal, by the holder's clock
  begun          DOUBLE PRECISION NOT NULL,  -- seconds of the wall clock, to be shown
  PRIMARY KEY (task_id, attempt)
);
CREATE INDEX claims_by_worker ON claims (worker);

-- Attempts at a task that went wrong since it was last done, in a row.
CREATE TABLE failures (
  task_id       BIGINT PRIMARY KEY REFERENCES tasks (id),
  errors        BIGINT NOT NULL,  -- that ended with an error of the task
  crashes       BIGINT NOT NULL,  -- whose process was seen to die
  losses        BIGINT NOT NULL,  -- whose worker fell silent: it may have been preempted
  reason        TEXT NOT NULL,     -- of the last one
  worker        TEXT NOT NULL,     -- of the last one
  epoch         TEXT NOT NULL,     -- which clock: after a reboot it starts at zero
  since         DOUBLE PRECISION NOT NULL,  -- seconds of that clock
  wait_seconds  DOUBLE PRECISION NOT NULL   -- before a delayed task is tried again
);

-- How often a task that is not done has had an input made again, by the task that makes it.
CREATE TABLE recoveries (
  task_id   BIGINT NOT NULL REFERENCES tasks (id),
  cause_id  BIGINT NOT NULL REFERENCES tasks (id),
  times     BIGINT NOT NULL,
  PRIMARY KEY (task_id, cause_id)
);

CREATE TABLE workers (
  name               TEXT PRIMARY KEY,
  host               TEXT NOT NULL,
  pid                BIGINT NOT NULL,
  process_id               TEXT NOT NULL,  -- its process: two containers may share host and pid
  machine            TEXT NOT NULL,  -- what the bits of its results depend on
  version            TEXT NOT NULL,
  state              TEXT NOT NULL CHECK (state IN ('here', 'left', 'lost')),
  epoch              TEXT NOT NULL,
  joined             DOUBLE PRECISION NOT NULL,  -- the last time
  heartbeat          DOUBLE PRECISION NOT NULL,  -- its last heartbeat
  heartbeats         BIGINT NOT NULL DEFAULT 0,  -- raised by each heartbeat
  is_silent          BIGINT NOT NULL DEFAULT 0,  -- 1: another process saw none for a lease
  earlier_seconds    DOUBLE PRECISION NOT NULL DEFAULT 0,  -- of the times that it was here before
  committed_seconds  DOUBLE PRECISION NOT NULL DEFAULT 0,
  committed_tasks    BIGINT NOT NULL DEFAULT 0,
  lost_tasks         BIGINT NOT NULL DEFAULT 0,
  kinds              TEXT NOT NULL DEFAULT '',  -- of the tasks that it does, with commas
  last_words         TEXT NOT NULL DEFAULT ''   -- why it ended, if not in order
);
-- Workers that were preempted never leave, and are silent for ever: every heartbeat of any worker
-- reads the others only.
CREATE INDEX workers_heard ON workers (name) WHERE state = 'here' AND is_silent = 0;

-- Modules at the start of a phase.
CREATE TABLE modules (
  arm            TEXT NOT NULL,
  module         TEXT NOT NULL,
  phase          BIGINT NOT NULL,
  name           TEXT NOT NULL,
  digest         TEXT NOT NULL,
  num_bytes      BIGINT NOT NULL,
  state_name     TEXT,  -- outer state; NULL: has not stepped
  state_digest   TEXT,
  state_bytes    BIGINT,
  gradient_norm  DOUBLE PRECISION,
  gradient_stats TEXT,  -- JSON: [{path: norm}, cosine, lag cosine]; NULL: no path moved it
  PRIMARY KEY (arm, phase, module)
);
CREATE INDEX modules_by_module ON modules (arm, module, phase);
CREATE INDEX modules_by_name ON modules (name);
CREATE INDEX modules_by_state ON modules (state_name);

CREATE TABLE contributions (
  arm          TEXT NOT NULL,
  module       TEXT NOT NULL,
  phase        BIGINT NOT NULL,
  path         BIGINT NOT NULL,
  base_digest  TEXT NOT NULL,
  name         TEXT NOT NULL,
  digest       TEXT NOT NULL,
  num_bytes    BIGINT NOT NULL,
  PRIMARY KEY (arm, module, phase, path)  -- one contribution per path, module and phase
);

-- Modules that have their quorum (`outer.quorum`) and wait for the rest, until the grace is over.
CREATE TABLE quorums (
  arm     TEXT NOT NULL,
  module  TEXT NOT NULL,
  phase   BIGINT NOT NULL,
  epoch   TEXT NOT NULL,  -- which clock: after a reboot it starts at zero
  until   DOUBLE PRECISION NOT NULL,  -- seconds of that clock
  PRIMARY KEY (arm, module, phase)
);

-- Which contributions an outer step takes: decided once, before the step begins, so that it takes
-- the same when it is done again.
CREATE TABLE taken (
  arm     TEXT NOT NULL,
  module  TEXT NOT NULL,
  phase   BIGINT NOT NULL,  -- of the contribution
  path    BIGINT NOT NULL,
  step    BIGINT NOT NULL,  -- phase of the outer step; above `phase`: the contribution was late
  PRIMARY KEY (arm, module, phase, path)  -- a contribution counts once
);
CREATE INDEX taken_by_step ON taken (arm, module, step);
CREATE INDEX taken_late ON taken (arm, step) WHERE step > phase;

-- Phases that paths went through.
CREATE TABLE trained (
  arm         TEXT NOT NULL,
  path        BIGINT NOT NULL,
  phase       BIGINT NOT NULL,
  name        TEXT NOT NULL,  -- snapshot
  digest      TEXT NOT NULL,
  num_bytes   BIGINT NOT NULL,
  step        BIGINT NOT NULL,
  batches     TEXT NOT NULL,
  losses      TEXT NOT NULL,  -- JSON array
  tokens      BIGINT NOT NULL,
  seconds     DOUBLE PRECISION NOT NULL,
  bytes_down  BIGINT NOT NULL,
  bytes_up    BIGINT NOT NULL,
  machine     TEXT NOT NULL,
  position    BIGINT NOT NULL DEFAULT 0,  -- in the data of `batches`
  PRIMARY KEY (arm, path, phase)
);
CREATE INDEX trained_by_phase ON trained (arm, phase, path);

-- A path inside a phase, saved by a worker that had to stop. Deleted when the phase is recorded.
CREATE TABLE partial_snapshots (
  arm        TEXT NOT NULL,
  path       BIGINT NOT NULL,
  phase      BIGINT NOT NULL,
  name       TEXT NOT NULL,  -- snapshot of parameters and inner state
  digest     TEXT NOT NULL,
  num_bytes  BIGINT NOT NULL,
  step       BIGINT NOT NULL,
  batches    TEXT NOT NULL,
  losses     TEXT NOT NULL,  -- JSON array, of this phase so far
  seconds    DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, path, phase)
);

CREATE TABLE stages (
  stage      TEXT NOT NULL,
  artifacts  TEXT NOT NULL,  -- JSON: name -> [object, digest, bytes]
  summary    TEXT NOT NULL,  -- JSON
  seconds    DOUBLE PRECISION NOT NULL,
  phase      BIGINT NOT NULL DEFAULT 0,  -- of an alternation; every version stays
  PRIMARY KEY (stage, phase)
);

-- Log-likelihoods of the router's documents.
CREATE TABLE labels (
  arm        TEXT NOT NULL,
  path       BIGINT NOT NULL,
  phase      BIGINT NOT NULL,
  name       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  num_bytes  BIGINT NOT NULL,
  seconds    DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase, path)
);

-- How well a path predicts what its shard holds out.
CREATE TABLE checks (
  arm         TEXT NOT NULL,
  path        BIGINT NOT NULL,
  phase       BIGINT NOT NULL,
  loss        DOUBLE PRECISION NOT NULL,
  best_phase  BIGINT NOT NULL,
  seconds     DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase, path)
);

-- Log-likelihoods of the documents of evaluation.
CREATE TABLE scores (
  arm        TEXT NOT NULL,
  path       BIGINT NOT NULL,
  phase      BIGINT NOT NULL,
  name       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  num_bytes  BIGINT NOT NULL,
  seconds    DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase, path)
);

CREATE TABLE releases (
  arm     TEXT NOT NULL,
  phase   BIGINT NOT NULL,
  digest  TEXT NOT NULL,
  body    TEXT NOT NULL,  -- JSON: see release.py
  PRIMARY KEY (arm, phase)
);
CREATE TRIGGER releases_are_immutable BEFORE UPDATE ON releases BEGIN
  SELECT raise(ABORT, 'a release is never changed');
END;

CREATE TABLE evaluations (
  arm                   TEXT NOT NULL,
  phase                 BIGINT NOT NULL,
  perplexity            DOUBLE PRECISION NOT NULL,
  best_path_perplexity  DOUBLE PRECISION,
  other_rows            TEXT NOT NULL,  -- JSON: suffix of the row -> perplexity
  documents             BIGINT NOT NULL,
  tokens                BIGINT NOT NULL,
  seconds               DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase)
);

-- Prompts that a release continued.
CREATE TABLE samples (
  arm         TEXT NOT NULL,
  phase       BIGINT NOT NULL,
  number      BIGINT NOT NULL,  -- of the prompt, the same one in every release
  domain      TEXT NOT NULL,
  document    BIGINT NOT NULL,  -- whose first tokens are the prompt
  path        BIGINT NOT NULL,
  prompt      TEXT NOT NULL,  -- JSON: a string, of any characters
  text        TEXT NOT NULL,  -- the same, without the prompt
  num_tokens  BIGINT NOT NULL,  -- of the text
  has_ended   BIGINT NOT NULL,  -- 1: by itself; 0: it was cut there
  PRIMARY KEY (arm, phase, number)
);

CREATE TABLE refusals (
  id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  what    TEXT NOT NULL,  -- the object
  reason  TEXT NOT NULL,
  task    TEXT NOT NULL,  -- that was done again for it
  worker  TEXT NOT NULL   -- that found it
);

-- What was recorded after the phase that a run went back to: it counts no more, and is kept.
CREATE TABLE set_aside (
  id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  rollback  BIGINT NOT NULL,  -- the first, the second, ...
  arm       TEXT NOT NULL,
  phase     BIGINT NOT NULL,  -- that the run went back to
  kind      TEXT NOT NULL,  -- the table that the fact was in
  body      TEXT NOT NULL   -- JSON: its columns, in that table's order
);

-- Running totals, kept by triggers: what workers, launchers and metrics ask again and again costs
-- the same after ten phases and after a thousand. There is a row for each path, module or subject
-- of tasks, so that commits of different ones do not wait for each other.
CREATE TABLE path_totals (
  arm             TEXT NOT NULL,
  path            BIGINT NOT NULL,
  phases          BIGINT NOT NULL DEFAULT 0,  -- rows of `trained`
  tokens          BIGINT NOT NULL DEFAULT 0,
  seconds         DOUBLE PRECISION NOT NULL DEFAULT 0,
  bytes_down      BIGINT NOT NULL DEFAULT 0,
  bytes_up        BIGINT NOT NULL DEFAULT 0,
  snapshot_bytes  BIGINT NOT NULL DEFAULT 0,
  score_bytes     BIGINT NOT NULL DEFAULT 0,  -- of `scores`
  PRIMARY KEY (arm, path)
);

CREATE TABLE path_machines (
  arm      TEXT NOT NULL,
  path     BIGINT NOT NULL,
  machine  TEXT NOT NULL,
  phases   BIGINT NOT NULL,
  PRIMARY KEY (arm, path, machine)
);

CREATE TABLE module_totals (
  arm          TEXT NOT NULL,
  module       TEXT NOT NULL,
  num_bytes    BIGINT NOT NULL,
  state_bytes  BIGINT NOT NULL,
  PRIMARY KEY (arm, module)
);

-- Tasks that are done or set aside; the others are few, and counted.
CREATE TABLE settled_tasks (
  kind     TEXT NOT NULL,
  arm      TEXT NOT NULL,
  subject  TEXT NOT NULL,
  state    TEXT NOT NULL,
  number   BIGINT NOT NULL,
  PRIMARY KEY (kind, arm, subject, state)
);

CREATE TRIGGER trained_counts AFTER INSERT ON trained BEGIN
  INSERT INTO path_totals
    (arm, path, phases, tokens, seconds, bytes_down, bytes_up, snapshot_bytes)
  VALUES (new.arm, new.path, 1, new.tokens, new.seconds, new.bytes_down, new.bytes_up,
          new.num_bytes)
  ON CONFLICT (arm, path) DO UPDATE SET
    phases = path_totals.phases + 1,
    tokens = path_totals.tokens + new.tokens,
    seconds = path_totals.seconds + new.seconds,
    bytes_down = path_totals.bytes_down + new.bytes_down,
    bytes_up = path_totals.bytes_up + new.bytes_up,
    snapshot_bytes = path_totals.snapshot_bytes + new.num_bytes;
  INSERT INTO path_machines (arm, path, machine, phases)
  VALUES (new.arm, new.path, new.machine, 1)
  ON CONFLICT (arm, path, machine) DO UPDATE SET phases = path_machines.phases + 1;
END;
CREATE TRIGGER trained_counts_no_more AFTER DELETE ON trained BEGIN
  UPDATE path_totals SET
    phases = phases - 1, tokens = tokens - old.tokens, seconds = seconds - old.seconds,
    bytes_down = bytes_down - old.bytes_down, bytes_up = bytes_up - old.bytes_up,
    snapshot_bytes = snapshot_bytes - old.num_bytes
  WHERE arm = old.arm AND path = old.path;
  UPDATE path_machines SET phases = phases - 1
  WHERE arm = old.arm AND path = old.path AND machine = old.machine;
END;
CREATE TRIGGER score_counts AFTER INSERT ON scores BEGIN
  INSERT INTO path_totals (arm, path, score_bytes) VALUES (new.arm, new.path, new.num_bytes)
  ON CONFLICT (arm, path) DO UPDATE SET score_bytes = path_totals.score_bytes + new.num_bytes;
END;
CREATE TRIGGER score_counts_no_more AFTER DELETE ON scores BEGIN
  UPDATE path_totals SET score_bytes = score_bytes - old.num_bytes
  WHERE arm = old.arm AND path = old.path;
END;
CREATE TRIGGER module_counts AFTER INSERT ON modules BEGIN
  INSERT INTO module_totals (arm, module, num_bytes, state_bytes)
  VALUES (new.arm, new.module, new.num_bytes, coalesce(new.state_bytes, 0))
  ON CONFLICT (arm, module) DO UPDATE SET
    num_bytes = module_totals.num_bytes + new.num_bytes,
    state_bytes = module_totals.state_bytes + coalesce(new.state_bytes, 0);
END;
CREATE TRIGGER module_counts_no_more AFTER DELETE ON modules BEGIN
  UPDATE module_totals SET
    num_bytes = num_bytes - old.num_bytes,
    state_bytes = state_bytes - coalesce(old.state_bytes, 0)
  WHERE arm = old.arm AND module = old.module;
END;
CREATE TRIGGER task_is_settled_at_once AFTER INSERT ON tasks
WHEN new.state IN ('done', 'aside') BEGIN
  INSERT INTO settled_tasks (kind, arm, subject, state, number)
  VALUES (new.kind, new.arm, new.subject, new.state, 1)
  ON CONFLICT (kind, arm, subject, state) DO UPDATE SET number = settled_tasks.number + 1;
END;
CREATE TRIGGER task_is_settled AFTER UPDATE OF state ON tasks
WHEN new.state IN ('done', 'aside') AND new.state <> old.state BEGIN
  INSERT INTO settled_tasks (kind, arm, subject, state, number)
  VALUES (new.kind, new.arm, new.subject, new.state, 1)
  ON CONFLICT (kind, arm, subject, state) DO UPDATE SET number = settled_tasks.number + 1;
END;
CREATE TRIGGER task_is_settled_no_more AFTER UPDATE OF state ON tasks
WHEN old.state IN ('done', 'aside') AND new.state <> old.state BEGIN
  UPDATE settled_tasks SET number = number - 1
  WHERE kind = old.kind AND arm = old.arm AND subject = old.subject AND state = old.state;
END;

-- Swarms of volunteers: credentials, which paths a swarm trains, and how far each swarm is.

CREATE TABLE swarm_credentials (
  serial     TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  role       TEXT NOT NULL CHECK (role IN ('volunteer', 'backbone')),
  not_after  DOUBLE PRECISION NOT NULL,  -- wall clock: volunteers are on other machines
  revoked    BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX swarm_credentials_by_name ON swarm_credentials (name);

-- Other workers leave a path to a live backbone of it that has volunteers.
CREATE TABLE swarm_backbones (
  worker   TEXT PRIMARY KEY,  -- of `workers`, which knows whether it lives
  arm      TEXT NOT NULL,
  subject  TEXT NOT NULL,     -- of the path's tasks; without volunteers `unstaffed PATH`, of none
  address  TEXT NOT NULL      -- where peers reach it
);

-- Every group step that was taken, and whose rows were in it.
CREATE TABLE swarm_steps (
  arm      TEXT NOT NULL,
  path     BIGINT NOT NULL,
  step     BIGINT NOT NULL,
  lineage  TEXT NOT NULL,  -- of the state after it
  loss     DOUBLE PRECISION NOT NULL,
  targets  DOUBLE PRECISION NOT NULL,
  seconds  DOUBLE PRECISION NOT NULL,
  blocks   TEXT NOT NULL,  -- JSON: peer -> blocks of the step's batch
  PRIMARY KEY (arm, path, step)
);

CREATE TABLE swarm_status (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  leader  TEXT NOT NULL,  -- the worker that leads
  status  TEXT NOT NULL,  -- JSON: what `dipaco status` shows
  PRIMARY KEY (arm, path)
);

-- What happened in a run, in order: attempts at tasks, and what became of workers. Rows are added in
-- the transactions that they tell of, and never changed. The oldest of more than a million are
-- deleted. Times are shown only: they are the wall clock's, or the server's.
CREATE TABLE history (
  id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id  BIGINT,  -- NULL: a worker, or the run
  attempt  BIGINT,
  worker   TEXT NOT NULL DEFAULT '',
  machine  TEXT NOT NULL DEFAULT '',  -- what the bits of its results depend on
  begun    DOUBLE PRECISION,
  ended    DOUBLE PRECISION NOT NULL,
  outcome  TEXT NOT NULL,  -- see history.py
  reason   TEXT NOT NULL DEFAULT ''
);
CREATE TRIGGER history_is_never_changed BEFORE UPDATE ON history BEGIN
  SELECT raise(ABORT, 'what happened is never changed');
END;

-- What each name has computed of the group steps of a path, over all of its sessions, so that the
-- leaderboard reads no steps. Kept by triggers, also for a step that is taken again.
CREATE TABLE swarm_shares (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  name    TEXT NOT NULL,    -- of a credential
  blocks  BIGINT NOT NULL,  -- blocks of a step's batch that it computed
  out_of  BIGINT NOT NULL,  -- blocks of the whole batch
  steps   BIGINT NOT NULL,  -- number of such steps
  PRIMARY KEY (arm, path, name, blocks, out_of)
);
CREATE TRIGGER swarm_step_counts AFTER INSERT ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, 1 FROM swarm_step_shares
  WHERE arm = new.arm AND path = new.path AND step = new.step ORDER BY name, blocks
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE
  SET steps = swarm_shares.steps + 1;
END;
CREATE TRIGGER swarm_step_counts_no_more BEFORE UPDATE ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, -1 FROM swarm_step_shares
  WHERE arm = old.arm AND path = old.path AND step = old.step ORDER BY name, blocks
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE
  SET steps = swarm_shares.steps - 1;
END;
CREATE TRIGGER swarm_step_counts_again AFTER UPDATE ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, 1 FROM swarm_step_shares
  WHERE arm = new.arm AND path = new.path AND step = new.step ORDER BY name, blocks
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE
  SET steps = swarm_shares.steps + 1;
END;
