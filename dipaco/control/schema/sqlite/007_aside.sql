-- A run may go back to an earlier phase. What was recorded after it is set aside: out of the way, and not lost. SQLite cannot
-- change a check: the table of tasks is made anew, as before.

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
  state     TEXT NOT NULL DEFAULT 'ready' CHECK (state IN
              ('waiting', 'ready', 'claimed', 'done', 'aside')),
  attempt   INTEGER NOT NULL DEFAULT 0,      -- fencing token: grows with every claim
  redo      INTEGER NOT NULL DEFAULT 0,      -- how often it was opened again
  UNIQUE (kind, arm, subject, phase)
);
INSERT INTO tasks SELECT * FROM tasks_before;
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';

-- Done is done, unless what it made is known to be lost, and that is counted; or it is set aside.
CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks
WHEN old.state = 'done' AND new.state NOT IN ('done', 'aside') AND new.redo <= old.redo
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

CREATE TABLE set_aside (
  id        INTEGER PRIMARY KEY,
  rollback  INTEGER NOT NULL,                -- the first, the second, ...
  arm       TEXT NOT NULL,
  phase     INTEGER NOT NULL,                -- that the run went back to
  kind      TEXT NOT NULL,                   -- the table that the fact was in
  body      TEXT NOT NULL                    -- JSON: its columns, in that table's order
);
CREATE INDEX modules_by_name ON modules (name);
CREATE INDEX modules_by_state ON modules (state_name);
