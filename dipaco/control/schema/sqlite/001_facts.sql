-- The ledger of one run. The rules are kept here, by constraints and indexes, not by the programs that write.
-- Receipts are three columns: the object's name in the store, its digest, its size in bytes.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE tasks (
  id          INTEGER PRIMARY KEY,
  kind        TEXT NOT NULL CHECK (kind IN
                ('prepare', 'pretrain', 'route', 'train', 'outer', 'score', 'evaluate', 'report')),
  arm         TEXT NOT NULL DEFAULT '',
  subject     TEXT NOT NULL DEFAULT '',
  phase       INTEGER NOT NULL DEFAULT 0,
  priority    INTEGER NOT NULL,
  state       TEXT NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'claimed', 'done')),
  attempt     INTEGER NOT NULL DEFAULT 0,   -- fencing token: grows with every claim
  claimed_by  TEXT,
  UNIQUE (kind, arm, subject, phase)
);
-- Finished tasks are many and never claimed: they stay out of the index that claims read.
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';

-- States move forward, or back from claimed to ready when a claim is given up. Done is done.
CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks
WHEN old.state = 'done' AND new.state <> 'done'
BEGIN SELECT raise(ABORT, 'a finished task cannot be opened again'); END;

CREATE TABLE modules (
  arm            TEXT NOT NULL,
  module         TEXT NOT NULL,
  phase          INTEGER NOT NULL,
  name           TEXT NOT NULL,
  digest         TEXT NOT NULL,
  num_bytes      INTEGER NOT NULL,
  state_name     TEXT,                      -- outer state; NULL: has not stepped
  state_digest   TEXT,
  state_bytes    INTEGER,
  gradient_norm  REAL,
  PRIMARY KEY (arm, module, phase)
) WITHOUT ROWID;
CREATE INDEX modules_by_phase ON modules (arm, phase);

CREATE TABLE arrivals (
  arm          TEXT NOT NULL,
  module       TEXT NOT NULL,
  phase        INTEGER NOT NULL,
  path         INTEGER NOT NULL,
  base_digest  TEXT NOT NULL,
  name         TEXT NOT NULL,
  digest       TEXT NOT NULL,
  num_bytes    INTEGER NOT NULL,
  PRIMARY KEY (arm, module, phase, path)    -- one contribution per path, module and phase
) WITHOUT ROWID;

CREATE TABLE trained (
  arm         TEXT NOT NULL,
  path        INTEGER NOT NULL,
  phase       INTEGER NOT NULL,
  name        TEXT NOT NULL,                -- snapshot
  digest      TEXT NOT NULL,
  num_bytes   INTEGER NOT NULL,
  step        INTEGER NOT NULL,
  batches     TEXT NOT NULL,
  losses      TEXT NOT NULL,                -- JSON array
  tokens      INTEGER NOT NULL,
  seconds     REAL NOT NULL,
  bytes_down  INTEGER NOT NULL,
  bytes_up    INTEGER NOT NULL,
  PRIMARY KEY (arm, path, phase)
) WITHOUT ROWID;

CREATE TABLE stages (
  stage      TEXT PRIMARY KEY,
  artifacts  TEXT NOT NULL,                 -- JSON: name -> [object, digest, bytes]
  summary    TEXT NOT NULL,                 -- JSON
  seconds    REAL NOT NULL
);

CREATE TABLE scores (
  arm        TEXT NOT NULL,
  path       INTEGER NOT NULL,
  phase      INTEGER NOT NULL,
  name       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  num_bytes  INTEGER NOT NULL,
  seconds    REAL NOT NULL,
  PRIMARY KEY (arm, path, phase)
) WITHOUT ROWID;

CREATE TABLE releases (
  arm     TEXT NOT NULL,
  phase   INTEGER NOT NULL,
  digest  TEXT NOT NULL,
  body    TEXT NOT NULL,                    -- JSON: see release.py
  PRIMARY KEY (arm, phase)
) WITHOUT ROWID;

CREATE TRIGGER releases_are_immutable BEFORE UPDATE ON releases
BEGIN SELECT raise(ABORT, 'a release is never changed'); END;

CREATE TABLE evaluations (
  arm                   TEXT NOT NULL,
  phase                 INTEGER NOT NULL,
  perplexity            REAL NOT NULL,
  best_path_perplexity  REAL,
  documents             INTEGER NOT NULL,
  tokens                INTEGER NOT NULL,
  seconds               REAL NOT NULL,
  PRIMARY KEY (arm, phase)
) WITHOUT ROWID;
