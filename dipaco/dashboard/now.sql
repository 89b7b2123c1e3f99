-- Returns the number of the newest event, and the claims that are held, with their beginnings.
SELECT n.number, t.kind, t.arm, t.subject, t.phase, c.attempt, c.worker, c.begun
FROM (SELECT coalesce(max(id), 0) AS number FROM history) AS n
LEFT JOIN claims c ON TRUE LEFT JOIN tasks t ON t.id = c.task_id
ORDER BY c.worker, t.id;
