-- What happened in a run, in order: attempts at tasks, and what became of workers. Rows are added, in
-- the transactions that they tell of, and never changed; the oldest of more than a
-- million are deleted. Times are the server's clock, to be shown: nothing is decided by them.

ALTER TABLE claims ADD COLUMN begun DOUBLE PRECISION;  -- seconds; NULL: not recorded

CREATE TABLE history (
  id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id  BIGINT,  -- NULL: of a worker, or of the run
  attempt  BIGINT,
  worker   TEXT NOT NULL DEFAULT '',
  machine  TEXT NOT NULL DEFAULT '',  -- what the bits of its results depend on
  begun    DOUBLE PRECISION,
  ended    DOUBLE PRECISION NOT NULL,
  outcome  TEXT NOT NULL,  -- see history.py
  reason   TEXT NOT NULL DEFAULT ''
);
CREATE TRIGGER history_is_never_changed BEFORE UPDATE ON history FOR EACH ROW
EXECUTE FUNCTION refuse('what happened is never changed');

-- Finishing a path's phase, in one statement: what `Commit` does statement by statement on SQLite.
-- Returns 'again', and changes nothing, if the task was opened again. A claim that is lost raises a
-- violation of uniqueness, and nothing is changed.
CREATE OR REPLACE FUNCTION finish_training(
  held_task BIGINT, held_attempt BIGINT, holder TEXT, held_seconds DOUBLE PRECISION,
  trained_rows JSONB, contribution_rows JSONB, lock_keys TEXT[], outer_tasks JSONB
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  is_holder BOOLEAN;
  lock_key TEXT;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);  -- a `flush` follows, without the locks
  IF (SELECT redo FROM tasks WHERE id = held_task) > 0 THEN RETURN 'again'; END IF;
  WITH gone AS (DELETE FROM claims WHERE task_id = held_task RETURNING attempt, worker, begun),
  noted AS (
    INSERT INTO history (task_id, attempt, worker, machine, begun, ended, outcome)
    SELECT held_task, g.attempt, g.worker, coalesce(w.machine, ''), g.begun,
           extract(epoch FROM clock_timestamp()),
           CASE WHEN g.attempt = held_attempt AND g.worker = holder THEN 'done'
                ELSE 'superseded' END
    FROM gone g LEFT JOIN workers w ON w.name = g.worker)
  SELECT TRUE INTO is_holder FROM gone WHERE attempt = held_attempt AND worker = holder;
  IF NOT FOUND THEN RAISE unique_violation USING MESSAGE = 'the claim is lost'; END IF;
  UPDATE tasks SET state = 'done' WHERE id = held_task AND state = 'claimed';
  IF NOT FOUND THEN RAISE unique_violation USING MESSAGE = 'the task is done'; END IF;
  WITH gone AS (  -- a backup's that was made meanwhile
    DELETE FROM claims WHERE task_id = held_task RETURNING attempt, worker, begun)
  INSERT INTO history (task_id, attempt, worker, machine, begun, ended, outcome)
  SELECT held_task, g.attempt, g.worker, coalesce(w.machine, ''), g.begun,
         extract(epoch FROM clock_timestamp()), 'superseded'
  FROM gone g LEFT JOIN workers w ON w.name = g.worker;
  DELETE FROM failures WHERE task_id = held_task;
  DELETE FROM recoveries WHERE task_id = held_task;

  INSERT INTO trained SELECT * FROM jsonb_populate_recordset(NULL::trained, trained_rows);
  DELETE FROM partial_snapshots p USING jsonb_populate_recordset(NULL::trained, trained_rows) t
  WHERE (p.arm, p.path, p.phase) = (t.arm, t.path, t.phase);
  INSERT INTO contributions
  SELECT * FROM jsonb_populate_recordset(NULL::contributions, contribution_rows);

  -- Transactions that count the same contributions run one after the other from here on.
  FOREACH lock_key IN ARRAY lock_keys LOOP
    PERFORM pg_advisory_xact_lock(hashtextextended(lock_key, 0));
  END LOOP;
  INSERT INTO tasks AS t (kind, arm, subject, phase, priority)
  SELECT 'outer', o.arm, o.subject, o.phase, o.priority
  FROM jsonb_to_recordset(outer_tasks)
    AS o (arm TEXT, subject TEXT, phase BIGINT, priority BIGINT, awaited BIGINT)
  WHERE (SELECT count(*) FROM contributions a
         WHERE a.arm = o.arm AND a.module = o.subject AND a.phase = o.phase) = o.awaited
  ON CONFLICT (kind, arm, subject, phase) DO UPDATE SET state = 'ready'
  WHERE t.state IN ('waiting', 'aside');
  UPDATE workers
  SET committed_seconds = committed_seconds + held_seconds,
      heartbeat = extract(epoch FROM clock_timestamp()), committed_tasks = committed_tasks + 1
  WHERE name = holder;
  RETURN 'done';
END $$;
