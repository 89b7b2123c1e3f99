-- What happened in a run, in order: attempts at tasks, and what became of workers. Rows are added, in
-- the transactions that they tell of, and never changed; the oldest of more than a
-- million are deleted. Times are the wall clock's, to be shown: nothing is decided by them.

ALTER TABLE claims ADD COLUMN begun REAL;  -- seconds of the wall clock; NULL: not recorded

CREATE TABLE history (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- no number twice, though rows are deleted
  task_id  INTEGER,  -- NULL: of a worker, or of the run
  attempt  INTEGER,
  worker   TEXT NOT NULL DEFAULT '',
  machine  TEXT NOT NULL DEFAULT '',  -- what the bits of its results depend on
  begun    REAL,
  ended    REAL NOT NULL,
  outcome  TEXT NOT NULL,  -- see history.py
  reason   TEXT NOT NULL DEFAULT ''
);
CREATE TRIGGER history_is_never_changed BEFORE UPDATE ON history
BEGIN SELECT raise(ABORT, 'what happened is never changed'); END;
