-- What happened after an event, the first ones first, with the task that it was an attempt at.
SELECT h.id, t.kind, t.arm, t.subject, t.phase, h.attempt, h.worker, h.machine, h.begun, h.ended,
       h.outcome, h.reason
FROM history h LEFT JOIN tasks t ON t.id = h.task_id
WHERE h.id > :number ORDER BY h.id LIMIT :most;
