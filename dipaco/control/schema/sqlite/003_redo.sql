-- What was done may turn out to be lost: an object is damaged, a contribution is refused. Then the
-- task that made it is done again, and who needed it waits. SQLite cannot change a check: the table
-- is made anew.

DROP TRIGGER tasks_done_is_done;
DROP INDEX tasks_ready;
DROP INDEX tasks_claimed;
ALTER TABLE tasks RENAME TO tasks_before;
ALTER TABLE claims RENAME TO claims_before;

CREATE TABLE tasks (
  id        INTEGER PRIMARY KEY,
  kind      TEXT NOT NULL CHECK (kind IN
              ('prepare', 'pretrain', 'route', 'train', 'outer', 'score', 'evaluate', 'report')),
  arm       TEXT NOT NULL DEFAULT '',
  subject   TEXT NOT NULL DEFAULT '',
  phase     INTEGER NOT NULL DEFAULT 0,
  priority  INTEGER NOT NULL,
  state     TEXT NOT NULL DEFAULT 'ready' CHECK (state IN ('waiting', 'ready', 'claimed', 'done')),
  attempt   INTEGER NOT NULL DEFAULT 0,      -- fencing token: grows with every claim
  redo      INTEGER NOT NULL DEFAULT 0,      -- how often it was opened again
  UNIQUE (kind, arm, subject, phase)
);
INSERT INTO tasks (id, kind, arm, subject, phase, priority, state, attempt)
SELECT id, kind, arm, subject, phase, priority, state, attempt FROM tasks_before;
CREATE INDEX tasks_ready ON tasks (priority, id) WHERE state = 'ready';
CREATE INDEX tasks_claimed ON tasks (id) WHERE state = 'claimed';

-- Done is done, unless what it made is known to be lost, and that is counted.
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

CREATE TABLE refusals (
  id      INTEGER PRIMARY KEY,
  what    TEXT NOT NULL,                     -- the object
  reason  TEXT NOT NULL,
  task    TEXT NOT NULL,                     -- which was done again for it
  worker  TEXT NOT NULL                      -- who found it
);
