-- A run may go back to an earlier phase. What was recorded after it is set aside: out of the way, and not lost.

ALTER TABLE tasks DROP CONSTRAINT tasks_state_check;
ALTER TABLE tasks ADD CONSTRAINT tasks_state_check CHECK (state IN
  ('waiting', 'ready', 'claimed', 'done', 'aside'));

-- Done is done, unless what it made is known to be lost, and that is counted; or it is set aside.
DROP TRIGGER tasks_done_is_done ON tasks;
CREATE TRIGGER tasks_done_is_done BEFORE UPDATE OF state ON tasks FOR EACH ROW
WHEN (old.state = 'done' AND new.state NOT IN ('done', 'aside') AND new.redo <= old.redo)
EXECUTE FUNCTION refuse('a finished task cannot be opened again');

CREATE TABLE set_aside (
  id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  rollback  BIGINT NOT NULL,  -- the first, the second, ...
  arm       TEXT NOT NULL,
  phase     BIGINT NOT NULL,  -- that the run went back to
  kind      TEXT NOT NULL,    -- the table that the fact was in
  body      TEXT NOT NULL     -- JSON: its columns, in that table's order
);
CREATE INDEX modules_by_name ON modules (name);
CREATE INDEX modules_by_state ON modules (state_name);

-- What every path does after every phase, in one statement: what `Ledger` does of it statement by statement elsewhere. 'again':
-- the task was opened again, nothing is changed here. Somebody else's by now: a violation of uniqueness, and nothing is changed.
CREATE FUNCTION finish_training(
  held_task BIGINT, held_attempt BIGINT, holder TEXT,
  trained_rows JSONB, arrival_rows JSONB, turns TEXT[], outer_tasks JSONB
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  held_seconds DOUBLE PRECISION;
  turn TEXT;
BEGIN
  IF (SELECT redo FROM tasks WHERE id = held_task) > 0 THEN RETURN 'again'; END IF;
  WITH gone AS (DELETE FROM claims WHERE task_id = held_task RETURNING attempt, worker, since)
  SELECT extract(epoch FROM clock_timestamp()) - since INTO held_seconds FROM gone
  WHERE attempt = held_attempt AND worker = holder;
  IF NOT FOUND THEN RAISE unique_violation USING MESSAGE = 'the claim is lost'; END IF;
  UPDATE tasks SET state = 'done' WHERE id = held_task AND state = 'claimed';
  IF NOT FOUND THEN RAISE unique_violation USING MESSAGE = 'the task is done'; END IF;

  INSERT INTO trained SELECT * FROM jsonb_populate_recordset(NULL::trained, trained_rows);
  DELETE FROM partway p USING jsonb_populate_recordset(NULL::trained, trained_rows) t
  WHERE (p.arm, p.path, p.phase) = (t.arm, t.path, t.phase);
  INSERT INTO arrivals SELECT * FROM jsonb_populate_recordset(NULL::arrivals, arrival_rows);

  -- Who counts the same contributions waits here, and then sees ours.
  FOREACH turn IN ARRAY turns LOOP
    PERFORM pg_advisory_xact_lock(hashtextextended(turn, 0));
  END LOOP;
  INSERT INTO tasks AS t (kind, arm, subject, phase, priority)
  SELECT 'outer', o.arm, o.subject, o.phase, o.priority
  FROM jsonb_to_recordset(outer_tasks)
    AS o (arm TEXT, subject TEXT, phase BIGINT, priority BIGINT, awaited BIGINT)
  WHERE (SELECT count(*) FROM arrivals a
         WHERE a.arm = o.arm AND a.module = o.subject AND a.phase = o.phase) = o.awaited
  ON CONFLICT (kind, arm, subject, phase) DO UPDATE SET state = 'ready'
  WHERE t.state IN ('waiting', 'aside');
  UPDATE workers SET committed_seconds = committed_seconds + held_seconds,
                     committed_tasks = committed_tasks + 1 WHERE name = holder;
  RETURN 'done';
END $$;
