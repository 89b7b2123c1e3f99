-- What an idle worker asks every second or two (`Meta.work_summary`). A function, since a server keeps its
-- plan: planning takes four times as long as looking, and thousands ask. Each part is the first
-- entry of a partial index; for EXISTS, the table might be read instead.

CREATE FUNCTION work_summary(kinds TEXT, OUT command TEXT, OUT version TEXT,
                       OUT has_ready BOOLEAN, OUT has_resting BOOLEAN, OUT has_unfinished BOOLEAN)
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
  INTO command, version, has_ready, has_resting, has_unfinished;
END $$;
