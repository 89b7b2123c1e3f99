-- The tables of one run's ledger, for both databases. `contract.schema_script` names the few
-- differences. Constraints and triggers keep the rules here, not the programs that write.
-- A receipt is three columns: the object's name in the store, its digest, its size in bytes.

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
  attempt   BIGINT NOT NULL DEFAULT 0,  -- fencing token, which grows with every claim
  redo      BIGINT NOT NULL DEFAULT 0,  -- number of times that it was opened again
  UNIQUE (kind, arm, subject, phase)
);
-- Finished tasks are many and never claimed. They stay out of the index that claims read.
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';
CREATE INDEX tasks_waiting ON tasks (id) WHERE state = 'waiting';
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';
CREATE INDEX tasks_delayed ON tasks (id) WHERE state = 'delayed';
CREATE INDEX tasks_failed ON tasks (id) WHERE state = 'failed';
CREATE INDEX tasks_unfinished ON tasks (priority, id) WHERE state NOT IN ('done', 'aside');

-- A finished task stays done, unless a rollback sets it aside, or its result is lost. Then `redo`
-- counts.
CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks
WHEN old.state = 'done' AND new.state NOT IN ('done', 'aside') AND new.redo <= old.redo BEGIN
  SELECT raise(ABORT, 'a finished task cannot be opened again');
END;

-- One row for each claim that is held. A late task may have two. The first to commit counts.
CREATE TABLE claims (
  task_id          BIGINT NOT NULL REFERENCES tasks (id),
  attempt          BIGINT NOT NULL,  -- fencing token
  worker           TEXT NOT NULL,
  lease_seconds    DOUBLE PRECISION NOT NULL,  -- limit of the time between renewals
  renewals         BIGINT NOT NULL DEFAULT 0,  -- number of renewals
  held_seconds     DOUBLE PRECISION NOT NULL DEFAULT 0,  -- age at its last renewal
  stalled_seconds  DOUBLE PRECISION NOT NULL DEFAULT 0,  -- time without progress, then
  begun            DOUBLE PRECISION NOT NULL,  -- seconds of the wall clock, for display
  PRIMARY KEY (task_id, attempt)
);
CREATE INDEX claims_by_worker ON claims (worker);

-- Attempts at a task that went wrong in a row, since it was last done.
CREATE TABLE failures (
  task_id       BIGINT PRIMARY KEY REFERENCES tasks (id),
  errors        BIGINT NOT NULL,  -- number of attempts with an error of the task
  crashes       BIGINT NOT NULL,  -- number of attempts whose process was seen to die
  losses        BIGINT NOT NULL,  -- number of attempts whose worker fell silent, as if preempted
  reason        TEXT NOT NULL,  -- reason of the last failure
  worker        TEXT NOT NULL,  -- worker of the last failure
  epoch         TEXT NOT NULL,  -- name of the clock, which a reboot sets to zero
  since         DOUBLE PRECISION NOT NULL,  -- time of the last failure, in seconds of that clock
  wait_seconds  DOUBLE PRECISION NOT NULL   -- delay until the task is tried again
);

-- How often a task (`task_id`) that is not done had an input made again by another (`cause_id`).
-- Zero: it waits for what is made again for others.
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
  process_id         TEXT NOT NULL,  -- unique, where two containers may share host and pid
  machine            TEXT NOT NULL,  -- all that the bits of its results depend on
  version            TEXT NOT NULL,
  state              TEXT NOT NULL CHECK (state IN ('here', 'left', 'lost')),
  epoch              TEXT NOT NULL,
  joined             DOUBLE PRECISION NOT NULL,  -- last time that it joined
  heartbeat          DOUBLE PRECISION NOT NULL,  -- time of its last heartbeat
  heartbeats         BIGINT NOT NULL DEFAULT 0,  -- number of heartbeats
  is_silent          BIGINT NOT NULL DEFAULT 0,  -- 1 = another process saw none for a lease
  earlier_seconds    DOUBLE PRECISION NOT NULL DEFAULT 0,  -- sum of its earlier stays
  committed_seconds  DOUBLE PRECISION NOT NULL DEFAULT 0,
  committed_tasks    BIGINT NOT NULL DEFAULT 0,
  lost_tasks         BIGINT NOT NULL DEFAULT 0,
  kinds              TEXT NOT NULL DEFAULT '',  -- kinds of task that it does, with commas
  last_words         TEXT NOT NULL DEFAULT ''   -- reason for its end, if not in order
);
-- Preempted workers never leave, and are silent for ever. A heartbeat reads none of them.
CREATE INDEX workers_heard ON workers (name) WHERE state = 'here' AND is_silent = 0;

-- Modules at the start of a phase.
CREATE TABLE modules (
  arm            TEXT NOT NULL,
  module         TEXT NOT NULL,
  phase          BIGINT NOT NULL,
  name           TEXT NOT NULL,
  digest         TEXT NOT NULL,
  num_bytes      BIGINT NOT NULL,
  state_name     TEXT,  -- outer state (NULL = has not stepped)
  state_digest   TEXT,
  state_bytes    BIGINT,
  gradient_norm  DOUBLE PRECISION,
  gradient_stats TEXT,  -- JSON: [{path: norm}, cosine] (NULL = no path moved it)
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

-- Modules that have their quorum (`outer.quorum`) and wait for other paths until their grace ends.
CREATE TABLE quorums (
  arm     TEXT NOT NULL,
  module  TEXT NOT NULL,
  phase   BIGINT NOT NULL,
  epoch   TEXT NOT NULL,  -- name of the clock, which a reboot sets to zero
  until   DOUBLE PRECISION NOT NULL,  -- end of the grace, in seconds of that clock
  PRIMARY KEY (arm, module, phase)
);

-- Contributions that an outer step takes. They are decided before the step begins, so that it takes
-- the same ones when it is done again.
CREATE TABLE taken (
  arm     TEXT NOT NULL,
  module  TEXT NOT NULL,
  phase   BIGINT NOT NULL,  -- the contribution's phase
  path    BIGINT NOT NULL,
  step    BIGINT NOT NULL,  -- phase of the outer step (above `phase` = a late contribution)
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
  norm_mean     DOUBLE PRECISION,  -- gradient norms of the inner steps, before clipping
  norm_largest  DOUBLE PRECISION,
  tokens      BIGINT NOT NULL,
  seconds     DOUBLE PRECISION NOT NULL,
  bytes_down  BIGINT NOT NULL,
  bytes_up    BIGINT NOT NULL,
  machine     TEXT NOT NULL,
  position    BIGINT NOT NULL DEFAULT 0,  -- number of batches taken from the data of `batches`
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
  losses     TEXT NOT NULL,  -- JSON array, this phase so far
  seconds    DOUBLE PRECISION NOT NULL,
  norms      TEXT NOT NULL,  -- JSON array, gradient norms of the same steps if known
  PRIMARY KEY (arm, path, phase, step)  -- a swarm keeps some, ever fewer of the earlier ones
);

CREATE TABLE stages (
  stage      TEXT NOT NULL,
  artifacts  TEXT NOT NULL,  -- JSON: name -> [object, digest, bytes]
  summary    TEXT NOT NULL,  -- JSON
  seconds    DOUBLE PRECISION NOT NULL,
  phase      BIGINT NOT NULL DEFAULT 0,  -- an alternation's phase (its earlier results stay)
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

-- Losses of paths on the documents that their shards hold out.
CREATE TABLE checks (
  arm         TEXT NOT NULL,
  path        BIGINT NOT NULL,
  phase       BIGINT NOT NULL,
  loss        DOUBLE PRECISION NOT NULL,
  best_phase  BIGINT NOT NULL,
  seconds     DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase, path)
);
CREATE INDEX checks_by_best ON checks (arm, best_phase);

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
  tune_rows             TEXT NOT NULL,  -- the same of tune documents, the arm's own suffix empty
  documents             BIGINT NOT NULL,
  tokens                BIGINT NOT NULL,
  seconds               DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase)
);

-- Prompts that a release continued.
CREATE TABLE samples (
  arm         TEXT NOT NULL,
  phase       BIGINT NOT NULL,
  number      BIGINT NOT NULL,  -- the prompt's number, equal in all releases
  domain      TEXT NOT NULL,
  document    BIGINT NOT NULL,  -- test document that begins with the prompt
  path        BIGINT NOT NULL,
  prompt      TEXT NOT NULL,  -- JSON string, because any character may occur
  text        TEXT NOT NULL,  -- JSON string, without the prompt
  num_tokens  BIGINT NOT NULL,  -- length of the text
  has_ended   BIGINT NOT NULL,  -- 1 = the text ended by itself, 0 = it was cut
  PRIMARY KEY (arm, phase, number)
);

CREATE TABLE refusals (
  id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  what    TEXT NOT NULL,  -- the object's name
  reason  TEXT NOT NULL,
  task    TEXT NOT NULL,  -- task that makes the object again
  worker  TEXT NOT NULL   -- worker that found the defect
);

-- Facts that a rollback deleted from their tables. They are kept, and count no more.
CREATE TABLE set_aside (
  id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  rollback  BIGINT NOT NULL,  -- number of the rollback, from 1
  arm       TEXT NOT NULL,
  phase     BIGINT NOT NULL,  -- phase that the arm went back to
  kind      TEXT NOT NULL,  -- the fact's table
  body      TEXT NOT NULL   -- JSON: its columns, in that table's order
);

-- Running totals, kept by triggers. Workers, launchers and metrics ask for them all the time, and
-- reading them costs the same after any number of phases. Each path, module or subject of tasks has
-- a row, so that commits of different ones do not wait for each other.
CREATE TABLE path_totals (
  arm             TEXT NOT NULL,
  path            BIGINT NOT NULL,
  phases          BIGINT NOT NULL DEFAULT 0,  -- number of rows in `trained`
  tokens          BIGINT NOT NULL DEFAULT 0,
  seconds         DOUBLE PRECISION NOT NULL DEFAULT 0,
  bytes_down      BIGINT NOT NULL DEFAULT 0,
  bytes_up        BIGINT NOT NULL DEFAULT 0,
  snapshot_bytes  BIGINT NOT NULL DEFAULT 0,
  score_bytes     BIGINT NOT NULL DEFAULT 0,  -- bytes of its rows in `scores`
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

-- Numbers of tasks that are done or set aside. The others are few, and are counted when asked for.
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

-- Swarms of volunteers: their credentials, backbones, steps and status.

CREATE TABLE swarm_credentials (
  serial     TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  role       TEXT NOT NULL CHECK (role IN ('volunteer', 'backbone')),
  not_after  DOUBLE PRECISION NOT NULL,  -- wall clock, because volunteers are elsewhere
  revoked    BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX swarm_credentials_by_name ON swarm_credentials (name);

-- Other workers leave a path to a live backbone of it that has volunteers.
CREATE TABLE swarm_backbones (
  worker   TEXT PRIMARY KEY,  -- its name in `workers`
  arm      TEXT NOT NULL,
  subject  TEXT NOT NULL,     -- the path's number, or `unstaffed PATH` without volunteers
  address  TEXT NOT NULL      -- for peers
);

-- Group steps that were taken, and the blocks that each peer computed for them.
CREATE TABLE swarm_steps (
  arm      TEXT NOT NULL,
  path     BIGINT NOT NULL,
  step     BIGINT NOT NULL,
  lineage  TEXT NOT NULL,  -- name of the state after the step
  loss     DOUBLE PRECISION NOT NULL,
  targets  DOUBLE PRECISION NOT NULL,
  seconds  DOUBLE PRECISION NOT NULL,
  blocks   TEXT NOT NULL,  -- JSON: peer -> blocks of the step's batch
  sketch   TEXT NOT NULL,  -- JSON: random sums of the mean gradient, for `swarm verify`
  steps    BIGINT NOT NULL,  -- steps of the path in it: members take more than one by themselves
  PRIMARY KEY (arm, path, step)
);

CREATE TABLE swarm_status (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  leader  TEXT NOT NULL,  -- worker that leads the swarm
  status  TEXT NOT NULL,  -- JSON for `dipaco status`
  PRIMARY KEY (arm, path)
);

-- Events of a run in order: attempts at tasks, and what became of workers. Rows are added in the
-- transactions that they tell of, and never changed. The oldest are deleted above a million. Times
-- are the wall clock's or the server's, for display only.
CREATE TABLE history (
  id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id  BIGINT,  -- NULL = an event of a worker or of the run
  attempt  BIGINT,
  worker   TEXT NOT NULL DEFAULT '',
  machine  TEXT NOT NULL DEFAULT '',  -- all that the bits of its results depend on
  begun    DOUBLE PRECISION,
  ended    DOUBLE PRECISION NOT NULL,
  outcome  TEXT NOT NULL,  -- see history.py
  reason   TEXT NOT NULL DEFAULT ''
);
CREATE TRIGGER history_is_never_changed BEFORE UPDATE ON history BEGIN
  SELECT raise(ABORT, 'what happened is never changed');
END;

-- Shares of each name in the group steps of a path, over all of its sessions. The leaderboard reads
-- them and no steps. Triggers keep them, also for a step that is taken again.
CREATE TABLE swarm_shares (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  name    TEXT NOT NULL,    -- a credential's name
  blocks  BIGINT NOT NULL,  -- number of a step's blocks that it computed
  out_of  BIGINT NOT NULL,  -- number of blocks in the step's batch
  steps   BIGINT NOT NULL,  -- number of steps with these shares
  PRIMARY KEY (arm, path, name, blocks, out_of)
);
CREATE TRIGGER swarm_step_counts AFTER INSERT ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, steps FROM swarm_step_shares
  WHERE arm = new.arm AND path = new.path AND step = new.step ORDER BY name, blocks
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE
  SET steps = swarm_shares.steps + excluded.steps;
END;
CREATE TRIGGER swarm_step_counts_no_more BEFORE UPDATE ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, -steps FROM swarm_step_shares
  WHERE arm = old.arm AND path = old.path AND step = old.step ORDER BY name, blocks
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE
  SET steps = swarm_shares.steps + excluded.steps;
END;
CREATE TRIGGER swarm_step_counts_again AFTER UPDATE ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, steps FROM swarm_step_shares
  WHERE arm = new.arm AND path = new.path AND step = new.step ORDER BY name, blocks
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE
  SET steps = swarm_shares.steps + excluded.steps;
END;
