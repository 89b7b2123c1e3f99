-- The ledger of one run, in a schema of its own. The rules are kept here, by constraints and indexes, not by the programs that write.
-- Receipts are three columns: the object's name in the store, its digest, its size in bytes.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE tasks (
  id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind        TEXT NOT NULL CHECK (kind IN
                ('prepare', 'pretrain', 'route', 'train', 'outer', 'score', 'evaluate', 'report')),
  arm         TEXT NOT NULL DEFAULT '',
  subject     TEXT NOT NULL DEFAULT '',
  phase       BIGINT NOT NULL DEFAULT 0,
  priority    BIGINT NOT NULL,
  state       TEXT NOT NULL DEFAULT 'ready' CHECK (state IN
                ('waiting', 'ready', 'claimed', 'done')),
  attempt     BIGINT NOT NULL DEFAULT 0,    -- fencing token: grows with every claim
  redo        BIGINT NOT NULL DEFAULT 0,    -- how often it was opened again
  UNIQUE (kind, arm, subject, phase)
);
-- Finished tasks are many and never claimed: they stay out of the index that claims read.
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';

-- Done is done, unless what it made is known to be lost, and that is counted.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE integrity_constraint_violation USING MESSAGE = tg_argv[0]; END $$;
CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks FOR EACH ROW
WHEN (old.state = 'done' AND new.state <> 'done' AND new.redo <= old.redo)
EXECUTE FUNCTION refuse('a finished task cannot be opened again');

CREATE TABLE modules (
  arm            TEXT NOT NULL,
  module         TEXT NOT NULL,
  phase          BIGINT NOT NULL,
  name           TEXT NOT NULL,
  digest         TEXT NOT NULL,
  num_bytes      BIGINT NOT NULL,
  state_name     TEXT,                      -- outer state; NULL: has not stepped
  state_digest   TEXT,
  state_bytes    BIGINT,
  gradient_norm  DOUBLE PRECISION,
  PRIMARY KEY (arm, module, phase)
);
CREATE INDEX modules_by_phase ON modules (arm, phase);

CREATE TABLE arrivals (
  arm          TEXT NOT NULL,
  module       TEXT NOT NULL,
  phase        BIGINT NOT NULL,
  path         BIGINT NOT NULL,
  base_digest  TEXT NOT NULL,
  name         TEXT NOT NULL,
  digest       TEXT NOT NULL,
  num_bytes    BIGINT NOT NULL,
  PRIMARY KEY (arm, module, phase, path)    -- one contribution per path, module and phase
);

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
  PRIMARY KEY (arm, path, phase)
);

CREATE TABLE stages (
  stage      TEXT PRIMARY KEY,
  artifacts  TEXT NOT NULL,  -- JSON: name -> [object, digest, bytes]
  summary    TEXT NOT NULL,  -- JSON
  seconds    DOUBLE PRECISION NOT NULL
);

CREATE TABLE scores (
  arm        TEXT NOT NULL,
  path       BIGINT NOT NULL,
  phase      BIGINT NOT NULL,
  name       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  num_bytes  BIGINT NOT NULL,
  seconds    DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, path, phase)
);

CREATE TABLE releases (
  arm     TEXT NOT NULL,
  phase   BIGINT NOT NULL,
  digest  TEXT NOT NULL,
  body    TEXT NOT NULL,  -- JSON: see release.py
  PRIMARY KEY (arm, phase)
);

CREATE TRIGGER releases_are_immutable BEFORE UPDATE ON releases FOR EACH ROW
EXECUTE FUNCTION refuse('a release is never changed');

CREATE TABLE evaluations (
  arm                   TEXT NOT NULL,
  phase                 BIGINT NOT NULL,
  perplexity            DOUBLE PRECISION NOT NULL,
  best_path_perplexity  DOUBLE PRECISION,
  documents             BIGINT NOT NULL,
  tokens                BIGINT NOT NULL,
  seconds               DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, phase)
);

-- One row for each claim that lives. A late task may have two: whoever commits first counts.
CREATE TABLE claims (
  task_id      BIGINT NOT NULL REFERENCES tasks (id),
  attempt      BIGINT NOT NULL,  -- fencing token
  worker       TEXT NOT NULL,
  epoch        TEXT NOT NULL,  -- which clock: after a reboot it begins anew
  since        DOUBLE PRECISION NOT NULL,  -- seconds of that clock
  lease_until  DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (task_id, attempt)
);
CREATE INDEX claims_by_worker ON claims (worker);
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';

CREATE TABLE workers (
  name               TEXT PRIMARY KEY,
  host               TEXT NOT NULL,
  pid                BIGINT NOT NULL,
  machine            TEXT NOT NULL,  -- what the bits of its results depend on
  version            TEXT NOT NULL,
  state              TEXT NOT NULL CHECK (state IN ('here', 'left', 'lost')),
  epoch              TEXT NOT NULL,
  joined             DOUBLE PRECISION NOT NULL,
  beat               DOUBLE PRECISION NOT NULL,  -- when it was last heard of
  committed_seconds  DOUBLE PRECISION NOT NULL DEFAULT 0,
  committed_tasks    BIGINT NOT NULL DEFAULT 0,
  lost_tasks         BIGINT NOT NULL DEFAULT 0
);

-- A path inside a phase, saved by a worker that had to go. The row goes when the phase is recorded.
CREATE TABLE partway (
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

CREATE TABLE refusals (
  id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  what    TEXT NOT NULL,  -- the object
  reason  TEXT NOT NULL,
  task    TEXT NOT NULL,  -- which was done again for it
  worker  TEXT NOT NULL   -- who found it
);
