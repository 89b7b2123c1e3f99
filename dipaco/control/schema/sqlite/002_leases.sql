-- Leases, workers, and training that was interrupted part-way.

-- One row for each claim that lives. A late task may have two: whoever commits first counts.
CREATE TABLE claims (
  task_id      INTEGER NOT NULL REFERENCES tasks (id),
  attempt      INTEGER NOT NULL,             -- fencing token
  worker       TEXT NOT NULL,
  epoch        TEXT NOT NULL,                -- which clock: after a reboot it begins anew
  since        REAL NOT NULL,                -- seconds of that clock
  lease_until  REAL NOT NULL,
  PRIMARY KEY (task_id, attempt)
) WITHOUT ROWID;
CREATE INDEX claims_by_worker ON claims (worker);

ALTER TABLE tasks DROP COLUMN claimed_by;
UPDATE tasks SET state = 'ready' WHERE state = 'claimed';
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';

CREATE TABLE workers (
  name               TEXT PRIMARY KEY,
  host               TEXT NOT NULL,
  pid                INTEGER NOT NULL,
  machine            TEXT NOT NULL,          -- what the bits of its results depend on
  version            TEXT NOT NULL,
  state              TEXT NOT NULL CHECK (state IN ('here', 'left', 'lost')),
  epoch              TEXT NOT NULL,
  joined             REAL NOT NULL,
  beat               REAL NOT NULL,          -- when it was last heard of
  committed_seconds  REAL NOT NULL DEFAULT 0,
  committed_tasks    INTEGER NOT NULL DEFAULT 0,
  lost_tasks         INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- A path inside a phase, saved by a worker that had to go. The row goes when the phase is recorded.
CREATE TABLE partway (
  arm        TEXT NOT NULL,
  path       INTEGER NOT NULL,
  phase      INTEGER NOT NULL,
  name       TEXT NOT NULL,                  -- snapshot of parameters and inner state
  digest     TEXT NOT NULL,
  num_bytes  INTEGER NOT NULL,
  step       INTEGER NOT NULL,
  batches    TEXT NOT NULL,
  losses     TEXT NOT NULL,                  -- JSON array, of this phase so far
  seconds    REAL NOT NULL,
  PRIMARY KEY (arm, path, phase)
) WITHOUT ROWID;

ALTER TABLE trained ADD COLUMN machine TEXT NOT NULL DEFAULT '';
