-- The schema of PostgreSQL that is not in `tables.sql`.

-- The share of each name in each group step. The name is a session's up to its last slash.
CREATE VIEW swarm_step_shares AS
SELECT s.arm, s.path, s.step, s.steps, n.name, n.blocks, n.out_of
FROM swarm_steps s CROSS JOIN LATERAL (
  SELECT coalesce(substring(e.key FROM '^(.*)/'), '') AS name,
         sum(json_array_length(e.value)) AS blocks,
         sum(sum(json_array_length(e.value))) OVER () AS out_of
  FROM json_each(s.blocks::json) AS e
  GROUP BY 1) AS n
WHERE n.blocks > 0;

-- An idle worker asks this every second or two (`Meta.work_summary`). It is a function because a
-- server keeps its plan. Planning takes four times as long as looking, and thousands ask. Each part
-- is the first entry of a partial index. For EXISTS, the table might be read instead.
CREATE FUNCTION work_summary(
  kinds TEXT, OUT command TEXT, OUT version TEXT,
  OUT has_ready BOOLEAN, OUT has_delayed_or_failed BOOLEAN, OUT has_unfinished BOOLEAN)
LANGUAGE plpgsql STABLE AS $$
BEGIN
  SELECT
    (SELECT value FROM meta WHERE key = 'command'),
    (SELECT value FROM meta WHERE key = 'version'),
    (SELECT id FROM tasks WHERE state = 'ready' AND kinds LIKE '%"' || kind || '"%'
     ORDER BY priority, id LIMIT 1) IS NOT NULL,
    coalesce((SELECT id FROM tasks WHERE state = 'delayed' ORDER BY id LIMIT 1),
             (SELECT id FROM tasks WHERE state = 'failed' ORDER BY id LIMIT 1)) IS NOT NULL,
    (SELECT id FROM tasks WHERE state NOT IN ('done', 'aside')
       AND NOT (state = 'failed' AND kind = 'sample')
     ORDER BY priority, id LIMIT 1) IS NOT NULL
  INTO command, version, has_ready, has_delayed_or_failed, has_unfinished;
END $$;

-- Finishes a path's phase in one statement. `Commit` takes several for the same on SQLite. Returns
-- 'again' if the task was opened again. Raises a unique violation if the claim is lost. Nothing is
-- changed in either case.
CREATE FUNCTION finish_training(
  held_task BIGINT, held_attempt BIGINT, holder TEXT, held_seconds DOUBLE PRECISION,
  trained_rows JSONB, contribution_rows JSONB, lock_keys TEXT[], outer_tasks JSONB
) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  is_holder BOOLEAN;
  lock_key TEXT;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);  -- A `flush` follows, without locks.
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
  WITH gone AS (  -- A backup may have been claimed meanwhile.
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

  -- From here on, transactions that count the same contributions run one after the other.
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
