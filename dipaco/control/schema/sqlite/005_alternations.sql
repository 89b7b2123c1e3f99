-- Documents are routed anew at given phases, paths are scored on the router's documents and checked on
-- what their shards hold out, and not every path takes part in every phase. SQLite cannot change a
-- check: the table of tasks is made anew.

DROP TRIGGER tasks_done_is_done;
DROP INDEX tasks_ready;
DROP INDEX tasks_claimed;
DROP INDEX claims_by_worker;
ALTER TABLE tasks RENAME TO tasks_before;
ALTER TABLE claims RENAME TO claims_before;

CREATE TABLE tasks (
  id        INTEGER PRIMARY KEY,
  kind      TEXT NOT NULL CHECK (kind IN
              ('prepare', 'pretrain', 'route', 'train', 'outer', 'label', 'check', 'score',
               'evaluate', 'reroute', 'report')),
  arm       TEXT NOT NULL DEFAULT '',
  subject   TEXT NOT NULL DEFAULT '',
  phase     INTEGER NOT NULL DEFAULT 0,
  priority  INTEGER NOT NULL,
  state     TEXT NOT NULL DEFAULT 'ready' CHECK (state IN ('waiting', 'ready', 'claimed', 'done')),
  attempt   INTEGER NOT NULL DEFAULT 0,      -- fencing token: grows with every claim
  redo      INTEGER NOT NULL DEFAULT 0,      -- how often it was opened again
  UNIQUE (kind, arm, subject, phase)
);
INSERT INTO tasks SELECT * FROM tasks_before;
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';

CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks
WHEN old.state = 'done' AND new.state <> 'done' AND new.redo <= old.redo
BEGIN SELECT raise(ABORT, 'a finished task cannot be opened again'); END;

CREATE TABLE claims (
  task_id      INTEGER NOT NULL REFERENCES tasks (id),
  attempt      INTEGER NOT NULL,
  worker       TEXT NOT NULL,
  epoch        TEXT NOT NULL,
  since        REAL NOT NULL,
  lease_until  REAL NOT NULL,
  PRIMARY KEY (task_id, attempt)
) WITHOUT ROWID;
INSERT INTO claims SELECT * FROM claims_before;
DROP TABLE claims_before;
DROP TABLE tasks_before;
CREATE INDEX claims_by_worker ON claims (worker);

ALTER TABLE stages RENAME TO stages_before;
CREATE TABLE stages (
  stage      TEXT NOT NULL,
  phase      INTEGER NOT NULL DEFAULT 0,    -- of an alternation; every version stays
  artifacts  TEXT NOT NULL,                 -- JSON: name -> [object, digest, bytes]
  summary    TEXT NOT NULL,                 -- JSON
  seconds    REAL NOT NULL,
  PRIMARY KEY (stage, phase)
) WITHOUT ROWID;
INSERT INTO stages (stage, artifacts, summary, seconds)
SELECT stage, artifacts, summary, seconds FROM stages_before;
DROP TABLE stages_before;

-- Log-likelihoods of the router's documents.
CREATE TABLE labels (
  arm        TEXT NOT NULL,
  path       INTEGER NOT NULL,
  phase      INTEGER NOT NULL,
  name       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  num_bytes  INTEGER NOT NULL,
  seconds    REAL NOT NULL,
  PRIMARY KEY (arm, path, phase)
) WITHOUT ROWID;

-- How well a path predicts what its shard holds out.
CREATE TABLE checks (
  arm         TEXT NOT NULL,
  path        INTEGER NOT NULL,
  phase       INTEGER NOT NULL,
  loss        REAL NOT NULL,
  best_phase  INTEGER NOT NULL,
  seconds     REAL NOT NULL,
  PRIMARY KEY (arm, path, phase)
) WITHOUT ROWID;

ALTER TABLE trained ADD COLUMN position INTEGER NOT NULL DEFAULT 0;  -- in the data of `batches`
UPDATE trained SET position = step;
